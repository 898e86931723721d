import { Batch } from '../../../ts/batch/batch';
import { ColumnMemory } from '../../../ts/batch/column_memory';

/** Marks a column's memory, to be known again. */
const marked = (column: Float32Array): Float32Array => column.fill(7);
const isMarked = (column: Float32Array): boolean => column.length > 0 && column.every((x) => x === 7);

test('what is given back is used again, by somewhat longer columns, too', () => {
  const memory = new ColumnMemory();
  ColumnMemory.reclaim(marked(memory.float32(1000)));
  const shorter = memory.float32(900);
  expect(shorter).toHaveLength(900);
  expect(isMarked(shorter)).toBe(true);
  ColumnMemory.reclaim(marked(shorter));
  expect(isMarked(memory.float32(1100).subarray(0, 900))).toBe(true);
});

test('arrays over memory that was given back are empty: nobody sees what it will hold', () => {
  const memory = new ColumnMemory();
  const column = memory.int32(10);
  const part = column.subarray(2, 5);
  ColumnMemory.reclaim(column);
  const next = memory.int32(10).fill(3);
  expect([column.length, part.length, column.buffer.byteLength]).toEqual([0, 0, 0]);
  expect(() => column.fill(1)).toThrow(TypeError);
  // What was given back twice is not lent twice.
  ColumnMemory.reclaim(column);
  ColumnMemory.reclaim(part);
  const other = memory.int32(10).fill(4);
  expect(next.buffer).not.toBe(other.buffer);
  expect([...next]).toEqual(new Array(10).fill(3));
});

test('memory of others stays as it is, and goes back to who lent it', () => {
  const [memory, other] = [new ColumnMemory(), new ColumnMemory()];
  const own = Float32Array.of(1, 2, 3);
  ColumnMemory.reclaim(own);
  ColumnMemory.reclaim(['a', 'b']);
  expect([...own]).toEqual([1, 2, 3]);
  ColumnMemory.reclaim(marked(memory.float32(100)));
  expect(isMarked(other.float32(100))).toBe(false);
  expect(isMarked(memory.float32(100))).toBe(true);
});

test('long memory is kept for long columns; what has become too short makes room', () => {
  const memory = new ColumnMemory();
  const columns = [memory.float32(1000), memory.float32(4000)];
  columns.forEach(ColumnMemory.reclaim);
  const bytes = memory.freeBytes;
  expect(memory.float32(1500).byteLength).toBe(6000);
  // A column for which 4000 is too much took the place of the one of 1000.
  expect(memory.freeBytes).toBe(bytes - 4500);
  memory.float32(6000);
  expect(memory.freeBytes).toBe(0);
});

test('a batch that is recycled says so, and so do those that share its columns', () => {
  const memory = new ColumnMemory();
  const tokens = memory.int32(5);
  tokens.set([1, 2, 3, 4, 5]);
  const lens = { promptLens: [1, 1], responseLens: [1, 2] };
  const batch = Batch.fromRagged({ tokens, ...lens }, { adopt: true });
  const derived = batch.with({ values: Float32Array.of(1, 2, 3) }, { adopt: true });
  const copy = batch.take([1]);
  batch.recycle();
  batch.recycle();
  for (const read of [() => batch.get('tokens'), () => derived.prompt(0), () => derived.row('tokens', 1)])
    expect(read).toThrow("column 'tokens' has been recycled: read it before batch.recycle()");
  expect(() => derived.take([0])).toThrow("column 'tokens' has been recycled");
  expect(() => derived.with({ tokens: [1, 2, 3, 4, 5] })).toThrow("column 'tokens' has been recycled");
  // Whatever else it has is not that memory.
  expect([...derived.get('values')]).toEqual([1, 2, 3]);
  expect([...derived.get('responseMask')]).toEqual([1, 1, 1]);
  expect([derived.size, derived.numTokens]).toEqual([2, 5]);
  expect([...copy.get('tokens')]).toEqual([3, 4, 5]);
  expect(memory.freeBytes).toBeGreaterThanOrEqual(20);
});

test('an empty batch is not a recycled one', () => {
  const batch = Batch.fromRagged({ tokens: new ColumnMemory().int32(0), promptLens: [], responseLens: [] });
  batch.recycle();
  expect(batch.get('tokens')).toHaveLength(0);
});
