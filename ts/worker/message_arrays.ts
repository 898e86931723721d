// Arrays of a message that are one for who reads it and several for who sends it, or the other way round: so a batch is cut over ranks,
// and put together again, without a copy of it.

export type TypedArray =
  | Int8Array
  | Uint8Array
  | Uint8ClampedArray
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | Float32Array
  | Float64Array
  | BigInt64Array
  | BigUint64Array;

const PIECES = Symbol('pieces');
const ROWS = Symbol('rows');

/**
 * An array to send, whose elements are those of `pieces` behind each other; here it is empty, unless there is one piece. `empty`: of their type; neither it nor the
 * pieces are used elsewhere. `rows`: lengths of its rows, of which no piece has a part: where each is one value many times, one of them is sent.
 */
export function gathered<A extends TypedArray>(
  pieces: readonly A[],
  empty: A,
  rows: Int32Array | null = null,
): A {
  const array = pieces.length === 1 ? (pieces[0] as A) : Object.assign(empty, { [PIECES]: pieces });
  return rows === null ? array : Object.assign(array, { [ROWS]: { lengths: rows } satisfies Rows });
}

/** Of an array from {@link gathered}; null: of any other. */
export const piecesOf = (array: ArrayBufferView): readonly TypedArray[] | null =>
  (array as { [PIECES]?: readonly TypedArray[] })[PIECES] ?? null;

/** What is known of the rows of an array. */
interface Rows {
  lengths: Int32Array;
  /** Set when they have been looked through: several ranks may be sent one array. */
  filled?: FilledRows | null;
}

/** Rows of one value each: their lengths, and the bytes of the values. */
export interface FilledRows {
  lengths: Int32Array;
  values: Int32Array | Uint8Array;
}

/** Elements as they are compared and copied: bit for bit, whatever number they are; null: of another size. */
function bitsOf({ buffer, byteOffset, byteLength }: ArrayBufferView, size: number) {
  if (size === 4) return new Int32Array(buffer, byteOffset, byteLength / 4);
  return size === 1 ? new Uint8Array(buffer, byteOffset, byteLength) : null;
}

/** Of an array from {@link gathered} whose rows have one value each, if that is less to send; null: of any other. */
export function filledRows(array: TypedArray): FilledRows | null {
  const rows = (array as { [ROWS]?: Rows })[ROWS];
  if (rows === undefined) return null;
  if (rows.filled === undefined) rows.filled = findFilled(array, rows.lengths);
  return rows.filled;
}

/** The first row that has several values ends the search. */
function findFilled(array: TypedArray, lengths: Int32Array): FilledRows | null {
  const size = array.BYTES_PER_ELEMENT;
  const pieces = piecesOf(array) ?? [array];
  const total = pieces.reduce((sum, piece) => sum + piece.length, 0);
  if (2 * lengths.length * (size + 4) > total * size) return null;
  const values = bitsOf(new Uint8Array(lengths.length * size), size);
  let row = 0;
  for (const piece of pieces) {
    const bits = bitsOf(piece, size);
    if (values === null || bits === null) return null;
    const bytes = Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength);
    for (let at = 0; at < bits.length; row++) {
      const length = lengths[row] as number;
      const [start, end] = [at * size, (at + length) * size];
      // Compared with itself one on.
      if (length > 1 && bytes.compare(bytes, start + size, end, start, end - size) !== 0) return null;
      if (length > 0) values[row] = bits[at] as number;
      at += length;
    }
  }
  return values && { lengths, values };
}

/** What the rows of `array` are. @throws when they are not as long as it together */
export function fillRows(array: TypedArray, { lengths, values }: FilledRows): void {
  const bits = bitsOf(array, array.BYTES_PER_ELEMENT);
  let at = 0;
  for (let row = 0; row < lengths.length; row++) {
    const end = at + (lengths[row] as number);
    if (end < at) break;
    bits?.fill(values[row] as number, at, end);
    at = end;
  }
  if (bits === null || at !== bits.length)
    throw new Error(`rows of ${at} elements for an array of ${array.length}`);
}

export const bytesOf = (view: ArrayBufferView): Uint8Array =>
  new Uint8Array(view.buffer, view.byteOffset, view.byteLength);

/** Stands in a message for an array whose elements are still to come, and go where `into` says; null: nobody wants them. */
export class Landing {
  into: readonly TypedArray[] | null = null;

  constructor(
    readonly type: string,
    readonly length: number,
    readonly bytes: number,
  ) {}
}

/**
 * Puts an array of an answer into `places`, in their order: what is still to come will be received there, and what came is copied. Both
 * have the same type and number of elements, or it throws.
 */
export function land(array: TypedArray | Landing, places: readonly TypedArray[]): void {
  const room = places.reduce((sum, place) => sum + place.length, 0);
  const type = array instanceof Landing ? array.type : array[Symbol.toStringTag];
  const other = places.find((place) => place[Symbol.toStringTag] !== type);
  if (room !== array.length || other !== undefined) {
    const expected = other === undefined ? room : `${room} of ${other[Symbol.toStringTag]}`;
    throw new Error(`an array for ${expected} elements has ${array.length} of ${type}`);
  }
  if (array instanceof Landing) {
    array.into ??= places;
    return;
  }
  let at = 0;
  for (const place of places) {
    place.set(array.subarray(at, at + place.length) as never);
    at += place.length;
  }
}
