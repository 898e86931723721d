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

/** An array to send, whose elements are those of `pieces` behind each other; here it is empty. `empty`: of their type, and not used elsewhere. */
export function gathered<A extends TypedArray>(pieces: readonly A[], empty: A): A {
  return pieces.length === 1 ? (pieces[0] as A) : Object.assign(empty, { [PIECES]: pieces });
}

/** Of an array from {@link gathered}; null: of any other. */
export const piecesOf = (array: ArrayBufferView): readonly TypedArray[] | null =>
  (array as { [PIECES]?: readonly TypedArray[] })[PIECES] ?? null;

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
