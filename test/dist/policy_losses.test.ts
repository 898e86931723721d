import path from 'node:path';
import { Actor, type PolicyUpdateOptions } from '../../ts/actor/actor';
import { policyLoss } from '../../ts/actor/loss_probe';
import type { PolicyLossOptions } from '../../ts/actor/update_options';
import { type PolicyLossFunction, registerPolicyLoss } from '../../ts/algorithms/policy_losses/registry';
import { Batch } from '../../ts/batch/batch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { CONFORMANCE } from '../helpers/conformance';
import { vanillaInTypeScript } from '../helpers/policy_losses';
import { maxDifference } from '../helpers/safetensors';

const model = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');
let group: WorkerGroup;
beforeAll(async () => {
  group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
});
afterAll(() => group.close());

const fraction = (t: number, irrational: number): number => 2 * ((t * irrational) % 1) - 1;

/** Eight sequences with tool tokens, one fully masked; old and rollout log-probs near those of the model. */
async function makeBatch(actor: Actor): Promise<Batch> {
  const tokens = (i: number, n: number) => Array.from({ length: n }, (_, t) => 1 + ((31 * i + 17 * t) % 150));
  const rows = Array.from({ length: 8 }, (_, i) => i);
  const plain = Batch.fromSequences(
    rows.map((i) => tokens(i, 3)),
    rows.map((i) => tokens(i + 50, 4 + ((5 * i) % 7))),
  );
  const { logProbs } = await actor.computeLogProb(plain);
  const mask = Array.from({ length: plain.numResponseTokens }, (_, t) => (t % 6 === 4 ? 0 : 1));
  mask.fill(0, plain.responseOffsets[2], plain.responseOffsets[3]);
  const near = (scale: number, irrational: number) =>
    logProbs.map((lp, t) => lp + scale * fraction(t + 1, irrational));
  return plain.withResponseMask(mask).with({
    oldLogProbs: near(0.5, Math.SQRT2),
    rolloutLogProbs: near(0.3, Math.sqrt(3)),
    refLogProbs: near(0.4, Math.sqrt(5)),
    rolloutIsWeights: logProbs.map((_, t) => 1 + 0.5 * fraction(t + 1, Math.sqrt(11))),
    advantages: logProbs.map((_, t) => 2 * fraction(t + 1, Math.sqrt(7))),
  });
}

/** Runs on a fresh copy of the model. */
async function withActor<T>(body: (actor: Actor) => Promise<T>): Promise<T> {
  // A large eps: with the usual one AdamW makes a step of lr even of a gradient that is rounding noise.
  const optim = { lr: 1e-3, eps: 1e-3, schedule: 'cosine', totalSteps: 10 } as const;
  const actor = await Actor.create({ model, group, maxTokensPerMicroBatch: 64, optim });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

async function weights(actor: Actor): Promise<Float32Array[]> {
  const parameters = (await group.callRank(0, actor.name, 'parameters', [])) as { name: string }[];
  const tensors = [];
  for (const { name } of parameters)
    tensors.push((await group.callRank(0, actor.name, 'getTensor', ['param', name])) as Float32Array);
  return tensors;
}

const farthest = (a: Float32Array[], b: Float32Array[]): number =>
  Math.max(...a.map((tensor, i) => maxDifference(tensor, b[i] as Float32Array)));

const update = (options: PolicyUpdateOptions) =>
  withActor(async (actor) => {
    const before = await weights(actor);
    const metrics = await actor.updatePolicy(await makeBatch(actor), options);
    return { metrics, before, weights: await weights(actor) };
  });

describe('a loss in TypeScript', () => {
  test.each(['token-mean', 'seq-mean-token-mean', 'seq-mean-token-sum-norm'] as const)(
    'vanilla written in TypeScript updates as the core’s does: %s',
    async (aggregation) => {
      registerPolicyLoss('vanilla in TypeScript', vanillaInTypeScript);
      const shared = {
        aggregation,
        entropyCoeff: 0.02,
        useKlLoss: true,
        klLossCoef: 0.1,
        clipRatioHigh: 0.28,
      };
      const options = { miniBatchSize: 4, ppoEpochs: 2, temperature: 0.9 };
      const core = await update({ ...options, loss: { ...shared, mode: 'vanilla' } });
      const mine = await update({ ...options, loss: { ...shared, mode: 'vanilla in TypeScript' } });
      expect(farthest(core.weights, core.before)).toBeGreaterThan(1e-3);
      expect(farthest(mine.weights, core.weights)).toBeLessThan(1e-6);
      for (const name of ['pg_loss', 'loss', 'entropy_loss', 'kl_loss', 'grad_norm', 'lr', 'entropy']) {
        const expected = core.metrics[`actor/${name}`] as number;
        const difference = Math.abs((mine.metrics[`actor/${name}`] as number) - expected);
        expect(difference).toBeLessThanOrEqual(1e-5 * Math.max(1, Math.abs(expected)));
      }
      expect(mine.metrics).toMatchObject({ 'actor/mine': 7, 'own/loss_max': 3 });
    },
  );

  test('the derivative by entropy is that of the entropy bonus', async () => {
    const bonus: PolicyLossFunction = (inputs) => {
      const { loss, gradLogProbs } = vanillaInTypeScript(inputs);
      return {
        loss: Array.from(loss, (x, t) => x - 0.05 * (inputs.entropy[t] as number)),
        gradLogProbs,
        gradEntropy: Array.from(loss, () => -0.05),
      };
    };
    registerPolicyLoss('with a bonus', bonus);
    const core = await update({ loss: { mode: 'vanilla', entropyCoeff: 0.05 } });
    const mine = await update({ loss: { mode: 'with a bonus' } });
    const without = await update({ loss: { mode: 'vanilla' } });
    expect(farthest(mine.weights, core.weights)).toBeLessThan(1e-6);
    expect(farthest(without.weights, core.weights)).toBeGreaterThan(1e-4);
    expect(mine.metrics['actor/pg_loss']).toBeCloseTo(core.metrics['actor/loss'] as number, 5);
  });

  test('the learning-rate schedule moves once per call, whatever its mini-batches', async () => {
    registerPolicyLoss('vanilla in TypeScript', vanillaInTypeScript);
    await withActor(async (actor) => {
      const batch = await makeBatch(actor);
      await actor.updatePolicy(batch, { miniBatchSize: 2, loss: { mode: 'vanilla in TypeScript' } });
      expect(await group.callRank(0, actor.name, 'scheduleSteps', [])).toBe(1);
      expect(await actor.optimizerSteps()).toBe(4);
    });
  });

  test.each<[string, PolicyLossFunction, string, RegExp]>([
    [
      'throws',
      () => {
        throw new Error('boom');
      },
      'INVALID_ARGUMENT',
      /'broken: throws' threw: boom, at .*policy_losses\.test\.ts:\d+;/,
    ],
    [
      'returns NaN',
      (inputs) => ({ ...vanillaInTypeScript(inputs), loss: Array.from(inputs.logProbs, () => Number.NaN) }),
      'NON_FINITE',
      /returned NaN in loss\[0\]/,
    ],
    [
      'returns too little',
      (inputs) => ({ ...vanillaInTypeScript(inputs), gradLogProbs: [1, 2] }),
      'INVALID_ARGUMENT',
      /expected gradLogProbs with \d+ entries, one per response token, but got 2/,
    ],
  ])('a function that %s is one error and no step', async (what, fn, code, message) => {
    registerPolicyLoss(`broken: ${what}`, fn);
    await withActor(async (actor) => {
      const before = await weights(actor);
      const batch = await makeBatch(actor);
      await expect(actor.updatePolicy(batch, { loss: { mode: `broken: ${what}` } })).rejects.toMatchObject({
        code,
        message: expect.stringMatching(message),
      });
      expect(farthest(await weights(actor), before)).toBe(0);
      expect(await actor.optimizerSteps()).toBe(0);
      expect((await actor.updatePolicy(batch))['actor/grad_norm']).toBeGreaterThan(0);
    });
  });
});

/** What bypass mode is to do, by hand: keep sequences whose mean log ratio is small, weight the others' tokens. */
function byHand(mini: Batch, logProbs: Float32Array): { mask: number[]; isWeights: number[] } {
  const rollout = mini.get('rolloutLogProbs');
  const mask = [...mini.get('responseMask')];
  const isWeights = mask.map((m, t) =>
    m === 1 ? Math.min(Math.exp((logProbs[t] as number) - (rollout[t] as number)), 1.1) : 0,
  );
  for (let i = 0; i < mini.size; i++) {
    const [start, end] = [mini.responseOffsets[i] as number, mini.responseOffsets[i + 1] as number];
    let sum = 0;
    let count = 0;
    for (let t = start; t < end; t++) {
      if (mask[t] !== 1) continue;
      sum += (rollout[t] as number) - (logProbs[t] as number);
      count++;
    }
    const mean = sum / Math.max(count, 1);
    if (mean < Math.log(0.96) || mean > Math.log(1.05)) mask.fill(0, start, end);
  }
  return { mask, isWeights };
}

const correction = {
  rolloutIs: 'token',
  rolloutIsThreshold: 1.1,
  rolloutRs: 'seq_mean_k1',
  rolloutRsThreshold: '0.96_1.05',
} as const;

describe('bypass mode', () => {
  test.each(['ppo_clip', 'reinforce'] as const)('%s equals an update corrected by hand', async (lossType) => {
    const shared = { aggregation: 'seq-mean-token-sum', clipRatioLow: 0.1, clipRatioHigh: 0.15 } as const;
    let rejected = 0;
    let pgLoss = 0;
    const expected = await withActor(async (actor) => {
      const batch = await makeBatch(actor);
      for (const mini of batch.minibatches(4, 2)) {
        const { logProbs } = await actor.computeLogProb(mini);
        const { mask, isWeights } = byHand(mini, logProbs);
        rejected += mini.get('responseMask').reduce((n, m, t) => n + m - (mask[t] as number), 0);
        const corrected = mini
          .drop(['oldLogProbs', 'rolloutIsWeights'])
          .withResponseMask(mask)
          .with({
            oldLogProbs: mini.get('rolloutLogProbs'),
            ...(lossType === 'reinforce' ? { rolloutIsWeights: isWeights } : {}),
          });
        // The schedule moves once per call: it is held, as within one call.
        const steps = await actor.optimizerSteps();
        await group.callRank(0, actor.name, 'setSteps', [steps, 0]);
        const mode = lossType === 'reinforce' ? 'gpg' : 'vanilla';
        const metrics = await actor.updatePolicy(corrected, { loss: { ...shared, mode } });
        pgLoss += (metrics['actor/pg_loss'] as number) / 4;
      }
      return await weights(actor);
    });
    expect(rejected).toBeGreaterThan(0);
    const loss = { ...shared, mode: 'bypass_mode', rolloutCorrection: { ...correction, lossType } };
    const actual = await update({ miniBatchSize: 4, ppoEpochs: 2, loss });
    expect(farthest(actual.weights, actual.before)).toBeGreaterThan(1e-3);
    expect(farthest(actual.weights, expected)).toBeLessThan(1e-6);
    expect(actual.metrics['actor/pg_loss']).toBeCloseTo(pgLoss, 6);
    expect(actual.metrics['rollout_corr/rollout_rs_masked_fraction']).toBeGreaterThan(0);
    expect(actual.metrics['rollout_corr/rollout_is_max']).toBeCloseTo(1.1, 6);
  });

  test('token-mean divides by the tokens before rejection', async () => {
    await withActor(async (actor) => {
      const batch = await makeBatch(actor);
      const { logProbs } = await actor.computeLogProb(batch);
      const { mask, isWeights } = byHand(batch, logProbs);
      let sum = 0;
      for (const [t, kept] of mask.entries())
        if (kept)
          sum -= (batch.get('advantages')[t] as number) * (logProbs[t] as number) * (isWeights[t] as number);
      const metrics = await actor.updatePolicy(batch.drop('oldLogProbs'), {
        loss: { mode: 'bypass_mode', rolloutCorrection: { ...correction, lossType: 'reinforce' } },
      });
      const all = batch.get('responseMask').reduce((n, m) => n + m, 0);
      expect(metrics['actor/pg_loss']).toBeCloseTo(sum / all, 5);
    });
  });

  test('a mini-batch of which nothing is left is no error', async () => {
    const { metrics } = await update({
      miniBatchSize: 1,
      loss: { mode: 'bypass_mode', rolloutCorrection: { rolloutRs: 'token_k2', rolloutRsThreshold: 1e-9 } },
    });
    expect(metrics['actor/pg_loss']).toBe(0);
    expect(metrics['rollout_corr/rollout_rs_masked_fraction']).toBeCloseTo(1, 6);
  });
});

describe('policyLoss', () => {
  const inputs = {
    offsets: [0, 2, 4],
    logProbs: [-1, -2, -1, -3],
    entropy: [1, 1, 1, 1],
    oldLogProbs: [-9, -9, -9, -9],
    rolloutLogProbs: [-1.1, -2, -2, -3],
    advantages: [1, -1, 2, -2],
  };
  const at = (mode: string, options: PolicyLossOptions = {}) => policyLoss(mode, inputs, options, group);

  test('bypass_mode: reinforce and ppo_clip by hand', async () => {
    const rolloutCorrection = { rolloutRs: 'token_k2', rolloutRsThreshold: 0.1, rolloutIs: 'token' } as const;
    const reinforce = await at('bypass_mode', {
      rolloutCorrection: { ...rolloutCorrection, lossType: 'reinforce' },
    });
    const w = Math.exp(0.1);
    expect(reinforce.loss).toBeCloseTo((1 * w - 2 - 6) / 3, 6);
    const gradient = [-w / 3, 1 / 3, 0, 2 / 3].map(Math.fround);
    for (const [t, g] of gradient.entries()) expect(reinforce.gradLogProbs[t]).toBeCloseTo(g, 6);
    expect(reinforce.metrics['rollout_corr/rollout_rs_masked_fraction']).toBeCloseTo(0.25, 6);
    const clip = await at('bypass_mode', { rolloutCorrection });
    expect(clip.loss).toBeCloseTo((-w + 1 + 2) / 3, 6);
  });

  // What verl's compute_policy_loss_bypass_mode gives.
  test.each([
    ['token-mean', -0.05258548],
    ['seq-mean-token-sum', -0.10517097],
    ['seq-mean-token-mean', -0.05258548],
    ['seq-mean-token-sum-norm', -0.05258548],
  ] as const)('bypass_mode, %s: a sequence that is rejected is not counted', async (aggregation, loss) => {
    const rejecting = {
      offsets: [0, 2, 4],
      logProbs: [-1, -2, -2, -3],
      rolloutLogProbs: [-1.1, -2, -1, -3],
      advantages: [1, -1, 2, -2],
    };
    const rolloutCorrection = { rolloutRs: 'seq_sum_k1', rolloutRsThreshold: '0.8_1.2' };
    const result = await policyLoss('bypass_mode', rejecting, { aggregation, rolloutCorrection }, group);
    expect(result.loss).toBeCloseTo(loss, 6);
    const { rolloutLogProbs: oldLogProbs, ...others } = rejecting;
    const masked = { ...others, oldLogProbs, responseMask: [1, 1, 0, 0] };
    expect((await policyLoss('vanilla', masked, { aggregation }, group)).loss).toBeCloseTo(loss, 6);
  });

  // What verl's compute_policy_loss_geo_mean gives: torch.mean over all rows, those without a token too.
  test.each([
    [[1, 1, 0, 0, 1, 0], -1.1826588, -0.1841952],
    [[0, 0, 0, 0, 0, 0], 0, 0],
  ])('geo_mean is over all sequences, with the mask %j', async (responseMask, loss, gradient) => {
    const sequences = {
      offsets: [0, 2, 4, 6],
      responseMask,
      logProbs: [-1, -0.5, -2, -1, -0.25, 0],
      oldLogProbs: [-1.25, -0.5, -1, -1, -0.5, 0],
      advantages: [1, 1, -1, -1, 2, 0],
    };
    const result = await policyLoss('geo_mean', sequences, {}, group);
    expect(result.loss).toBeCloseTo(loss, 6);
    expect(result.gradLogProbs[1]).toBeCloseTo(gradient, 6);
  });

  test('a registered loss, aggregated as configured', async () => {
    registerPolicyLoss('vanilla in TypeScript', vanillaInTypeScript);
    for (const aggregation of ['token-sum', 'seq-mean-token-mean'] as const) {
      const mine = await at('vanilla in TypeScript', { aggregation, entropyCoeff: 0.1 });
      const core = await at('vanilla', { aggregation, entropyCoeff: 0.1 });
      expect(mine.loss).toBeCloseTo(core.loss, 4);
      expect(maxDifference(mine.gradLogProbs, core.gradLogProbs)).toBeLessThan(1e-6);
      expect(mine.gradEntropy).toEqual(core.gradEntropy);
    }
  });

  test('says what is missing', async () => {
    registerPolicyLoss('vanilla in TypeScript', vanillaInTypeScript);
    const { entropy: _, ...rest } = inputs;
    await expect(policyLoss('vanilla in TypeScript', rest, {}, group)).rejects.toThrow(
      /entropy, which .* is missing/,
    );
    const { oldLogProbs: __, ...bare } = rest;
    await expect(policyLoss('vanilla', bare, {}, group)).rejects.toThrow(/oldLogProbs is missing/);
    await expect(at('ppo')).rejects.toThrow(/mode: expected one of vanilla/);
  });
});
