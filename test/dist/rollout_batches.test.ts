// Batches of requests in one call.
import type { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import type { BatchRequest } from '../../ts/rollout/engine';
import { promptsBatch, sampleSeeds } from '../../ts/rollout/sampling';
import { answers, prompt, tokensOf, withActor } from '../helpers/rollout_actor';

test('a batch is what its requests are one by one, while others run, and as far as they got when they are aborted', async () => {
  await withActor({ worldSize: 2, rollout: { maxNumBatchedTokens: 24 } }, async (actor) => {
    const prompts = [prompt(5, 1), prompt(30, 2), prompt(1, 3)];
    const sampling = { maxNewTokens: 20, temperature: 0.9 };
    const seeds = sampleSeeds(promptsBatch('test', prompts, 3), 3, 7);
    const other = actor.rollout.submit({
      promptIds: prompt(9, 4),
      sampling: { maxNewTokens: 60, seed: 1n, stopTokenIds: [] },
    });
    const batch = await actor.generate(prompts, { ...sampling, n: 3, seed: 7 });
    const single = await answers(
      actor,
      Array.from(seeds, (seed, j) => ({
        promptIds: prompts[Math.floor(j / 3)] as number[],
        sampling: { ...sampling, seed },
      })),
    );
    expect(single.map((_, j) => [...batch.response(j)])).toEqual(tokensOf(single));
    expect([...batch.get('rolloutLogProbs')]).toEqual(single.flatMap(({ logProbs }) => [...logProbs]));
    expect((await other.result).tokens).toHaveLength(60);
    const long = actor.generate(prompts, { ...sampling, maxNewTokens: 90, n: 3, seed: 7, stopTokenIds: [] });
    await actor.rollout.stats();
    await actor.rollout.pause('abort');
    const aborted = await long;
    await actor.rollout.resume();
    const whole = await actor.generate(prompts, {
      ...sampling,
      maxNewTokens: 90,
      n: 3,
      seed: 7,
      stopTokenIds: [],
    });
    for (let j = 0; j < 9; j++) {
      const begun = [...aborted.response(j)];
      expect([...whole.response(j)].slice(0, begun.length)).toEqual(begun);
    }
  });
});

test('a response ends where prompt and response reach maxTokens, as it does at maxNewTokens', async () => {
  await withActor({ worldSize: 2, rollout: { maxModelLen: 40 } }, async (actor) => {
    const prompts = [prompt(5, 1), prompt(30, 2), prompt(39, 3)];
    const sampling = { maxNewTokens: 20, temperature: 0.9, n: 2, seed: 7, stopTokenIds: [] };
    await expect(actor.generate(prompts, sampling)).rejects.toThrow(
      /prompt 1 has 30 tokens and maxNewTokens is 20/,
    );
    const batch = await actor.generate(prompts, { ...sampling, maxTokens: 40 });
    const lengths = Array.from({ length: 6 }, (_, j) => batch.response(j).length);
    expect(lengths).toEqual([20, 20, 10, 10, 1, 1]);
    const short = await actor.generate(prompts.slice(0, 2), { ...sampling, maxNewTokens: 10 });
    for (const j of [0, 1, 2, 3]) expect([...batch.response(j)].slice(0, 10)).toEqual([...short.response(j)]);
    await expect(actor.generate([prompt(40, 1)], { ...sampling, maxTokens: 40 })).rejects.toThrow(
      /prompt 0 has 40 tokens: expected fewer than the 40 that prompt and response may have together/,
    );
  });
});

test('of batches that wait the one of the higher priority is served first', async () => {
  await withActor({ rollout: { maxNumSeqs: 4 } }, async ({ rollout }) => {
    const order: number[] = [];
    const serve = async (priority: number): Promise<void> => {
      const prompts = promptsBatch('test', [prompt(6, 2)], 8);
      const seeds = BigUint64Array.from({ length: 8 }, (_, i) => BigInt(i));
      const sampling = { maxNewTokens: 20, stopTokenIds: [] };
      await rollout.submitBatch?.({ prompts, n: 8, sampling, seeds, priority });
      order.push(priority);
    };
    // Nothing is admitted until all are there.
    await rollout.pause('keep');
    const all = Promise.all([-2, 0, 3, -1].map(serve));
    await rollout.resume();
    await all;
    expect(order).toEqual([3, 0, -1, -2]);
    await expect(serve(Number.NaN)).rejects.toThrow(/priority: expected/);
  });
});

test('memory that goes from one batch to the next: the tokens and log-probs are those of fresh memory, and nothing of the batch before', async () => {
  const steps = (actor: Actor, recycles: boolean): Promise<number[][]> => {
    const step = async (count: number, seed: number): Promise<number[]> => {
      const prompts = Array.from({ length: count }, (_, i) => prompt(3 + ((5 * i) % 20), i));
      const batch = await actor.generate(prompts, { maxNewTokens: 12, n: 2, seed, stopTokenIds: [] });
      const { logProbs } = await actor.computeLogProb(batch, { temperature: 0.9 });
      const all = batch.with({ oldLogProbs: logProbs }, { adopt: true });
      const seen = [...all.get('tokens'), ...all.get('rolloutLogProbs'), ...all.get('oldLogProbs')];
      if (recycles) all.recycle();
      return seen;
    };
    // Longer, shorter and as long as the first.
    return [10, 11, 7, 10].reduce<Promise<number[][]>>(
      async (done, count, i) => [...(await done), await step(count, i)],
      Promise.resolve([]),
    );
  };
  const fresh = await withActor({ worldSize: 2 }, (actor) => steps(actor, false));
  const recycled = await withActor({ worldSize: 2 }, async (actor) => {
    const seen = await steps(actor, true);
    expect(actor.engine.memory.freeBytes).toBeGreaterThan(0);
    return seen;
  });
  expect(recycled).toEqual(fresh);
});

test('a batch that makes no sense is refused with what was expected, and a getter that throws is heard', async () => {
  await withActor({ worldSize: 1 }, async (actor) => {
    const prompts = promptsBatch('test', [prompt(5, 1), prompt(3, 2)], 2);
    const good = { prompts, n: 2, sampling: { maxNewTokens: 3 }, seeds: sampleSeeds(prompts, 2, 1) };
    const submit = (request: unknown): Promise<Batch> => submitBatch(actor, request);
    const cases: [unknown, RegExp][] = [
      [null, /submitBatch\] expected an options object but got null/],
      [{ ...good, prompt: [1] }, /unknown option 'prompt'; did you mean 'prompts'/],
      [{ ...good, prompts: [[1]] }, /prompts\] expected a Batch .* but got \[\[1\]\]/],
      [{ ...good, prompts: Batch.fromSequences([[1]], [[2]]) }, /none with a response, but got 1 with 1/],
      [{ ...good, prompts: prompts.slice(0, 0) }, /at least one sequence, .* but got 0/],
      [{ ...good, n: 0 }, /n: expected an integer from 1 to 65536 but got 0/],
      [{ ...good, sampling: undefined }, /sampling\] expected an options object but got undefined/],
      [
        { ...good, sampling: { maxNewTokens: 3, stop: ['x'] } },
        /sampling.stop: expected it in single requests/,
      ],
      [{ ...good, sampling: { maxNewTokens: 0 } }, /maxNewTokens: expected/],
      [
        { ...good, seeds: good.seeds.slice(1) },
        /seeds: expected a BigUint64Array of 2 prompts x 2 = 4 but got one of 3/,
      ],
      [{ ...good, seeds: [1, 2, 3, 4] }, /seeds: expected a BigUint64Array of .* but got \[1,2,3,4\]/],
      [{ ...good, maxTokens: 1 }, /maxTokens: expected an integer >= 2/],
      [{ ...good, versions: 1 }, /versions: expected true or false but got 1/],
    ];
    for (const [request, message] of cases) {
      await expect(submit(request)).rejects.toThrow(message);
      await expect(submit(request)).rejects.toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }));
    }
    const mine = new Error('mine');
    const throws = {
      get sampling(): never {
        throw mine;
      },
    };
    await expect(
      submit(Object.defineProperties({ ...good }, Object.getOwnPropertyDescriptors(throws))),
    ).rejects.toBe(mine);
    expect((await submit({ ...good, maxTokens: Number.POSITIVE_INFINITY })).size).toBe(4);
  });
});

async function submitBatch(actor: Actor, request: unknown): Promise<Batch> {
  const { rollout } = actor;
  if (rollout.submitBatch === undefined) throw new Error('the engine takes no batches');
  return await rollout.submitBatch(request as BatchRequest);
}
