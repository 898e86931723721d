import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Actor } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import { loadConfig, loadSftConfig } from '../../ts/config/config';
import type { RewardFunction } from '../../ts/reward/contract/types';
import { SftTrainer } from '../../ts/trainer/sft_trainer';
import { Workspace } from '../helpers/e2e_workspace';
import { type ObservedRun, observeRun, readLines } from '../helpers/observed_run';
import { floats, maxDifference, readSafetensors } from '../helpers/safetensors';

// Whole runs that train adapters.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

const reward: RewardFunction = ({ response }) => ({
  score: [...response].filter((c) => c === '7').length / 8 - response.length / 64,
});

const LORA = ['actor_rollout_ref.model.lora_rank=4', 'actor_rollout_ref.model.lora_alpha=8'];
const SHORT = [
  'actor_rollout_ref.actor.optim.lr_warmup_steps=0',
  'trainer.total_training_steps=2',
  'trainer.test_freq=-1',
  'trainer.logger=[]',
];

const run = (name: string, ...overrides: string[]): Promise<ObservedRun> =>
  observeRun(
    workspace.file('train.yaml'),
    [...SHORT, ...overrides, `trainer.default_local_dir=${workspace.file(name)}`],
    reward,
  );

const stepsOf = ({ metrics }: ObservedRun): Record<string, number>[] =>
  metrics.filter((line) => 'actor/pg_loss' in line) as Record<string, number>[];

/** The log-probs that the untouched model gives to what was sampled. */
async function referenceLogProbs(batch: Batch): Promise<Float32Array> {
  const actor = await Actor.create({
    model: workspace.file('model'),
    device: 'cpu',
    numThreads: 1,
    optim: null,
    maxTokensPerMicroBatch: 256,
  });
  try {
    return (await actor.computeLogProb(batch)).logProbs;
  } finally {
    await actor.close();
  }
}

const stateOf = (directory: string): Buffer[] =>
  ['lora_adapter/adapter_model', 'optimizer/exp_avg', 'optimizer/exp_avg_sq'].map((file) =>
    readFileSync(join(directory, 'actor', `${file}.safetensors`)),
  );

it('GRPO with a KL loss: the reference is the actor without its adapter', async () => {
  const observed = await run('grpo', ...LORA);
  expect(observed.result).toMatchObject({ step: 2, interrupted: false });
  for (const { batch } of observed.updates) {
    expect(batch.get('refLogProbs')).toEqual(await referenceLogProbs(batch));
  }
  const [first, second] = stepsOf(observed);
  // B begins as zero: the first policy is the reference.
  expect(observed.updates[0]?.batch.get('oldLogProbs')).toEqual(
    observed.updates[0]?.batch.get('refLogProbs'),
  );
  expect(first?.['actor/kl_loss']).toBeGreaterThanOrEqual(0);
  expect(second?.['actor/kl_loss']).toBeGreaterThan(0);
  expect(first?.['actor/grad_norm']).toBeGreaterThan(0);

  const { runDirectory, finalModel } = observed.result;
  const before = readSafetensors(workspace.file('model/model.safetensors'));
  const merged = readSafetensors(join(finalModel as string, 'model.safetensors'));
  for (const name of Object.keys(before)) {
    const change = maxDifference(floats(before, name), floats(merged, name));
    expect([name, change > 0]).toEqual([name, name.includes('_proj')]);
  }
  expect(existsSync(join(runDirectory, 'final_adapter', 'adapter_config.json'))).toBe(true);
  expect(existsSync(join(runDirectory, 'global_step_2/actor/model.safetensors'))).toBe(false);
  const tensors = Object.keys(readSafetensors(join(runDirectory, 'final_adapter/adapter_model.safetensors')));
  expect(tensors).toHaveLength(2 * 2 * 7);
});

it('continues from a checkpoint to the bit, and from a PEFT adapter', async () => {
  const straight = workspace.file('straight');
  await run('straight', ...LORA);
  await run('resumed', ...LORA, 'trainer.total_training_steps=1');
  const resumed = await run('resumed', ...LORA);
  expect(resumed.updates).toHaveLength(1);
  expect(stateOf(workspace.file('resumed/global_step_2'))).toEqual(stateOf(join(straight, 'global_step_2')));
  expect(readLines(workspace.file('resumed/metrics.jsonl'))).toEqual(
    readLines(join(straight, 'metrics.jsonl')),
  );

  const adapter = join(straight, 'final_adapter');
  const started = await run('started', `actor_rollout_ref.model.lora_adapter_path=${adapter}`);
  const first = started.updates[0]?.batch as Batch;
  expect(first.get('refLogProbs')).toEqual(await referenceLogProbs(first));
  expect(maxDifference(first.get('oldLogProbs'), first.get('refLogProbs'))).toBeGreaterThan(1e-3);
  await expect(
    run(
      'wrong',
      `actor_rollout_ref.model.lora_adapter_path=${adapter}`,
      'actor_rollout_ref.model.lora_rank=2',
    ),
  ).rejects.toThrow(/rank: expected 2 but the adapter .* has 4/);
});

it('PPO: actor and critic with adapters over two workers, KL in the reward', async () => {
  const observed = await run(
    'ppo',
    ...LORA,
    'critic.model.lora_rank=2',
    'critic.model.target_modules=[q_proj,v_proj]',
    'algorithm.adv_estimator=gae',
    'algorithm.use_kl_in_reward=true',
    'actor_rollout_ref.actor.use_kl_loss=false',
    'trainer.n_gpus_per_node=2',
  );
  const steps = stepsOf(observed);
  expect(steps).toHaveLength(2);
  for (const step of steps) {
    expect(step['critic/vf_loss']).toBeGreaterThan(0);
    expect(step['actor/grad_norm']).toBeGreaterThan(0);
    expect(step['critic/grad_norm']).toBeGreaterThan(0);
  }
  expect(steps[0]?.['actor/reward_kl_penalty']).toBe(0);
  expect(steps[1]?.['actor/reward_kl_penalty']).not.toBe(0);
  const critic = join(
    observed.result.runDirectory,
    'global_step_2/critic/lora_adapter/adapter_model.safetensors',
  );
  expect(Object.keys(readSafetensors(critic)).filter((name) => !name.includes('.lora_'))).toEqual([
    'base_model.model.score.weight',
    'base_model.model.score.bias',
  ]);
});

it('SFT trains an adapter', async () => {
  const directory = workspace.file('sft');
  const config = loadSftConfig(workspace.file('sft.yaml'), [
    'model.lora_rank=4',
    'optim.lr=0.05',
    `trainer.default_local_dir=${directory}`,
    'trainer.logger=[]',
  ]);
  const result = await new SftTrainer(config, {}).fit();
  const losses = readLines(join(directory, 'metrics.jsonl')).map((line) => line['train/loss'] as number);
  expect(losses.at(-1)).toBeLessThan(losses[0] as number);
  expect(existsSync(join(result.runDirectory, 'final_adapter', 'adapter_model.safetensors'))).toBe(true);
});

it('a module that does not exist is refused by name', async () => {
  await expect(run('refused', ...LORA, 'actor_rollout_ref.model.target_modules=[qproj]')).rejects.toThrow(
    /targetModules: 'qproj' matches no linear layer/,
  );
  expect(() => loadConfig(workspace.file('train.yaml'), ['actor_rollout_ref.model.lora_rank=x'])).toThrow(
    /lora_rank: expected an integer from 0 to 65536/,
  );
});
