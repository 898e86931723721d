import { closeSync, openSync, readSync } from 'node:fs';
import { TroupeError } from '../errors';
import type { StoredTensor } from './safetensors';

/** The bytes of one tensor of a file, which is open until close(). */
export class StoredBytes {
  readonly #fd: number;

  constructor(private readonly tensor: StoredTensor) {
    this.#fd = openSync(tensor.file, 'r');
  }

  /** Fills `target` from the tensor's byte `from` on. @throws TroupeError IO for a file that ends early */
  read(target: Uint8Array, from: number): Uint8Array {
    const { file, offset } = this.tensor;
    for (let done = 0; done < target.length; ) {
      const got = readSync(this.#fd, target, done, target.length - done, offset + from + done);
      if (got === 0) throw new TroupeError('IO', `[model] ${file} ended early: it was truncated`);
      done += got;
    }
    return target;
  }

  close(): void {
    closeSync(this.#fd);
  }
}
