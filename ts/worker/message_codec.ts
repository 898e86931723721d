import { DefaultDeserializer, DefaultSerializer } from 'node:v8';
import { bytesOf, filledRows, fillRows, Landing, piecesOf, type TypedArray } from './message_arrays';

// A message as bytes: a head, serialised by V8, and beside it the long typed arrays as they lie in memory. So a long array is not
// copied before it is sent, and is received into its final place. Short ones, of which a message may have a hundred thousand, are gathered
// behind each other, and received as views of one buffer. Those of a message that `lands` come after its head whatever their length, and
// go where its receiver says (message_arrays.ts). Of an array whose rows have one value each, as advantages of whole responses and masks of ones, the head has
// the values and lengths of the rows.

/** Shorter arrays are gathered. */
const SEGMENT_BYTES = 64 * 1024;

const ARRAYS = [
  Int8Array,
  Uint8Array,
  Uint8ClampedArray,
  Int16Array,
  Uint16Array,
  Int32Array,
  Uint32Array,
  Float32Array,
  Float64Array,
  BigInt64Array,
  BigUint64Array,
] as const;
const TYPES = new Map<unknown, number>(ARRAYS.map(({ name }, type) => [name, type]));
/** Each short array begins at a multiple of it. */
const ALIGNMENT = 8;
/** Short arrays are gathered in pieces of it. */
const PIECE_BYTES = 2 ** 20;
const FIRST_PIECE_BYTES = 4096;

const INLINE = 0;
const SEGMENT = 1;
const SHORT = 2;
const LANDING = 3;
const FILLED = 4;

const aligned = (bytes: number): number => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;

export interface EncodedMessage {
  head: Uint8Array;
  /** What follows it: the short arrays where they are many, and the memory of the long ones itself, in the order in which the head names them. */
  segments: Uint8Array[];
}

/** The bytes of many short arrays behind each other, in few pieces. */
class ShortArrays {
  readonly pieces: Uint8Array[] = [];
  size = 0;
  private memory = new ArrayBuffer(0);
  /** Of `memory`, by type: copying between arrays of one type needs no view of their bytes, which small arrays do not have at hand. */
  private views: InstanceType<(typeof ARRAYS)[number]>[] = [];
  private filled = 0;

  add(array: ArrayBufferView & ArrayLike<never>, type: number): void {
    const { byteLength } = array;
    if (this.filled + byteLength > this.memory.byteLength) {
      this.cut();
      // A turn's few tokens need no piece of full size.
      this.memory = new ArrayBuffer(
        this.size === 0 ? Math.max(FIRST_PIECE_BYTES, aligned(byteLength)) : PIECE_BYTES,
      );
      this.views = [];
    }
    const make = ARRAYS[type] as (typeof ARRAYS)[number];
    const view = this.views[type] ?? new make(this.memory);
    this.views[type] = view;
    view.set(array, this.filled / make.BYTES_PER_ELEMENT);
    this.filled += aligned(byteLength);
  }

  /** Ends the piece that is being filled. */
  cut(): void {
    if (this.filled > 0) this.pieces.push(new Uint8Array(this.memory, 0, this.filled));
    this.size += this.filled;
    this.filled = 0;
    this.memory = new ArrayBuffer(0);
  }
}

/** One array of `pieces`. */
function joined(
  pieces: readonly TypedArray[],
  length: number,
  type: number,
): ArrayBufferView & ArrayLike<never> {
  const array = new (ARRAYS[type] as (typeof ARRAYS)[number])(length);
  let at = 0;
  for (const piece of pieces) {
    array.set(piece as never, at);
    at += piece.length;
  }
  return array as unknown as ArrayBufferView & ArrayLike<never>;
}

class HeadSerializer extends DefaultSerializer {
  readonly segments: Uint8Array[] = [];
  readonly short = new ShortArrays();

  constructor(private readonly lands: boolean) {
    super();
  }

  /** Called by V8 for every typed array, once for one that is there several times. */
  _writeHostObject(view: ArrayBufferView & ArrayLike<never> & { [Symbol.toStringTag]: string }): void {
    const type = TYPES.get(view[Symbol.toStringTag]);
    if (type === undefined) {
      this.writeUint32(INLINE);
      writeInline.call(this, view);
      return;
    }
    const pieces = piecesOf(view);
    if (this.writeFilled(view as unknown as TypedArray, type)) return;
    const length = pieces === null ? view.length : pieces.reduce((sum, piece) => sum + piece.length, 0);
    const { BYTES_PER_ELEMENT } = ARRAYS[type] as (typeof ARRAYS)[number];
    const kind = this.lands ? LANDING : length * BYTES_PER_ELEMENT >= SEGMENT_BYTES ? SEGMENT : SHORT;
    this.writeUint32(kind);
    this.writeUint32(type);
    this.writeDouble(length);
    if (kind === SHORT) this.short.add(pieces === null ? view : joined(pieces, length, type), type);
    else for (const piece of pieces ?? [view]) if (piece.length > 0) this.segments.push(bytesOf(piece));
  }

  /** Whether it is an array whose rows have one value each. */
  private writeFilled(array: TypedArray, type: number): boolean {
    const rows = this.lands ? null : filledRows(array);
    if (rows === null) return false;
    this.writeUint32(FILLED);
    this.writeUint32(type);
    this.writeDouble(rows.lengths.reduce((sum, length) => sum + length, 0));
    this.writeUint32(rows.lengths.length);
    this.writeRawBytes(bytesOf(rows.lengths));
    this.writeRawBytes(bytesOf(rows.values));
    return true;
  }
}

/** Behind a head: memory to be filled, or what its receiver has yet to find a place for. */
export type Expected = Uint8Array | Landing;

class HeadDeserializer extends DefaultDeserializer {
  readonly segments: Expected[] = [];
  private taken = 0;

  /** `short`: the bytes of the short arrays. */
  constructor(
    head: Uint8Array,
    private readonly short: Uint8Array,
  ) {
    super(head);
  }

  _readHostObject(): ArrayBufferView | Landing {
    const kind = this.readUint32();
    if (kind === INLINE) return readInline.call(this);
    const type = ARRAYS[this.readUint32()];
    if (type === undefined) throw new Error('an array of an unknown type');
    const length = this.readDouble();
    if (kind === FILLED) return this.readFilled(type, length);
    if (kind === LANDING) {
      const landing = new Landing(type.name, length, length * type.BYTES_PER_ELEMENT);
      this.segments.push(landing);
      return landing;
    }
    if (kind === SEGMENT) {
      const array = new type(length);
      this.segments.push(bytesOf(array));
      return array;
    }
    const bytes = length * type.BYTES_PER_ELEMENT;
    if (!(this.taken + bytes <= this.short.length)) throw new Error('an array beyond the end of its message');
    const { buffer, byteOffset } = this.short;
    const array = new type(buffer as ArrayBuffer, byteOffset + this.taken, length);
    this.taken += aligned(bytes);
    return array;
  }

  private readFilled(type: (typeof ARRAYS)[number], length: number): TypedArray {
    const count = this.readUint32();
    const copy = (bytes: number): ArrayBuffer => new Uint8Array(this.readRawBytes(bytes)).buffer;
    const lengths = new Int32Array(copy(4 * count));
    const values = copy(type.BYTES_PER_ELEMENT * count);
    // Before there is memory for it: a few bytes may name any length.
    const rows = lengths.reduce((sum, row) => sum + row, 0);
    if (rows !== length) throw new Error(`rows of ${rows} elements for an array of ${length}`);
    const array = new type(length);
    fillRows(array, {
      lengths,
      values: type.BYTES_PER_ELEMENT === 4 ? new Int32Array(values) : new Uint8Array(values),
    });
    return array;
  }
}

// Node's own way with typed arrays, which its type declarations leave out.
const writeInline = (
  DefaultSerializer.prototype as unknown as {
    _writeHostObject(this: DefaultSerializer, view: ArrayBufferView): void;
  }
)._writeHostObject;
const readInline = (
  DefaultDeserializer.prototype as unknown as {
    _readHostObject(this: DefaultDeserializer): ArrayBufferView;
  }
)._readHostObject;

const FOOTER_BYTES = 16;

/**
 * The head: what V8 writes; the bytes of the short arrays, where they are few; where those begin, and how many there are, f64 each, 0 for a
 * beginning that is behind the head, in the first segment.
 *
 * @throws DataCloneError for what cannot be sent: functions, promises, ...
 */
export function encodeMessage(message: unknown): EncodedMessage {
  const serializer = new HeadSerializer((message as { lands?: unknown } | null)?.lands === true);
  serializer.writeHeader();
  serializer.writeValue(message);
  const { short, segments } = serializer;
  short.cut();
  const written = serializer.releaseBuffer();
  const inHead = short.size <= SEGMENT_BYTES;
  const start = aligned(written.length);
  const end = inHead ? start + short.size : start;
  const head = Buffer.alloc(end + FOOTER_BYTES);
  head.set(written);
  let at = start;
  if (inHead) {
    for (const piece of short.pieces) {
      head.set(piece, at);
      at += piece.length;
    }
  }
  head.writeDoubleLE(inHead ? start : 0, end);
  head.writeDoubleLE(short.size, end + 8);
  return { head, segments: inHead ? segments : [...short.pieces, ...segments] };
}

/**
 * The message of a head that begins at a multiple of 8 bytes, with zeros in the arrays that are not in it, and their memory, to be filled in
 * this order. Throws for garbage.
 */
export function decodeHead(head: Uint8Array): { message: unknown; segments: Expected[] } {
  if (head.length < FOOTER_BYTES) throw new Error(`a head of ${head.length} bytes`);
  const footer = new DataView(head.buffer, head.byteOffset + head.length - FOOTER_BYTES, FOOTER_BYTES);
  const [start, size] = [footer.getFloat64(0, true), footer.getFloat64(8, true)];
  const inHead = start > 0;
  if (!(start >= 0 && size >= 0) || (inHead && start + size + FOOTER_BYTES !== head.length))
    throw new Error(`short arrays at ${start} of ${size} bytes in a head of ${head.length}`);
  const short = inHead ? head.subarray(start, start + size) : new Uint8Array(size);
  const deserializer = new HeadDeserializer(head, short);
  deserializer.readHeader();
  const message: unknown = deserializer.readValue();
  const { segments } = deserializer;
  const expected = inHead ? segments : [short, ...segments];
  return { message, segments: expected.filter(({ length }) => length > 0) };
}
