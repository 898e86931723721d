// Arrays whose rows have one value each are sent as these values, and received bit for bit as they were.
import { gathered, type TypedArray } from '../../../ts/worker/message_arrays';
import { decodeHead, encodeMessage } from '../../../ts/worker/message_codec';

const bytesOf = (view: ArrayBufferView): Buffer => Buffer.from(view.buffer, view.byteOffset, view.byteLength);

/** Sends it, and says how many bytes it took. */
function sent<A extends TypedArray>(array: A): { received: A; bytes: number } {
  const { head, segments } = encodeMessage({ array });
  const { message, segments: expected } = decodeHead(Uint8Array.from(head));
  for (const [i, segment] of segments.entries()) (expected[i] as Uint8Array).set(segment);
  const bytes = head.length + segments.reduce((sum, { length }) => sum + length, 0);
  return { received: (message as { array: A }).array, bytes };
}

/** The rows end to end in pieces of so many rows each. */
function inPieces(rows: readonly number[][], piece: number): Float32Array {
  const pieces: Float32Array[] = [];
  for (let start = 0; start < rows.length; start += piece)
    pieces.push(Float32Array.from(rows.slice(start, start + piece).flat()));
  return gathered(
    pieces,
    new Float32Array(0),
    Int32Array.from(rows, ({ length }) => length),
  );
}

const filled = (length: number, value: number): number[] => new Array(length).fill(value);

test.each([1, 2, 100])('rows of one value, in pieces of %i rows', (piece) => {
  const rows = [filled(500, 0.25), [], filled(1, -3), filled(700, -0), filled(300, 0), []];
  const { received, bytes } = sent(inPieces(rows, piece));
  expect(received).toBeInstanceOf(Float32Array);
  expect(bytesOf(received).equals(bytesOf(Float32Array.from(rows.flat())))).toBe(true);
  expect(bytes).toBeLessThan(250);
});

test('NaN stays the NaN that it was', () => {
  const bits = Int32Array.from({ length: 1000 }, (_, t) => (t < 400 ? 0x7fc12345 : -0x3edcbb));
  const column = new Float32Array(bits.buffer);
  const { received, bytes } = sent(gathered([column], new Float32Array(0), Int32Array.of(400, 600)));
  expect(bytesOf(received).equals(bytesOf(bits))).toBe(true);
  expect(bytes).toBeLessThan(150);
});

test('a mask of ones', () => {
  const { received, bytes } = sent(
    gathered([new Uint8Array(5000).fill(1)], new Uint8Array(0), Int32Array.of(2000, 3000)),
  );
  expect(received).toEqual(new Uint8Array(5000).fill(1));
  expect(bytes).toBeLessThan(150);
});

test.each([
  ['first', 0],
  ['last', 999],
])('one other value, the %s, and all are sent', (_, place) => {
  const column = new Float32Array(1000).fill(2);
  column[place] = 2.5;
  const { received, bytes } = sent(gathered([column.slice()], new Float32Array(0), Int32Array.of(500, 500)));
  expect(received).toEqual(column);
  expect(bytes).toBeGreaterThan(4000);
});

test('short rows, of which there is nothing to save, and arrays of which no rows are known', () => {
  const short = inPieces(
    Array.from({ length: 100 }, (_, i) => filled(2, i)),
    100,
  );
  expect(sent(short).received).toEqual(Float32Array.from({ length: 200 }, (_, t) => t >> 1));
  const plain = new Float32Array(1000).fill(1);
  expect(sent(plain)).toEqual({ received: plain, bytes: expect.any(Number) });
  expect(sent(plain).bytes).toBeGreaterThan(4000);
  const doubles = gathered([new Float64Array(100).fill(1)], new Float64Array(0), Int32Array.of(100));
  expect(sent(doubles).received).toEqual(new Float64Array(100).fill(1));
});

test('rows that are not as long as their array are no message', () => {
  const { head } = encodeMessage({
    array: gathered([new Int32Array(1000)], new Int32Array(0), Int32Array.of(400, 600)),
  });
  const damaged = Uint8Array.from(head);
  const at = Buffer.from(damaged.buffer).indexOf(Buffer.from(Int32Array.of(400, 600).buffer));
  for (const lengths of [
    Int32Array.of(400, 601),
    Int32Array.of(-400, 600),
    Int32Array.of(2 ** 30, 2 ** 30),
  ]) {
    damaged.set(new Uint8Array(lengths.buffer), at);
    expect(() => decodeHead(damaged)).toThrow(/^rows of -?\d+ elements for an array of 1000$/);
  }
});
