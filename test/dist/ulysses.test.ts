import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import type { PolicyLossOptions } from '../../ts/actor/update_options';
import { Batch } from '../../ts/batch/batch';
import { Critic } from '../../ts/critic/critic';
import type { UpdateMetrics } from '../../ts/engine/engine_metrics';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { CONFORMANCE } from '../helpers/conformance';
import { observedGroup } from '../helpers/observed_group';
import { expectSameMetrics, relative } from '../helpers/sharded';

// Workers that share micro-batches (Ulysses sequence parallelism) have the numbers of one. The core alone, at more sizes:
// test/native/ulysses_test.cc.
const MODELS = path.join(CONFORMANCE, 'models');
const UPDATES = 10;

const modelOf = (name: string): string => path.join(MODELS, name, 'actor');

/** `size` sequences of 40 to 63 tokens, so that a mini-batch has rows on several ranks; each prompt has two responses. */
function longBatch(size: number, vocabulary: number): Batch {
  const ids = (n: number, from: number): number[] =>
    Array.from({ length: n }, (_, i) => 1 + ((from * 37 + i * i * 11 + i) % (vocabulary - 1)));
  const prompts = Array.from({ length: size }, (_, i) => ids(9 + (i >> 1), i >> 1));
  const responses = Array.from({ length: size }, (_, i) => ids(31 + ((i * 13) % 18), i + 50));
  const mask = responses.flatMap((tokens, i) => tokens.map((_, t) => ((t + i) % 7 === 3 ? 0 : 1)));
  const batch = Batch.fromSequences(prompts, responses, { responseMask: mask });
  const column = (phase: number): Float32Array =>
    Float32Array.from({ length: batch.numResponseTokens }, (_, t) => Math.sin(phase + 1.3 * t));
  return batch.with({
    oldLogProbs: column(0).map((x) => 0.2 * x - 5),
    refLogProbs: column(4).map((x) => 0.2 * x - 5),
    advantages: column(1),
    values: column(2).map((x) => 0.3 * x),
    returns: column(3),
  });
}

const engine: Partial<EngineOptions> = { maxTokensPerMicroBatch: 200, numThreads: 1, optim: { lr: 1e-4 } };
const WITH_KL: PolicyLossOptions = { entropyCoeff: 0.01, useKlLoss: true, klLossCoef: 0.1 };

async function withActor<T>(
  o: Partial<EngineOptions> & { model: string },
  body: (actor: Actor) => Promise<T>,
): Promise<T> {
  const actor = await Actor.create({ ...engine, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

async function trainActor(actor: Actor, batch: Batch, updates: number, loss: PolicyLossOptions = WITH_KL) {
  const before = await actor.computeLogProb(batch, { entropy: true, sumPiSquared: true });
  const metrics: UpdateMetrics[] = [];
  for (let i = 0; i < updates; i++)
    metrics.push(await actor.updatePolicy(batch, { miniBatchSize: batch.size / 2, loss }));
  const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));
  const samples = await actor.generate(prompts, { maxNewTokens: 4, n: 2, seed: 5 });
  return { before, metrics, after: await actor.computeLogProb(batch), samples };
}

type Run = Awaited<ReturnType<typeof trainActor>>;

function expectSame(actual: Run, expected: Run): void {
  expect(actual.before).toEqual(expected.before); // bitwise
  expectSameMetrics(actual.metrics, expected.metrics);
  expect(relative(actual.after.logProbs, expected.after.logProbs)).toBeLessThan(1e-6);
  expect(actual.samples.get('tokens')).toEqual(expected.samples.get('tokens'));
}

describe('an actor over four workers, two to a sequence', () => {
  const model = modelOf('qwen3_headdim');
  const batch = longBatch(12, 160);
  let one: Run;
  beforeAll(async () => {
    one = await withActor({ model }, (actor) => trainActor(actor, batch, UPDATES));
  });

  test.each([
    ['full_shard', true],
    ['no_shard', false],
  ] as const)(
    'with %s (checkpointing: %s) has the numbers of one',
    async (sharding, gradientCheckpointing) => {
      const o = { model, worldSize: 4, parallel: { ulysses: 2, sharding }, gradientCheckpointing };
      expectSame(await withActor(o, (actor) => trainActor(actor, batch, UPDATES)), one);
    },
  );

  test('and with fewer sequences than groups', async () => {
    const two = batch.slice(0, 2);
    const run = (actor: Actor) => trainActor(actor, two, 2);
    const expected = await withActor({ model }, run);
    expectSame(await withActor({ model, worldSize: 4, parallel: { ulysses: 2 } }, run), expected);
  });

  test('with adapters, and the reference below them', async () => {
    const lora = { rank: 4, alpha: 8 };
    const run = async (actor: Actor) => ({
      ...(await trainActor(actor, batch, 3)),
      reference: await actor.computeLogProb(batch, { disableAdapter: true }),
    });
    const expected = await withActor({ model, lora }, run);
    const actual = await withActor({ model, lora, worldSize: 4, parallel: { ulysses: 2 } }, run);
    expectSame(actual, expected);
    expect(actual.reference).toEqual(expected.reference);
  });
});

test.each([
  ['llama3_rope_tied', 4, 200], // one key head for four ranks
  ['mistral_swa', 2, 140],
  ['gemma2', 2, 150],
  ['gemma3_text', 2, 128],
  ['smollm3', 2, 128],
  ['olmo3', 2, 128],
  ['granite', 2, 128],
  ['granitemoe', 2, 128],
  ['glm4', 2, 128],
  ['gpt2', 2, 130],
  ['qwen3_moe', 2, 120],
  ['qwen3_next', 2, 128],
  ['nemotron_h', 2, 128],
  ['olmo_hybrid', 2, 128],
  ['lfm2', 4, 128],
  ['lfm2_moe', 2, 128],
  ['gemma4_moe', 2, 128],
  ['gemma4_shared', 4, 128],
  ['apertus', 2, 128],
])('%s, all %d workers to a sequence', async (name, worldSize, vocabulary) => {
  const batch = longBatch(8, vocabulary);
  const model = modelOf(name);
  const run = (actor: Actor) => trainActor(actor, batch, 2);
  const expected = await withActor({ model }, run);
  expectSame(await withActor({ model, worldSize, parallel: { ulysses: worldSize } }, run), expected);
});

test.each<PolicyLossOptions>([
  { mode: 'gspo', entropyCoeff: 0.01 },
  { mode: 'geo_mean' },
  { mode: 'kl_cov', klCovRatio: 0.1 },
  // Prepared here, from log-probs of every mini-batch.
  { mode: 'bypass_mode', rolloutCorrection: { rolloutRs: 'token_k2', rolloutRsThreshold: 0.01 } },
])('a loss that needs whole sequences: %j', async (loss) => {
  const plain = longBatch(8, 160);
  const batch = plain.with({ rolloutLogProbs: plain.get('oldLogProbs') });
  const model = modelOf('qwen3_headdim');
  const run = (actor: Actor) => trainActor(actor, batch, 3, loss);
  const expected = await withActor({ model }, run);
  expectSame(await withActor({ model, worldSize: 2, parallel: { ulysses: 2 } }, run), expected);
});

test('a critic over four workers, two to a sequence, and supervised updates', async () => {
  const batch = longBatch(12, 160);
  const model = path.join(MODELS, 'qwen3_headdim', 'critic');
  const run = async (o: Partial<EngineOptions>) => {
    const critic = await Critic.create({ ...engine, model, ...o });
    try {
      const before = await critic.computeValues(batch);
      const metrics: UpdateMetrics[] = [];
      for (let i = 0; i < UPDATES; i++) metrics.push(await critic.updateCritic(batch, { miniBatchSize: 6 }));
      return { before, metrics, after: await critic.computeValues(batch) };
    } finally {
      await critic.close();
    }
  };
  const shared = { worldSize: 4, parallel: { ulysses: 2 }, gradientCheckpointing: true };
  const [one, many] = [await run({}), await run(shared)];
  expect(many.before).toEqual(one.before);
  expectSameMetrics(many.metrics, one.metrics);
  expect(relative(many.after.values, one.after.values)).toBeLessThan(1e-6);

  const sft = (actor: Actor) => actor.updateSft(batch);
  const actorModel = modelOf('qwen3_headdim');
  expectSameMetrics(
    [await withActor({ model: actorModel, ...shared }, sft)],
    [await withActor({ model: actorModel }, sft)],
  );
});

test('a worker that dies while its neighbours exchange ends the group with an error that names it', async () => {
  const { group, processes } = await observedGroup({ worldSize: 4, device: 'cpu' });
  try {
    const actor = await Actor.create({
      ...engine,
      model: modelOf('qwen3_headdim'),
      group,
      parallel: { ulysses: 2, sharding: 'no_shard' },
    });
    group.setPhase('update_actor');
    // Many micro-batches, and nearly no collective but those around attention; one call, so that no worker is ever between two.
    const call = actor.updatePolicy(longBatch(100, 160), { ppoEpochs: 100_000 });
    setTimeout(() => process.kill(processes[1]?.pid as number, 'SIGKILL'), 300);
    await expect(call).rejects.toMatchObject({ rank: 1, phase: 'update_actor', signal: 'SIGKILL' });
    // Its neighbour is named with the collective; which one exactly: test/native/ulysses_volume_test.cc.
    await expect(call).rejects.toThrow(
      /Its peers were in a collective: rank 0: \w+ #\d+ of [\w. -]+ \((start|forward|backward|optimizer)\)/,
    );
  } finally {
    await group.close();
  }
});

test('numbers of workers that make no sense are refused before a worker starts', async () => {
  const model = modelOf('qwen3_headdim');
  const create = (o: Partial<EngineOptions>) => withActor({ model, ...o }, async () => undefined);
  await expect(create({ worldSize: 4, parallel: { ulysses: 3 } })).rejects.toThrow(
    /parallel\.ulysses 3: expected a divisor of worldSize = 4/,
  );
  await expect(create({ worldSize: 8, parallel: { ulysses: 8 } })).rejects.toThrow(
    /parallel\.ulysses 8: expected a divisor of the 4 attention heads of the model in .*qwen3_headdim/,
  );
});
