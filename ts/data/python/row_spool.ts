// Rows that another process writes, for this one to read.
import { randomUUID } from 'node:crypto';
import { closeSync, fstatSync, ftruncateSync, openSync, unlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { reasonOf } from '../../base/text';
import { TroupeError } from '../../errors';

/** A file without a name: nothing is left of it when this process has ended, whatever that dies of. */
export class RowSpool {
  private constructor(
    /** For whoever writes it. */
    readonly descriptor: number,
  ) {}

  /** @throws TroupeError IO */
  static create(): RowSpool {
    const file = path.join(tmpdir(), `troupe-rows-${randomUUID()}`);
    try {
      const descriptor = openSync(file, 'wx+', 0o600);
      unlinkSync(file);
      return new RowSpool(descriptor);
    } catch (cause) {
      throw new TroupeError(
        'IO',
        `[data] cannot write rows to ${file}: ${reasonOf(cause)}: TMPDIR says where`,
        {
          cause,
        },
      );
    }
  }

  /** For whoever reads it, in any thread of this process, until it is closed. */
  get path(): string {
    return `/proc/self/fd/${this.descriptor}`;
  }

  get bytes(): number {
    return fstatSync(this.descriptor).size;
  }

  /** Its space is free again, though descriptors of whoever has read it may be left. */
  close(): void {
    ftruncateSync(this.descriptor, 0);
    closeSync(this.descriptor);
  }
}
