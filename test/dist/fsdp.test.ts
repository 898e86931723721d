import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor, type LogProbResult } from '../../ts/actor/actor';
import type { EngineOptions } from '../../ts/actor/engine_options';
import type { UpdateMetrics } from '../../ts/actor/metrics';
import { Batch } from '../../ts/batch/batch';
import type { Launcher, WorkerProcess } from '../../ts/controller/launcher';
import { createLocalLauncher } from '../../ts/controller/local_launcher';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import { WorkerDiedError } from '../../ts/errors';
import type { NativeStateBytes } from '../../ts/native/bridge';
import { CONFORMANCE } from '../helpers/conformance';
import { waitForExit } from '../helpers/fake_group';

// One model over several worker processes, with the numbers of one.
const model = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');
const criticModel = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'critic');
const VOCABULARY = 160;
const UPDATES = 10;

/** A small repeatable generator, so that a failure can be replayed. */
function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function raggedBatch(size: number, seed: number): Batch {
  const next = random(seed);
  const tokens = (n: number) => Array.from({ length: n }, () => 1 + Math.floor(next() * (VOCABULARY - 1)));
  const prompts = Array.from({ length: size }, () => tokens(1 + Math.floor(next() * 6)));
  const responses = Array.from({ length: size }, (_, i) =>
    tokens(i === 0 ? 40 : 1 + Math.floor(next() * 10)),
  );
  const mask = responses.flatMap((ids) => ids.map(() => (next() < 0.8 ? 1 : 0)));
  const batch = Batch.fromSequences(prompts, responses, { responseMask: mask });
  const column = (low: number, high: number) =>
    Float32Array.from({ length: batch.numResponseTokens }, () => low + (high - low) * next());
  return batch.with({
    oldLogProbs: column(-5.3, -4.8),
    refLogProbs: column(-5.3, -4.8),
    advantages: column(-1, 1),
    values: column(-0.3, 0.3),
    returns: column(-1, 1),
  });
}

const small: Partial<EngineOptions> = { maxTokensPerMicroBatch: 64, numThreads: 1, optim: { lr: 1e-4 } };
const actorOptions = { ...small, model };
const criticOptions = { ...small, model: criticModel };

async function withActor<T>(o: Partial<EngineOptions>, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({ ...actorOptions, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

interface ActorRun {
  before: LogProbResult;
  metrics: UpdateMetrics[];
  after: LogProbResult;
  samples: Batch;
  bytes: NativeStateBytes[];
}

async function trainActor(actor: Actor, batch: Batch, updates: number): Promise<ActorRun> {
  const before = await actor.computeLogProb(batch, { entropy: true });
  const metrics: UpdateMetrics[] = [];
  for (let i = 0; i < updates; i++) {
    metrics.push(
      await actor.updatePolicy(batch, {
        miniBatchSize: batch.size / 2,
        loss: { entropyCoeff: 0.01, useKlLoss: true, klLossCoef: 0.1 },
      }),
    );
  }
  const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));
  return {
    before,
    metrics,
    after: await actor.computeLogProb(batch),
    samples: await actor.generate(prompts, { maxNewTokens: 4, n: 2, seed: 5 }),
    bytes: await actor.engine.group.callAll(actor.name, 'stateBytes', () => []),
  };
}

/**
 * All within 1e-6, but the gradient's norm: after some updates one process with another capacity, which sums in another order,
 * moves it by up to 3e-6 on this model, too.
 */
function expectSameMetrics(actual: UpdateMetrics[], expected: UpdateMetrics[]): void {
  for (const [step, record] of expected.entries()) {
    for (const [name, value] of Object.entries(record)) {
      if (name.startsWith('perf/')) continue;
      const error = Math.abs((actual[step]?.[name] as number) - value) / Math.max(1, Math.abs(value));
      const tolerance = name.endsWith('grad_norm') && step > 0 ? 5e-6 : 1e-6;
      if (!(error <= tolerance))
        throw new Error(`update ${step}, ${name}: ${actual[step]?.[name]} but ${value}`);
    }
  }
  expect(actual).toHaveLength(expected.length);
}

function relative(actual: Float32Array, expected: Float32Array): number {
  let difference = 0;
  let norm = 0;
  for (const [i, value] of expected.entries()) {
    difference += ((actual[i] as number) - value) ** 2;
    norm += value ** 2;
  }
  return Math.sqrt(difference / norm);
}

const total = (b: NativeStateBytes): number => b.parameters + b.gradients + b.moments;

describe('an actor', () => {
  const batch = raggedBatch(10, 1);
  let one: ActorRun;
  beforeAll(async () => {
    one = await withActor({}, (actor) => trainActor(actor, batch, UPDATES));
  });

  test.each([
    [2, 'full_shard', true],
    [2, 'no_shard', false],
    [3, 'shard_grad_op', false],
    [4, 'full_shard', false],
  ] as const)(
    'over %d workers with %s (checkpointing: %s) has the numbers of one',
    async (worldSize, sharding, gradientCheckpointing) => {
      const o = { worldSize, parallel: { sharding }, gradientCheckpointing };
      const many = await withActor(o, (actor) => trainActor(actor, batch, UPDATES));
      expect(many.before).toEqual(one.before); // bitwise
      expectSameMetrics(many.metrics, one.metrics);
      expect(relative(many.after.logProbs, one.after.logProbs)).toBeLessThan(1e-6);
      expect(many.samples.get('tokens')).toEqual(one.samples.get('tokens'));
      const share = total(one.bytes[0] as NativeStateBytes) / (sharding === 'no_shard' ? 1 : worldSize);
      for (const bytes of many.bytes) expect(Math.abs(total(bytes) / share - 1)).toBeLessThan(0.1);
    },
  );

  test('with fewer sequences than workers, and one much longer than the rest', async () => {
    const two = batch.slice(0, 2);
    const expected = await withActor({}, (actor) => trainActor(actor, two, 2));
    const actual = await withActor({ worldSize: 3 }, (actor) => trainActor(actor, two, 2));
    expect(actual.before).toEqual(expected.before);
    expectSameMetrics(actual.metrics, expected.metrics);
    expect(actual.samples.get('tokens')).toEqual(expected.samples.get('tokens'));
  });

  test('learns the same from supervised batches', async () => {
    const sft = (actor: Actor) => actor.updateSft(batch);
    expectSameMetrics([await withActor({ worldSize: 2 }, sft)], [await withActor({}, sft)]);
  });

  test('saved by two workers is loaded by three and by one', async () => {
    const dir = mkdtempSync(path.join(tmpdir(), 'troupe-fsdp-'));
    const checkpoint = path.join(dir, 'checkpoint');
    const next = (actor: Actor) => trainActor(actor, batch, 2);
    try {
      const went = await withActor({ worldSize: 2 }, async (actor) => {
        await trainActor(actor, batch, 2);
        await actor.saveCheckpoint(checkpoint);
        await actor.saveModel(path.join(dir, 'model'));
        return next(actor);
      });
      for (const worldSize of [3, 1]) {
        const resumed = await withActor({ worldSize }, async (actor) => {
          await actor.loadCheckpoint(checkpoint);
          expect(await actor.optimizerSteps()).toBe(4);
          return next(actor);
        });
        expect(resumed.before).toEqual(went.before); // bitwise
        expectSameMetrics(resumed.metrics, went.metrics);
      }
      const saved = { model: path.join(dir, 'model'), optim: null };
      const loaded = await withActor(saved, (actor) => actor.computeLogProb(batch, { entropy: true }));
      // The fixture is stored in float32, so nothing is lost on the way.
      expect(loaded).toEqual(went.before);
    } finally {
      rmSync(dir, { recursive: true });
    }
  });

  test('refuses what is not there yet', async () => {
    const create = (o: Partial<EngineOptions>) => withActor(o, async () => undefined);
    await expect(create({ worldSize: 4, parallel: { fsdpSize: 2 } })).rejects.toThrow(
      /fsdpSize 2: expected -1, 1 or at least worldSize = 4/,
    );
    await expect(create({ worldSize: 2, parallel: { ulysses: 2 } })).rejects.toThrow(
      /ulysses 2: not in this release/,
    );
  });
});

test('a critic over three workers has the numbers of one', async () => {
  const batch = raggedBatch(8, 2);
  const run = async (o: Partial<EngineOptions>) => {
    const critic = await Critic.create({ ...criticOptions, ...o });
    const metrics: UpdateMetrics[] = [];
    try {
      const before = await critic.computeValues(batch);
      for (let i = 0; i < UPDATES; i++) metrics.push(await critic.updateCritic(batch, { miniBatchSize: 4 }));
      return { before, metrics, after: await critic.computeValues(batch) };
    } finally {
      await critic.close();
    }
  };
  const one = await run({});
  const many = await run({ worldSize: 3, gradientCheckpointing: true });
  expect(many.before).toEqual(one.before);
  expectSameMetrics(many.metrics, one.metrics);
  expect(relative(many.after.values, one.after.values)).toBeLessThan(1e-6);
});

describe('a group that loses a worker', () => {
  const batch = raggedBatch(9, 3);
  let group: WorkerGroup;
  let processes: WorkerProcess[];
  beforeEach(async () => {
    processes = [];
    const local = createLocalLauncher();
    const launcher: Launcher = {
      start(spec) {
        const worker = local.start(spec);
        processes.push(worker);
        return worker;
      },
    };
    group = await WorkerGroup.launch({ worldSize: 3, device: 'cpu', launcher, deadTimeoutMs: 2000 });
  });
  afterEach(() => group.close());

  async function deathOf(call: Promise<unknown>): Promise<WorkerDiedError> {
    const error = await call.then(
      () => null,
      (reason: unknown) => reason,
    );
    expect(error).toBeInstanceOf(WorkerDiedError);
    return error as WorkerDiedError;
  }

  test.each(['SIGKILL', 'SIGSTOP'] as const)(
    'to %s fails once, by name, and leaves nothing',
    async (signal) => {
      const actor = await Actor.create({ ...actorOptions, group });
      group.setPhase('update_actor');
      const update = actor.updatePolicy(batch, { ppoEpochs: 100_000 });
      setTimeout(() => process.kill(processes[1]?.pid as number, signal), 400);
      const error = await deathOf(update);
      expect(error).toMatchObject({ rank: 1, phase: 'update_actor' });
      expect(error.message).toMatch(
        /Its peers were in a collective: rank [02]: \w+ #\d+ of [\w. -]+ \(\w+\)/,
      );
      expect(await deathOf(actor.computeLogProb(batch))).toBe(error);
      for (const worker of processes) await waitForExit(worker.pid as number, 3000);
    },
  );

  test('a rank that throws alone ends the group with its own error', async () => {
    const actor = await Actor.create({ ...actorOptions, group });
    group.setPhase('old_log_prob');
    const tokens = {
      tokens: Int32Array.of(1, 2),
      seqOffsets: Int32Array.of(0, 2),
      promptLens: Int32Array.of(1),
    };
    const bad = { ...tokens, tokens: Int32Array.of(1, 100_000) };
    const call = group.callAll(actor.name, 'computeLogProb', (rank) => [
      rank === 2 ? bad : tokens,
      1,
      false,
      false,
    ]);
    await expect(call).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringMatching(
        /rank 2 failed in phase old_log_prob \(computeLogProb of 'actor'\): .*100000[\s\S]*Its peers were in a collective: rank 0: \w+ #\d+ of micro-batch counts \(start\)/,
      ),
    });
    for (const worker of processes) await waitForExit(worker.pid as number, 3000);
  });
});
