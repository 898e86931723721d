import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import { batchOf, CONFORMANCE, layoutsOf, TestGroups } from '../helpers/conformance';
import { expectGradients } from '../helpers/gradients';
import { floats, readSafetensors, type TestTensor } from '../helpers/safetensors';

// Optimiser steps against verl main's real engine: gradients, metrics and weights after each of three calls.
const UPDATES = path.join(CONFORMANCE, 'updates');

interface Case {
  role: 'actor' | 'critic';
  model: string;
  config: Record<string, number | string | boolean | null>;
  num_calls: number;
  calls: { metrics: Record<string, number>; metrics_single_micro?: Record<string, number> }[];
}
const COLUMNS: Record<string, string> = {
  old_log_probs: 'oldLogProbs',
  advantages: 'advantages',
  ref_log_prob: 'refLogProbs',
  rollout_is_weights: 'rolloutIsWeights',
  values: 'values',
  returns: 'returns',
};

const specOf = (name: string) =>
  JSON.parse(readFileSync(path.join(UPDATES, name, 'case.json'), 'utf8')) as Case;

const groups = new TestGroups();
let scratch: string;
beforeAll(() => {
  scratch = mkdtempSync(path.join(os.tmpdir(), 'troupe-updates-'));
});
afterAll(async () => {
  await groups.close();
  rmSync(scratch, { recursive: true, force: true });
});

function callBatch(tensors: Record<string, TestTensor>, call: number): Batch {
  const columns: Record<string, ArrayLike<number>> = {};
  for (const [theirs, ours] of Object.entries(COLUMNS)) {
    const tensor = tensors[`${call}.${theirs}`];
    if (tensor !== undefined) columns[ours] = tensor.data as Float32Array;
  }
  return batchOf(tensors, `${call}.`, columns).batch;
}

/** 99.9 % of the entries within 1e-5, all within 2e-4: AdamW turns the rounding of a tiny gradient into a whole step. */
function expectWeights(actual: Record<string, TestTensor>, expected: Record<string, TestTensor>): void {
  let entries = 0;
  let far = 0;
  for (const name of Object.keys(expected)) {
    const a = floats(actual, name);
    const b = floats(expected, name);
    expect(a.length).toBe(b.length);
    for (let i = 0; i < a.length; i++) {
      const difference = Math.abs((a[i] as number) - (b[i] as number));
      if (!(difference <= 2e-4)) throw new Error(`${name}[${i}]: ${a[i]} against ${b[i]}`);
      entries++;
      if (difference > 1e-5) far++;
    }
  }
  expect(far / entries).toBeLessThan(1e-3);
}

describe.each(
  readdirSync(UPDATES).flatMap((name) =>
    layoutsOf(path.join(CONFORMANCE, specOf(name).model)).map((layout) => ({ name, ...layout })),
  ),
)('$name on $layout', ({ name, worldSize, parallel }) => {
  let group: WorkerGroup;
  beforeAll(async () => {
    group = await groups.of(worldSize);
  });
  const dir = path.join(UPDATES, name);
  const spec = specOf(name);
  const tensors = readSafetensors(path.join(dir, 'batches.safetensors'));
  const model = path.join(CONFORMANCE, spec.model);
  const config = spec.config;
  const number = (key: string) => config[key] as number;
  const optim = { lr: number('lr'), weightDecay: number('weight_decay'), gradClip: number('grad_clip') };
  const common = {
    aggregation: config['loss_agg_mode'] as 'token-mean',
    scaleFactor: (config['loss_scale_factor'] as number | null) ?? undefined,
  };

  const create = (capacity: number) =>
    (spec.role === 'actor' ? Actor : Critic).create({
      model,
      optim,
      group,
      parallel,
      dtype: 'float32',
      maxTokensPerMicroBatch: capacity,
    });
  const update = (role: Actor | Critic, batch: Batch, miniBatchSize: number, ppoEpochs: number) =>
    role instanceof Actor
      ? role.updatePolicy(batch, {
          miniBatchSize,
          ppoEpochs,
          temperature: number('temperature'),
          loss: {
            ...common,
            mode: config['loss_mode'] as string,
            clipRatioLow: number('clip_ratio_low'),
            clipRatioHigh: number('clip_ratio_high'),
            clipRatioC: number('clip_ratio_c'),
            entropyCoeff: number('entropy_coeff'),
            useKlLoss: config['use_kl_loss'] as boolean,
            klLossCoef: number('kl_loss_coef'),
            klLossType: config['kl_loss_type'] as string,
          },
        })
      : role.updateCritic(batch, {
          miniBatchSize,
          ppoEpochs,
          clipRangeValue: number('cliprange_value'),
          ...common,
        });

  test('gradient of the first mini-batch', async () => {
    const expected = readSafetensors(path.join(dir, 'grads_call1_mini1.safetensors'));
    const role = await create(4096);
    try {
      const size = number('ppo_mini_batch_size');
      await update(role, callBatch(tensors, 0).slice(0, size), size, 1);
      await expectGradients(group, role.name, model, spec.role === 'actor' ? 'lm' : 'value', expected);
    } finally {
      await role.close();
    }
  });

  // One micro-batch per mini-batch, and several.
  const capacities = worldSize === 1 || process.env['TROUPE_TEST_EXHAUSTIVE'] === '1' ? [4096, 48] : [48];
  test.each(capacities)('weights and metrics of three calls at capacity %i', async (capacity) => {
    const role = await create(capacity);
    try {
      for (let call = 0; call < spec.num_calls; call++) {
        const metrics = await update(
          role,
          callBatch(tensors, call),
          number('ppo_mini_batch_size'),
          number('ppo_epochs'),
        );
        const recorded = spec.calls[call];
        for (const [key, value] of Object.entries({
          ...recorded?.metrics,
          ...recorded?.metrics_single_micro,
        })) {
          const ours = metrics[key];
          if (!Number.isFinite(value)) expect(Number.isFinite(ours)).toBe(false);
          else if (!(Math.abs((ours as number) - value) <= 1e-4 * Math.max(1, Math.abs(value)))) {
            throw new Error(`call ${call}: ${key} is ${ours}, expected ${value}`);
          }
        }
        const saved = path.join(scratch, `${name}-${capacity}-${call}`);
        await role.saveModel(saved);
        expectWeights(
          readSafetensors(path.join(saved, 'model.safetensors')),
          readSafetensors(path.join(dir, `weights_after_call${call + 1}.safetensors`)),
        );
      }
    } finally {
      await role.close();
    }
  });
});
