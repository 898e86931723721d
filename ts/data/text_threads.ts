// Tokenizes texts beside the thread that asks: one of some megabytes takes many seconds.
import { availableParallelism } from 'node:os';
import path from 'node:path';
import pLimit from 'p-limit';
import { ThreadCalls } from '../base/thread_calls';
import { TroupeError } from '../errors';
import { packageRoot } from '../install/package_root';
import type { TextReply, TextRequest, TextThreadOptions } from './text_thread_protocol';
import type { Tokenizer } from './tokenizer';

/** Each holds a tokenizer, which may be 200 MB. */
const MOST_THREADS = 2;

type Thread = ThreadCalls<TextRequest, TextReply>;

/** The threads start when there is the first text; others wait for one that is idle. */
export class TextThreads {
  private readonly idle: Thread[] = [];
  private readonly all = new Set<Thread>();
  private readonly limit = pLimit(Math.min(MOST_THREADS, availableParallelism()));

  constructor(private readonly tokenizer: Tokenizer) {}

  /** As the tokenizer does it; what nobody waits for any more is given up. @throws TroupeError INVALID_MODEL; the signal's reason */
  encode(text: string, specialTokens: boolean, signal: AbortSignal): Promise<Int32Array> {
    return this.limit(async () => {
      signal.throwIfAborted();
      const thread = this.idle.pop() ?? this.start();
      // It looks at no message before it is done.
      const giveUp = (): void => void this.end(thread);
      signal.addEventListener('abort', giveUp, { once: true });
      try {
        const { ids } = await thread.ask({ text, specialTokens });
        this.idle.push(thread);
        return ids as Int32Array;
      } catch (cause) {
        void this.end(thread);
        signal.throwIfAborted();
        throw new TroupeError('INVALID_MODEL', `[data] tokenizing failed: ${(cause as Error).message}`, {
          cause,
        });
      } finally {
        signal.removeEventListener('abort', giveUp);
      }
    });
  }

  async close(): Promise<void> {
    await Promise.all(Array.from(this.all, (thread) => thread.end()));
  }

  private start(): Thread {
    const file = path.join(packageRoot, 'dist', 'data', 'text_thread.js');
    const options: TextThreadOptions = this.tokenizer.source;
    const thread: Thread = new ThreadCalls(file, options, 'texts');
    this.all.add(thread);
    return thread;
  }

  private end(thread: Thread): Promise<void> {
    this.all.delete(thread);
    return thread.end();
  }
}
