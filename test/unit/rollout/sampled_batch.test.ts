import { promptsBatch, sampledBatch } from '../../../ts/rollout/sampling';

/** Whoever goes through it element by element, as a spread or Array.from does, fails. */
function block<A extends Int32Array | Float32Array>(array: A): A {
  return Object.defineProperty(array, Symbol.iterator, {
    value: () => {
      throw new Error('taken apart, element by element');
    },
  });
}

test('responses are joined array by array: as JavaScript lists, those of a large batch would exceed the heap', () => {
  const prompts = promptsBatch('here', [[1, 2], [3]], 2);
  const samples = [1, 300_000, 0, 2].map((length) => ({
    tokens: block(new Int32Array(length).fill(length)),
    logProbs: block(new Float32Array(length).fill(-length)),
  }));
  const batch = sampledBatch(prompts, 2, samples);
  expect([...batch.responseLens]).toEqual([1, 300_000, 0, 2]);
  expect([...batch.promptLens]).toEqual([2, 2, 1, 1]);
  expect([...batch.response(3)]).toEqual([2, 2]);
  expect([...batch.prompt(2)]).toEqual([3]);
  expect([...(batch.row('rolloutLogProbs', 0) as Float32Array)]).toEqual([-1]);
  expect(batch.response(1).every((token) => token === 300_000)).toBe(true);
});
