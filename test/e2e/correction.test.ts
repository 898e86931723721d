import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { checkPolicyLoss, loadConfig, registerPolicyLoss, Trainer } from '../../ts/index';
import { Workspace } from '../helpers/e2e_workspace';
import { vanillaInTypeScript } from '../helpers/policy_losses';

// Whole runs with rollout correction, in bypass mode, and with a policy loss written in TypeScript.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

const SHORT = ['trainer.total_training_steps=2', 'trainer.save_freq=-1', 'trainer.test_freq=-1'];

async function train(name: string, overrides: string[]): Promise<Record<string, number>[]> {
  const directory = workspace.file(name);
  const more = [
    `trainer.default_local_dir=${directory}`,
    'trainer.val_before_train=false',
    'trainer.logger=[]',
  ];
  const config = loadConfig(workspace.file('train.yaml'), [...SHORT, ...more, ...overrides]);
  await new Trainer(config, {}).fit();
  const lines = readFileSync(join(directory, 'metrics.jsonl'), 'utf8').trim().split('\n');
  // Times and memory are of the machine.
  return lines.map((line) =>
    Object.fromEntries(
      Object.entries(JSON.parse(line) as Record<string, number>).filter(
        ([key]) => !/^(timing|perf)/.test(key),
      ),
    ),
  );
}

const section = 'algorithm.rollout_correction';

test('decoupled: the rollout’s policy is that of the trainer up to rounding, and weights say so', async () => {
  const [step] = await train('decoupled', [`${section}.preset=decoupled_k3_rs_token_tis`]);
  expect(step?.['rollout_corr/rollout_is_mean']).toBeCloseTo(1, 4);
  expect(step?.['rollout_corr/rollout_rs_masked_fraction']).toBe(0);
  expect(Math.abs(step?.['rollout_corr/kl'] as number)).toBeLessThan(1e-4);
});

test.each(['bypass_ppo_clip_geo_rs', 'bypass_pg_is', 'bypass_pg_token_icepop'])(
  '%s trains',
  async (preset) => {
    const steps = await train(preset, [
      `${section}.preset=${preset}`,
      'actor_rollout_ref.actor.entropy_coeff=0.01',
    ]);
    expect(steps).toHaveLength(2);
    for (const step of steps) {
      expect(step['actor/grad_norm']).toBeGreaterThan(0);
      expect(Number.isFinite(step['rollout_corr/training_ppl'])).toBe(true);
      expect(step['actor/kl_loss']).toBeDefined();
    }
    // The second mini-batch of a step is off-policy: the model has moved.
    expect(steps[1]?.['rollout_corr/k3_kl']).toBeGreaterThan(0);
  },
);

test.each(['int8', 'fp8'])(
  'a rollout with weights of 8 bits is corrected without a key of the correction: %s',
  async (quantization) => {
    const [exact] = await train(`${quantization}_off`, []);
    expect(exact?.['rollout_corr/rollout_is_mean']).toBeUndefined();
    const steps = await train(quantization, [`actor_rollout_ref.rollout.quantization=${quantization}`]);
    expect(steps).toHaveLength(2);
    for (const step of steps) {
      // Responses are from another policy than the one that is trained, by more than rounding, and their tokens are weighed.
      expect(step['rollout_corr/kl']).not.toBe(0);
      expect(step['rollout_corr/k3_kl']).toBeGreaterThan(1e-6);
      expect(step['rollout_corr/rollout_is_max']).toBeGreaterThan(1.001);
      expect(step['rollout_corr/rollout_is_mean']).toBeCloseTo(1, 1);
      for (const [name, value] of Object.entries(step))
        expect([name, Number.isFinite(value)]).toEqual([name, true]);
    }
  },
);

test('a run with vanilla written in TypeScript equals one with the core’s', async () => {
  checkPolicyLoss(vanillaInTypeScript);
  registerPolicyLoss('mine', vanillaInTypeScript);
  const mode = 'actor_rollout_ref.actor.policy_loss.loss_mode';
  const [core, mine] = [await train('core', []), await train('mine', [`${mode}=mine`])];
  for (const [i, step] of core.entries()) {
    for (const key of ['actor/pg_loss', 'actor/kl_loss', 'actor/lr', 'critic/score/mean'])
      expect(mine[i]?.[key]).toBeCloseTo(step[key] as number, 4);
  }
});
