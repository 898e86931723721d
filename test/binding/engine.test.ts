import { types } from 'node:util';
import { TroupeError } from '../../ts/errors';
import type { NativeEngine, NativeRolloutOptions } from '../../ts/native/bridge';
import { loadBinding } from '../../ts/native/loader';
import {
  tinyBatch,
  tinyEngine,
  tinyMiniBatches,
  tinyPolicyBatch,
  tinyPolicyLoss,
  tinyTurn,
} from '../helpers/tiny_model';

const binding = loadBinding();
const open: NativeEngine[] = [];

async function createEngine(...options: Parameters<typeof tinyEngine>): Promise<NativeEngine> {
  const engine = await binding.createEngine(tinyEngine(...options));
  open.push(engine);
  return engine;
}

afterEach(async () => {
  for (const engine of open.splice(0)) await binding.close(engine);
});

const logProbs = (engine: NativeEngine) =>
  binding.computeLogProb(engine, tinyBatch(), 1, true, false, false, false, 0);

test('buildInfo and memoryInfo', () => {
  expect(binding.buildInfo()).toMatchObject({
    version: expect.stringMatching(/^\d+\.\d+\.\d+/),
    libtorch: expect.stringMatching(/^2\.\d+\.\d+$/),
    threads: expect.any(Number),
  });
  expect(binding.memoryInfo().peakRss).toBeGreaterThan(2 ** 24);
});

test('results are fresh arrays of the promised types, null where nothing was asked for', async () => {
  const engine = await createEngine();
  const result = await logProbs(engine);
  expect(types.isFloat32Array(result.logProbs)).toBe(true);
  expect(result.logProbs).toHaveLength(5);
  expect(result.entropy).toHaveLength(5);
  expect(result.sumPiSquared).toBeNull();
  const before = Array.from(result.logProbs);
  result.logProbs.fill(0);
  expect(Array.from((await logProbs(engine)).logProbs)).toEqual(before);
});

test('arguments are copied before the call returns', async () => {
  const engine = await createEngine();
  const expected = await logProbs(engine);
  const batch = tinyBatch();
  const call = binding.computeLogProb(engine, batch, 1, true, false, false, false, 0);
  batch.tokens.fill(-1);
  batch.seqOffsets.fill(99);
  expect(await call).toEqual(expected);
});

test('a view into a larger buffer is read from where it starts', async () => {
  const engine = await createEngine();
  const batch = tinyBatch();
  const tokens = Int32Array.of(-1, -1, ...batch.tokens, -1).subarray(2, 10);
  expect(await binding.computeLogProb(engine, { ...batch, tokens }, 1, true, false, false, false, 0)).toEqual(
    await logProbs(engine),
  );
});

test('calls of all engines run and settle in the order they were made', async () => {
  const [a, b] = [await createEngine(), await createEngine({ seed: 2 })];
  const order: string[] = [];
  const note = (name: string) => () => order.push(name);
  const before = await logProbs(a);
  const first = logProbs(a);
  const update = binding.updatePolicy(a, tinyPolicyBatch(), tinyMiniBatches, tinyPolicyLoss, 1);
  const other = logProbs(b);
  const after = logProbs(a);
  await Promise.all([
    first.then(note('a1')),
    update.then(note('a2')),
    other.then(note('b')),
    after.then(note('a3')),
    binding.learningRate(b).then(note('lr')),
  ]);
  expect(order).toEqual(['a1', 'a2', 'b', 'a3', 'lr']);
  expect(await first).toEqual(before); // queued before the update
  expect(await after).not.toEqual(before); // queued behind it
});

test('metrics are one record of numbers per mini-batch', async () => {
  const engine = await createEngine();
  const metrics = await binding.updatePolicy(engine, tinyPolicyBatch(), tinyMiniBatches, tinyPolicyLoss, 1);
  expect(metrics).toHaveLength(1);
  expect(metrics[0]).toMatchObject({ pg_loss: expect.any(Number), grad_norm: expect.any(Number) });
  expect(await binding.optimizerSteps(engine)).toBe(1);
});

test('a failing call leaves the engine usable', async () => {
  const engine = await createEngine();
  const bad = { ...tinyBatch(), tokens: Int32Array.of(1, 2, 3, 99, 5, 6, 7, 8) };
  const call = binding.computeLogProb(engine, bad, 1, false, false, false, false, 0);
  await expect(call).rejects.toBeInstanceOf(TroupeError);
  await expect(call).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: expect.stringContaining('99'),
  });
  expect((await logProbs(engine)).logProbs).toHaveLength(5);
});

test('errors of LibTorch come without a C++ backtrace', async () => {
  const options = tinyEngine();
  options.model.vocabSize = 2 ** 46; // more memory than any machine has
  await expect(binding.createEngine(options)).rejects.toMatchObject({
    code: expect.stringMatching(/^(OUT_OF_MEMORY|INVALID_MODEL)$/),
    message: expect.not.stringContaining('frame #'),
  });
});

describe('handles', () => {
  test('close waits for queued work, and may be repeated', async () => {
    const engine = await createEngine();
    const order: string[] = [];
    const call = logProbs(engine).then(() => order.push('work'));
    await Promise.all([call, binding.close(engine).then(() => order.push('closed'))]);
    expect(order).toEqual(['work', 'closed']);
    expect(await binding.close(engine)).toBeNull();
  });

  test('a closed handle says so', async () => {
    const engine = await createEngine();
    await binding.close(engine);
    await expect(logProbs(engine)).rejects.toMatchObject({
      code: 'CLOSED',
      message: 'computeLogProb.engine: this engine has been closed',
    });
    expect(() => binding.abort(engine, 'late')).toThrow('abort.engine: this engine has been closed');
  });

  test('abort ends the work and all that follows, but not close', async () => {
    const engine = await createEngine();
    binding.abort(engine, 'enough of this');
    await expect(logProbs(engine)).rejects.toMatchObject({
      code: 'ABORTED',
      message: expect.stringContaining('enough of this'),
    });
    await binding.close(engine);
  });
});

test('the losses run on arrays of the caller', async () => {
  const inputs = {
    offsets: Int32Array.of(0, 3, 5),
    responseMask: Uint8Array.of(1, 1, 1, 1, 1),
    globalTokens: 5,
    globalSequences: 2,
    logProbs: new Float32Array(5).fill(-1),
    entropy: null,
    oldLogProbs: new Float32Array(5).fill(-1),
    advantages: Float32Array.of(1, 1, 1, -1, -1),
    refLogProbs: null,
    rolloutIsWeights: null,
    givenLoss: null,
    teacherLogProbs: null,
    studentTop: null,
  };
  const result = await binding.policyLoss(inputs, tinyPolicyLoss);
  expect(result.loss).toBeCloseTo(-0.2, 6);
  expect(Array.from(result.gradLogProbs)).toEqual([-0.2, -0.2, -0.2, 0.2, 0.2].map(Math.fround));
  await expect(binding.policyLoss(inputs, { ...tinyPolicyLoss, mode: 'none such' })).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
  });
});

test('a rollout is opened again for as long as nobody has asked it for anything', async () => {
  const engine = await createEngine();
  const options: NativeRolloutOptions = {
    ...{ maxSequences: 4, maxStepTokens: 64, maxPositions: 16, kvCacheBytes: 2 ** 20, memoryShare: 1 },
    ...{
      chunkedPrefill: true,
      prefixCaching: true,
      tensorParallel: 1,
      quantization: 'none',
      latentCache: false,
      routedExperts: false,
      drafts: null,
    },
  };
  await binding.openRollout(engine, options);
  expect(
    (await binding.openRollout(engine, { ...options, kvCacheBytes: 2 ** 19 })).cacheBytes,
  ).toBeLessThanOrEqual(2 ** 19);
  await binding.rolloutTurn(engine, tinyTurn);
  await expect(binding.openRollout(engine, options)).rejects.toThrow(
    /has a rollout already, which has requests/,
  );
  await binding.rolloutTurn(engine, { ...tinyTurn, submit: [], abort: [1] });
  await binding.openRollout(engine, options);
});
