import { sampleBatch } from '../../../ts/rollout/batch';
import type { RolloutEngine, RolloutHandle } from '../../../ts/rollout/engine';
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

/** An engine of single requests, with room for 10 tokens; `result` says what becomes of each. */
function engineOf(result: (index: number, aborted: Promise<void>) => Promise<unknown>) {
  const asked: { prompt: number[]; most: number }[] = [];
  const aborted: number[] = [];
  const submit: RolloutEngine['submit'] = ({ promptIds, sampling }) => {
    const index = asked.push({ prompt: Array.from(promptIds), most: sampling.maxNewTokens }) - 1;
    let tell = (): void => undefined;
    const told = new Promise<void>((resolve) => {
      tell = resolve;
    });
    const abort = (): void => {
      aborted.push(index);
      tell();
    };
    return { result: result(index, told), abort } as unknown as RolloutHandle;
  };
  return { engine: { maxTokens: 10, submit } as unknown as RolloutEngine, asked, aborted };
}

test('when one request fails the others are given up, and the error comes when all have ended', async () => {
  let ended = 0;
  const { engine, aborted } = engineOf(async (index, told) => {
    if (index === 1) throw new Error('out of memory');
    await told;
    // A step that takes long.
    for (let i = 0; i < 10; i++) await new Promise((resolve) => setImmediate(resolve));
    ended++;
  });
  await expect(sampleBatch(engine, [[1], [2]], { maxNewTokens: 3, n: 2 })).rejects.toThrow('out of memory');
  expect(aborted).toEqual(expect.arrayContaining([0, 2, 3]));
  expect(ended).toBe(3);
});

test('prompts get the room that is left to them, and those without any are refused', async () => {
  const { engine, asked } = engineOf(async () => ({
    tokens: Int32Array.of(7),
    logProbs: Float32Array.of(-1),
  }));
  const prompts = [[1], [1, 2, 3, 4, 5, 6, 7]];
  await sampleBatch(engine, prompts, { maxNewTokens: 6, maxTokens: 8 });
  expect(asked).toEqual([
    { prompt: prompts[0], most: 6 },
    { prompt: prompts[1], most: 1 },
  ]);
  await expect(sampleBatch(engine, prompts, { maxNewTokens: 6, maxTokens: 7 })).rejects.toThrow(
    /prompt 1 has 7 tokens: expected fewer than the 7/,
  );
  await expect(sampleBatch(engine, prompts, { maxNewTokens: 3 })).resolves.toMatchObject({ size: 2 });
  await expect(sampleBatch(engine, prompts, { maxNewTokens: 4 })).rejects.toThrow(
    /prompt 1 has 7 tokens and maxNewTokens is 4: the engine has room for 10 positions/,
  );
});
