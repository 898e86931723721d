import { BatchLoader } from '../../../ts/data/loader';
import { ReadAhead } from '../../../ts/data/reading/read_ahead';

/** What was read, in what order, and how many samples of it are held. */
class Reader {
  readonly reads: number[][] = [];
  fails = 0;
  /** Of a sample as it is read. */
  sampleBytes = 1;

  async read(indices: Int32Array) {
    if (this.fails-- > 0) throw new Error('the disk is gone');
    this.reads.push([...indices]);
    return {
      bytes: indices.length * this.sampleBytes,
      at: (place: number): number | null => {
        const index = indices[place] as number;
        if (index === this.bad) throw new Error(`row ${index} is bad`);
        return index % 5 === 4 ? null : index;
      },
    };
  }

  bad = -1;
}

const SIZE = 103;
const options = { batchSize: 4, shuffle: true, seed: 3 };
const ahead = (reader: Reader, most = 16) =>
  new BatchLoader<number>(SIZE, new ReadAhead(reader, most, 100).load, options);
const direct = () =>
  new BatchLoader<number>(
    SIZE,
    async (indices) => Array.from(indices, (i) => (i % 5 === 4 ? null : i)),
    options,
  );
const take = async (loader: BatchLoader<number>, n: number) => {
  const batches: unknown[] = [];
  for (let i = 0; i < n; i++) batches.push(await loader.next());
  return batches;
};

it.each([1, 3, 4, 5, 16, 1000])('gives what reading in place gives, in windows of %d', async (most) => {
  const whole = await take(direct(), 70);
  expect(await take(ahead(new Reader(), most), 70)).toEqual(whole);
  const other = direct();
  await take(other, 29);
  const resumed = ahead(new Reader(), most);
  resumed.restore(other.state());
  expect(await take(resumed, 41)).toEqual(whole.slice(29));
});

it('reads every sample of an epoch once, in windows that grow and of which two are there', async () => {
  const reader = new Reader();
  const loader = ahead(reader);
  await loader.next();
  // The first one is what was asked for.
  expect(reader.reads.slice(0, 3).map(({ length }) => length)).toEqual([4, 8, 16]);
  let taken = 4;
  while (loader.state().epoch === 0) {
    const read = reader.reads.flat().length;
    expect(read - taken).toBeLessThanOrEqual(2 * 16 + options.batchSize);
    taken = loader.state().position;
    await loader.next();
  }
  const epoch = reader.reads.flat().slice(0, SIZE);
  expect(new Set(epoch).size).toBe(SIZE);
  expect(Math.max(...reader.reads.map(({ length }) => length))).toBe(16);
});

it.each([
  [1, [4, 8, 16, 32]],
  // Of 100 bytes.
  [10, [4, 8, 10, 10]],
  [30, [4, 3, 3, 3]],
  [500, [4, 1, 1, 1]],
])('samples of %i bytes are read in windows of %p', async (sampleBytes, sizes) => {
  const reader = new Reader();
  reader.sampleBytes = sampleBytes;
  expect(await take(ahead(reader, 1000), 20)).toEqual(await take(direct(), 20));
  expect(reader.reads.slice(0, sizes.length).map(({ length }) => length)).toEqual(sizes);
});

it('a sample that cannot be read is an error when its batch is asked for, not before', async () => {
  const reader = new Reader();
  const loader = ahead(reader, 1000);
  const [, , third] = (await take(direct(), 3)) as { samples: number[] }[];
  reader.bad = (third as { samples: number[] }).samples[0] as number;
  await take(loader, 2);
  const { position } = loader.state();
  await expect(loader.next()).rejects.toThrow(`row ${reader.bad} is bad`);
  expect(loader.state().position).toBe(position);
});

it('a window that could not be read is read again when it is asked for again', async () => {
  const reader = new Reader();
  reader.fails = 1;
  const loader = ahead(reader);
  await expect(loader.next()).rejects.toThrow('the disk is gone');
  expect(await take(loader, 5)).toEqual(await take(direct(), 5));
  // Also one that nobody was waiting for yet.
  const late = new Reader();
  const other = ahead(late);
  await other.next();
  late.fails = 1;
  expect(await take(other, 10)).toEqual((await take(direct(), 11)).slice(1));
  expect(late.fails).toBeLessThan(1);
});
