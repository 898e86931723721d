import { BatchLoader } from '../../../ts/data/loader';
import { chooseRows, permutation } from '../../../ts/data/shuffle';

const loader = (size = 10, options = {}) =>
  new BatchLoader(size, { batchSize: 4, shuffle: true, seed: 3, ...options });
const take = (source: BatchLoader, n: number) =>
  Array.from({ length: n }, () => {
    const { indices, epoch } = source.next();
    return { indices: Array.from(indices), epoch };
  });

describe('batches', () => {
  it('drop the rest of an epoch, and never repeat a sample within one', () => {
    const batches = take(loader(), 6);
    expect(loader().batchesPerEpoch).toBe(2);
    expect(batches.map(({ epoch }) => epoch)).toEqual([0, 0, 1, 1, 2, 2]);
    for (const epoch of [0, 1, 2]) {
      const seen = batches.filter((batch) => batch.epoch === epoch).flatMap(({ indices }) => indices);
      expect(new Set(seen).size).toBe(8);
    }
  });

  it('come in a new order every epoch, the same for the same seed', () => {
    const [first, , second] = take(loader(), 4);
    expect(first?.indices).not.toEqual(second?.indices);
    expect(take(loader(), 4)).toEqual(take(loader(), 4));
    expect(take(loader(10, { seed: 4 }), 2)).not.toEqual(take(loader(), 2));
  });

  it('keep the order of the file without shuffling', () => {
    expect(take(loader(9, { shuffle: false }), 3).map(({ indices }) => indices)).toEqual([
      [0, 1, 2, 3],
      [4, 5, 6, 7],
      [0, 1, 2, 3],
    ]);
  });

  it('larger than the data set are an error', () => {
    expect(() => loader(3)).toThrow(/3 usable samples, fewer than one batch \(data\.train_batch_size 4\)/);
  });
});

describe('the position', () => {
  it.each([0, 1, 2, 3, 5])('after %i batches is restored exactly', (n) => {
    const whole = loader();
    take(whole, n);
    const state = JSON.parse(JSON.stringify(whole.state()));
    const resumed = loader();
    resumed.restore(state);
    expect(take(resumed, 4)).toEqual(take(whole, 4));
  });

  it.each([
    [loader(11), /a data set of 10, now it is 11/],
    [loader(10, { seed: 4 }), /seed 3, now it is 4/],
    [loader(10, { shuffle: false }), /shuffle true, now it is false/],
  ])('of other data is refused', (other, message) => {
    expect(() => other.restore(loader().state())).toThrow(message);
  });
});

describe('permutations', () => {
  it('hold every index once', () => {
    expect(Array.from(permutation(1000, 5, 2)).sort((a, b) => a - b)).toEqual([...Array(1000).keys()]);
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
