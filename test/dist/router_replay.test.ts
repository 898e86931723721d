import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { CONFORMANCE } from '../helpers/conformance';
import { raggedBatch } from '../helpers/sharded';

// Updates of a mixture send tokens where a forward, or the rollout, sent them. The core alone, on every layout: test/native/router_replay_test.cc.
const model = path.join(CONFORMANCE, 'models', 'qwen3_moe', 'actor');

async function withActor<T>(o: Partial<ActorOptions>, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({
    maxTokensPerMicroBatch: 64,
    numThreads: 1,
    optim: { lr: 0.02 },
    model,
    ...o,
  });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

/** Of every sequence, what was chosen at the positions that are computed. */
const computed = (batch: Batch, experts: readonly Uint8Array[] | undefined): Uint8Array[] =>
  (experts ?? []).map((own, i) =>
    own.subarray(0, own.length - own.length / (batch.sequenceLens[i] as number)),
  );

test.each<Partial<ActorOptions>>([
  {},
  { worldSize: 2, parallel: { ep: 2 } },
  { worldSize: 2, parallel: { cp: 2 } },
])('recorded by computeLogProb, replayed by updates: %j', async (layout) => {
  const batch = raggedBatch(9, 3, 100).drop('oldLogProbs');
  await withActor(layout, async (actor) => {
    const before = await actor.computeLogProb(batch, { recordExperts: true });
    const recorded = batch.with({ oldLogProbs: before.logProbs, routedExperts: before.routedExperts });
    const first = await actor.updatePolicy(recorded, { replayExperts: true, ppoEpochs: 3 });
    expect(first['actor/grad_norm']).toBeGreaterThan(0);
    const chosen = await actor.computeLogProb(recorded, { recordExperts: true });
    const replayed = await actor.computeLogProb(recorded, { recordExperts: true, replayExperts: true });
    // The weights have moved so far that the routers would choose others.
    expect(computed(batch, chosen.routedExperts)).not.toEqual(computed(batch, before.routedExperts));
    expect(computed(batch, replayed.routedExperts)).toEqual(computed(batch, before.routedExperts));
    const again = recorded.drop('oldLogProbs').with({ oldLogProbs: replayed.logProbs });
    expect((await actor.updatePolicy(again, { replayExperts: true }))['actor/ppo_kl']).toBe(0);
    expect((await actor.updatePolicy(again, {}))['actor/ppo_kl']).not.toBe(0);
  });
});

test('recorded by the rollout, as computeLogProb finds them', async () => {
  await withActor({ rollout: { routedExperts: true, maxNumBatchedTokens: 24 } }, async (actor) => {
    const prompts = [[5, 6, 7, 8], Array.from({ length: 40 }, (_, i) => (7 * i) % 60), [9]];
    const batch = await actor.generate(prompts, { maxNewTokens: 12, n: 2 });
    const experts = batch.get('routedExperts');
    const again = await actor.computeLogProb(batch, { recordExperts: true });
    expect(experts.map(({ length }) => length)).toEqual(again.routedExperts?.map(({ length }) => length));
    const [got, expected] = [experts, again.routedExperts].map((column) => computed(batch, column));
    const total = expected?.reduce((sum, own) => sum + own.length, 0) as number;
    let same = 0;
    for (const [i, own] of (got ?? []).entries())
      same += own.filter((e, k) => e === expected?.[i]?.[k]).length;
    expect(same / total).toBeGreaterThan(0.99); // all, where products are our own
    const replayed = await actor.computeLogProb(batch, { replayExperts: true });
    expect(
      Math.max(...replayed.logProbs.map((x, t) => Math.abs(x - (batch.get('rolloutLogProbs')[t] as number)))),
    ).toBeLessThan(1e-4);
    expect(() =>
      actor.rollout.submit({ promptIds: [1], sampling: { maxNewTokens: 2, stop: ['x'] } }),
    ).toThrow(/ends responses by stopTokenIds alone/);
  });
});

test('of a request that is given up: where the tokens went that it has', async () => {
  await withActor({ rollout: { routedExperts: true } }, async (actor) => {
    const promptIds = Array.from({ length: 40 }, (_, i) => (7 * i) % 60);
    let asked = 0;
    const next = (): null => {
      if (++asked === 5) handle.abort();
      return null;
    };
    const sampling = { maxNewTokens: 12, stopTokenIds: [], seed: 3n, constraint: { next } };
    const handle = actor.rollout.submit({ promptIds, sampling });
    const { finishReason, tokens, routedExperts } = await handle.result;
    expect([finishReason, tokens.length]).toEqual(['abort', 4]);
    const batch = Batch.fromSequences([promptIds], [tokens]);
    const { routedExperts: again } = await actor.computeLogProb(batch, { recordExperts: true });
    const [got, expected] = [[routedExperts as Uint8Array], again].map(
      (column) => computed(batch, column)[0] as Uint8Array,
    ) as [Uint8Array, Uint8Array];
    expect(got).toHaveLength(expected.length);
    const same = got.filter((e, k) => e === expected[k]).length;
    expect(same / got.length).toBeGreaterThan(0.99); // all, where products are our own
  });
});

test('a model without experts has nothing to record', async () => {
  const dense = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');
  await expect(
    withActor({ model: dense, rollout: { routedExperts: true } }, async () => null),
  ).rejects.toThrow(/rollout options\.routedExperts.*this qwen3 model has no experts/);
  await withActor({ model: dense }, async (actor) => {
    await expect(actor.computeLogProb(raggedBatch(3, 3), { recordExperts: true })).rejects.toThrow(
      /no experts/,
    );
    await expect(actor.updatePolicy(raggedBatch(3, 3), { replayExperts: true })).rejects.toThrow(
      /no experts/,
    );
  });
});
