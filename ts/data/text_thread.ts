// A thread that tokenizes texts.
import { parentPort, workerData } from 'node:worker_threads';
import { reasonOf } from '../base/text';
import type { TextReply, TextRequest, TextThreadOptions } from './text_thread_protocol';
import { Tokenizer } from './tokenizer';

const { directory, chatTemplate } = workerData as TextThreadOptions;
const tokenizer = Tokenizer.load(directory, { chatTemplate });

const port = parentPort as NonNullable<typeof parentPort>;
port.on('message', ({ id, text, specialTokens }: TextRequest) => {
  try {
    const ids = tokenizer.encode(text, specialTokens);
    port.postMessage({ id, ids } satisfies TextReply, [ids.buffer as ArrayBuffer]);
  } catch (error) {
    port.postMessage({ id, error: reasonOf(error) } satisfies TextReply);
  }
});
