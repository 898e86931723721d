// A thread that copies tensors from file to file.
import { closeSync, openSync } from 'node:fs';
import { parentPort } from 'node:worker_threads';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { copyTensor } from './copy_tensor';
import type { CopyFailure, CopyReply, CopyRequest } from './copy_thread_protocol';

const port = parentPort as NonNullable<typeof parentPort>;
port.on('message', (request: CopyRequest) => {
  const { id } = request;
  try {
    copy(request);
    port.postMessage({ id } satisfies CopyReply);
  } catch (error) {
    port.postMessage({ id, failure: failureOf(error) } satisfies CopyReply);
  }
});

function copy({ source, path, offset, dtype }: CopyRequest): void {
  const out = openSync(path, 'r+');
  try {
    copyTensor(source, out, offset, dtype);
  } finally {
    closeSync(out);
  }
}

function failureOf(error: unknown): CopyFailure {
  const message = reasonOf(error);
  return error instanceof TroupeError
    ? { own: true, code: error.code, message }
    : { own: false, code: (error as NodeJS.ErrnoException).code, message };
}
