// Memory of long columns that goes from one batch to the next. A column of hundreds of millions of numbers is filled in less time than
// the system needs to find fresh memory for it.
import type { ColumnData } from './columns';

/** Memory that has been lent, and by whom. */
const lenders = new WeakMap<ArrayBufferLike, ColumnMemory>();

/** More than was asked for by this part, so that a batch of somewhat more tokens has room in it. What nobody writes to takes no memory. */
const SLACK = 1 / 8;
/** Memory of more than this many times the length goes to longer columns. */
const LONGEST = 2;

/** Of one engine's results. */
export class ColumnMemory {
  /** The shortest first. */
  private free: ArrayBuffer[] = [];

  /** With anything in it: every place is to be written. */
  int32(length: number): Int32Array {
    return new Int32Array(this.lend(4 * length), 0, length);
  }

  /** The same. */
  float32(length: number): Float32Array {
    return new Float32Array(this.lend(4 * length), 0, length);
  }

  /** The same. */
  uint8(length: number): Uint8Array {
    return new Uint8Array(this.lend(length), 0, length);
  }

  /** Bytes at hand. */
  get freeBytes(): number {
    return this.free.reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  /**
   * Takes back the memory of a column, if it is lent. It moves to another buffer: arrays over the one that was lent are empty from now on, whoever has
   * them, so that nobody sees what it will hold next.
   */
  static reclaim(column: ColumnData): void {
    if (!ArrayBuffer.isView(column)) return;
    const { buffer } = column;
    const lender = lenders.get(buffer);
    if (lender === undefined) return;
    lenders.delete(buffer);
    const moved = structuredClone(buffer as ArrayBuffer, { transfer: [buffer as ArrayBuffer] });
    lender.free.push(moved);
    lender.free.sort((a, b) => a.byteLength - b.byteLength);
  }

  private lend(bytes: number): ArrayBuffer {
    const at = this.free.findIndex(({ byteLength }) => byteLength >= bytes && byteLength <= LONGEST * bytes);
    const [buffer = this.fresh(bytes)] = at < 0 ? [] : this.free.splice(at, 1);
    lenders.set(buffer, this);
    return buffer;
  }

  /** In place of as much that has become too short, so that growing batches do not leave a trail of memory. */
  private fresh(bytes: number): ArrayBuffer {
    const buffer = new ArrayBuffer(Math.ceil(bytes * (1 + SLACK)));
    let left = buffer.byteLength;
    for (let i = this.free.length - 1; i >= 0 && left > 0; i--) {
      const { byteLength } = this.free[i] as ArrayBuffer;
      if (byteLength >= bytes) continue;
      left -= byteLength;
      this.free.splice(i, 1);
    }
    return buffer;
  }
}
