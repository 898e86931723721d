// A model directory whose head is its embedding, as one whose head is a tensor of its own.
import { closeSync, existsSync, openSync, readSync, renameSync } from 'node:fs';
import path from 'node:path';
import { markFloats } from '../base/json_floats';
import { TroupeError } from '../errors';
import { writeAll } from './copy_tensor';
import { parseObject, readText } from './json_object';
import { readTensors } from './safetensors';
import { writeJson } from './save_files';

const EMBEDDING = 'model.embed_tokens.weight';
const HEAD = 'lm_head.weight';
const INDEX = 'model.safetensors.index.json';
const WHOLE = 'model.safetensors';
const BODY = 'model_body.safetensors';
const FILE = 'lm_head.safetensors';
const COPY_BYTES = 8 * 2 ** 20;

/**
 * Adds the head, a copy of the embedding, in a file of its own, and says so in config.json; nothing happens when there is one.
 * @throws TroupeError INVALID_MODEL when the embedding has another name
 */
export function untieHead(directory: string): void {
  const tensors = readTensors(directory);
  if (tensors.has(HEAD)) return;
  const embedding = tensors.get(EMBEDDING);
  if (embedding === undefined) {
    throw new TroupeError(
      'INVALID_MODEL',
      `[checkpoint] ${directory}: expected the embedding as ${EMBEDDING}, to make a head of it, but there is none`,
    );
  }
  const { dtype, shape, bytes, offset, file } = embedding;
  const header = JSON.stringify({ [HEAD]: { dtype, shape, data_offsets: [0, bytes] } });
  const padded = Buffer.from(header.padEnd(Math.ceil(header.length / 8) * 8, ' '));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  const [source, target] = [openSync(file, 'r'), openSync(path.join(directory, FILE), 'wx')];
  try {
    const begin = Buffer.concat([length, padded]);
    writeAll(target, begin, 0);
    const buffer = Buffer.alloc(Math.min(COPY_BYTES, bytes));
    for (let done = 0; done < bytes; ) {
      const read = readSync(source, buffer, 0, Math.min(buffer.length, bytes - done), offset + done);
      if (read === 0) throw new TroupeError('IO', `[checkpoint] ${file} ended while it was read`);
      writeAll(target, buffer.subarray(0, read), begin.length + done);
      done += read;
    }
  } finally {
    closeSync(source);
    closeSync(target);
  }
  const change = (name: string, work: (value: Record<string, unknown>) => Record<string, unknown>): void => {
    const at = path.join(directory, name);
    writeJson(at, work(parseObject(markFloats(readText(at, 'checkpoint')), at, 'checkpoint')));
  };
  change('config.json', (config) => ({ ...config, tie_word_embeddings: false }));
  // One file alone has no index, and readers look for its name first.
  if (!existsSync(path.join(directory, INDEX))) {
    renameSync(path.join(directory, WHOLE), path.join(directory, BODY));
    const weightMap = Object.fromEntries([...tensors.keys()].map((name) => [name, BODY]));
    writeJson(path.join(directory, INDEX), { metadata: {}, weight_map: weightMap });
  }
  change(INDEX, (index) => ({ ...index, weight_map: { ...(index['weight_map'] as object), [HEAD]: FILE } }));
}
