import { BatchLoader } from '../../../ts/data/loader';
import { chooseRows, permutation } from '../../../ts/data/shuffle';

const loader = (size = 10, options = {}, usable: (index: number) => boolean = () => true) =>
  new BatchLoader<number>(
    size,
    async (indices) => Array.from(indices, (index) => (usable(index) ? index : null)),
    { batchSize: 4, shuffle: true, seed: 3, ...options },
  );
const take = async (source: BatchLoader<number>, n: number) => {
  const batches: { indices: number[]; epoch: number }[] = [];
  for (let i = 0; i < n; i++) {
    const { samples, epoch } = await source.next();
    batches.push({ indices: samples, epoch });
  }
  return batches;
};

describe('batches', () => {
  it('drop the rest of an epoch, and never repeat a sample within one', async () => {
    const batches = await take(loader(), 6);
    expect(loader().batchesPerEpoch()).toBe(2);
    expect(batches.map(({ epoch }) => epoch)).toEqual([0, 0, 1, 1, 2, 2]);
    for (const epoch of [0, 1, 2]) {
      const seen = batches.filter((batch) => batch.epoch === epoch).flatMap(({ indices }) => indices);
      expect(new Set(seen).size).toBe(8);
    }
  });

  it('come in a new order every epoch, the same for the same seed', async () => {
    const [first, , second] = await take(loader(), 4);
    expect(first?.indices).not.toEqual(second?.indices);
    expect(await take(loader(), 4)).toEqual(await take(loader(), 4));
    expect(await take(loader(10, { seed: 4 }), 2)).not.toEqual(await take(loader(), 2));
  });

  it('keep the order of the file without shuffling', async () => {
    const batches = await take(loader(9, { shuffle: false }), 3);
    expect(batches.map(({ indices }) => indices)).toEqual([
      [0, 1, 2, 3],
      [4, 5, 6, 7],
      [0, 1, 2, 3],
    ]);
  });

  it('larger than the data set are an error', () => {
    expect(() => loader(3)).toThrow(/3 usable samples, fewer than one batch \(data\.train_batch_size 4\)/);
    expect(() => loader().batchesPerEpoch(3)).toThrow(/3 usable samples/);
  });
});

describe('samples that are not to be used', () => {
  const odd = (index: number) => index % 2 === 1;

  it('are passed over, and the others keep their order', async () => {
    const usable = (await take(loader(11), 2)).flatMap(({ indices }) => indices).filter(odd);
    const [first] = await take(loader(11, {}, odd), 1);
    expect(first!.indices).toEqual(usable.slice(0, 4));
    expect(first!.indices).toHaveLength(4);
  });

  it.each([8, 9, 10, 17, 24])('leave whole batches of an epoch, of %i samples', async (size) => {
    const source = loader(size, {}, odd);
    const batches = await take(source, 7);
    const perEpoch = source.batchesPerEpoch(Math.floor(size / 2));
    expect(batches.map(({ epoch }) => epoch)).toEqual(batches.map((_, i) => Math.floor(i / perEpoch)));
  });

  it('may be all: an error with what is left', async () => {
    const source = loader(10, {}, (index) => index < 3);
    await expect(source.next()).rejects.toThrow(/3 usable samples, fewer than one batch/);
    expect(source.state()).toMatchObject({ epoch: 0, position: 0 });
  });

  it.each([1, 2, 3, 5])('do not move the position after %i batches', async (n) => {
    const whole = loader(17, {}, odd);
    await take(whole, n);
    const resumed = loader(17, {}, odd);
    resumed.restore(JSON.parse(JSON.stringify(whole.state())));
    expect(await take(resumed, 4)).toEqual(await take(whole, 4));
  });
});

describe('the position', () => {
  it.each([0, 1, 2, 3, 5])('after %i batches is restored exactly', async (n) => {
    const whole = loader();
    await take(whole, n);
    const state = JSON.parse(JSON.stringify(whole.state()));
    const resumed = loader();
    resumed.restore(state);
    expect(await take(resumed, 4)).toEqual(await take(whole, 4));
  });

  it('stays when a batch cannot be read', async () => {
    let broken = true;
    const source = loader(10, {}, () => {
      if (broken) throw new Error('torn page');
      return true;
    });
    await expect(source.next()).rejects.toThrow('torn page');
    broken = false;
    expect(await take(source, 3)).toEqual(await take(loader(), 3));
  });

  it.each([
    [{ position: -1 }, /a position from 0 to 10 .* got epoch 0 and position -1/],
    [{ position: 1e9 }, /got epoch 0 and position 1000000000/],
    [{ position: 0.5 }, /position 0\.5/],
    [{ epoch: -1 }, /an epoch from 0 .* got epoch -1/],
    [{ epoch: 0.5 }, /got epoch 0\.5/],
  ])('that cannot be is refused: %j', (wrong, message) => {
    const changed = { ...(loader().state() as object), ...wrong };
    expect(() => loader().restore(changed)).toThrow(message);
  });

  it.each([
    [
      loader(11),
      /a data set of 10, now it is 11: go on with those rows \(data\.train_files, .*resume_mode=disable/,
    ],
    [loader(10, { seed: 4 }), /seed 3, now it is 4: go on with that data\.seed/],
    [loader(10, { shuffle: false }), /shuffle true, now it is false/],
    [
      loader(10, { content: 'ab' }),
      /with the rows of files, now they are those of a class \(data\.custom_cls\), SHA-256 ab: /,
    ],
  ])('of other data is refused', (other, message) => {
    expect(() => other.restore(loader().state())).toThrow(message);
  });
});

it('of rows that are made anew at every start are told by their digest', () => {
  const { content, ...rest } = loader(10, { content: 'ab' }).state();
  expect(content).toBe('ab');
  // The position in files is what it was before there were such rows.
  expect(Object.keys(loader().state())).toEqual(['epoch', 'position', 'size', 'seed', 'shuffle']);
  loader(10, { content: 'ab' }).restore({ ...rest, content });
  expect(() => loader(10, { content: 'cd' }).restore({ ...rest, content })).toThrow(
    /a class \(data\.custom_cls\), SHA-256 ab, now they are those of a class \(data\.custom_cls\), SHA-256 cd: expected the same rows/,
  );
  expect(() => loader().restore({ ...rest, content })).toThrow(/SHA-256 ab, now they are those of files/);
});

describe('permutations', () => {
  it('hold every index once', () => {
    expect(Array.from(permutation(1000, 5, 2)).sort((a, b) => a - b)).toEqual([...Array(1000).keys()]);
  });

  it('stay what they are: a run goes on with the order that it began with, also under another version', () => {
    expect([...permutation(12, 0, 0)]).toEqual([8, 10, 11, 2, 0, 7, 3, 6, 9, 1, 4, 5]);
    expect([...permutation(12, 42, 1)]).toEqual([10, 5, 9, 11, 4, 2, 6, 8, 7, 1, 3, 0]);
    expect([...permutation(12, 7, 300)]).toEqual([7, 6, 10, 1, 0, 2, 11, 9, 4, 8, 5, 3]);
    expect([...permutation(100_000, 42, 3).slice(0, 6)]).toEqual([41925, 48595, 94109, 85535, 58360, 68823]);
    expect([...chooseRows(100, 6, 42)]).toEqual([39, 51, 65, 71, 73, 74]);
  });

  it('put every index anywhere equally often', () => {
    const counts = new Int32Array(5);
    for (let seed = 0; seed < 5000; seed++) counts[permutation(5, seed, 0).indexOf(0)]!++;
    for (const count of counts) expect(Math.abs(count - 1000)).toBeLessThan(150);
  });

  it('choose rows in ascending order', () => {
    expect(Array.from(chooseRows(5, -1, 1))).toEqual([0, 1, 2, 3, 4]);
    expect(Array.from(chooseRows(5, 2, null))).toEqual([0, 1]);
    const drawn = Array.from(chooseRows(1000, 50, 1));
    expect(drawn).toEqual([...new Set(drawn)].sort((a, b) => a - b));
    expect(drawn).toHaveLength(50);
  });
});
