import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { CONFORMANCE } from '../../helpers/conformance';
import { ppo, read, runDirectory, trainer } from '../../helpers/fake_run';

describe('the recipe', () => {
  test('grpo: generate, evaluate, update, with validation and saving where due', async () => {
    const run = trainer({
      overrides: ['trainer.total_training_steps=2', 'trainer.save_freq=2', 'trainer.test_freq=2'],
    });
    const result = await run.trainer.fit();
    expect(run.engines.calls).toEqual([
      'generate', // validation before training
      'generate',
      'actor.computeLogProb',
      'updatePolicy',
      'generate',
      'actor.computeLogProb',
      'updatePolicy',
      'generate', // validation
      'actor.saveCheckpoint',
      'saveModel',
      'close',
    ]);
    expect(result).toMatchObject({
      step: 2,
      interrupted: false,
      finalModel: join(run.directory, 'final_model'),
    });
    expect(result.validation).toHaveProperty(['val-core/fake/acc/mean@1']);
    const lines = read(run.directory, 'metrics.jsonl').trim().split('\n');
    expect(lines).toHaveLength(3);
    for (const name of [
      'critic/score/mean',
      'actor/entropy',
      'training/rollout_probs_diff_max',
      'training/global_step',
    ]) {
      expect(lines[1]).toContain(`"${name}"`);
    }
    expect(lines[1]).not.toMatch(/timing_|perf\//);
    expect(read(run.directory, 'timings.jsonl')).toMatch(/timing_s\/update_actor.*perf\/throughput/);
    expect(readdirSync(join(run.directory, 'samples')).sort()).toEqual([
      '1.jsonl',
      '2.jsonl',
      'validation_0.jsonl',
      'validation_2.jsonl',
    ]);
  });

  test('ppo with KL in the reward: reference, values, critic before actor, critic warm-up', async () => {
    const overrides = [
      ...ppo,
      'trainer.total_training_steps=2',
      'trainer.critic_warmup=2',
      'trainer.val_before_train=false',
    ];
    const run = trainer({ overrides });
    await run.trainer.fit();
    const evaluate = [
      'generate',
      'actor.computeLogProb',
      'ref.computeLogProb',
      'computeValues',
      'updateCritic',
    ];
    expect(run.engines.calls).toEqual([...evaluate, ...evaluate, 'updatePolicy', 'saveModel', 'close']);
    expect(read(run.directory, 'metrics.jsonl')).toMatch(
      /"critic\/vf_explained_var".*"actor\/reward_kl_penalty_coeff"|reward_kl_penalty_coeff.*vf_explained_var/,
    );
  });

  test('mini-batches count sequences: prompts times n', async () => {
    const run = trainer({ overrides: ['trainer.total_training_steps=1', 'trainer.val_before_train=false'] });
    await run.trainer.fit();
    expect(run.engines.updateOptions).toMatchObject({ miniBatchSize: 4, ppoEpochs: 1, temperature: 1 });
  });

  test('the z-loss of routers reaches both updates', async () => {
    const coefs = ['actor_rollout_ref.actor.router_z_loss_coef=0.002', 'critic.router_z_loss_coef=0.003'];
    const run = trainer({ overrides: [...ppo, 'trainer.total_training_steps=1', ...coefs] });
    await run.trainer.fit();
    expect(run.engines.updateOptions).toMatchObject({ loss: { routerZLossCoef: 0.002 } });
    expect(run.engines.criticOptions).toMatchObject({ routerZLossCoef: 0.003 });
  });

  test.each([
    ['actor_rollout_ref.actor.router_aux_loss_coef', 'actor_rollout_ref.model.path'],
    ['actor_rollout_ref.actor.router_z_loss_coef', 'actor_rollout_ref.model.path'],
    ['critic.router_z_loss_coef', 'critic.model.path'],
  ])('%s needs a model with experts before anything is loaded', async (key, model) => {
    const over = (name: string) => {
      const dir = join(CONFORMANCE, 'models', name, 'actor');
      const steps = ['trainer.total_training_steps=1', 'trainer.val_before_train=false'];
      return trainer({ overrides: [...ppo, ...steps, `${model}=${dir}`, `${key}=0.01`] });
    };
    const dense = over('qwen2_tied');
    await expect(dense.trainer.fit()).rejects.toThrow(
      new RegExp(`^${key}: the model in .*qwen2_tied/actor has no experts: expected 0, got 0.01`),
    );
    expect(dense.engines.calls).toEqual([]);
    await over('qwen3_moe').trainer.fit();
  });

  test('remax generates greedy answers for its baseline', async () => {
    const overrides = [
      'algorithm.adv_estimator=remax',
      'trainer.total_training_steps=1',
      'trainer.val_before_train=false',
    ];
    const run = trainer({ overrides });
    await run.trainer.fit();
    expect(run.engines.calls.slice(0, 3)).toEqual(['generate', 'generate', 'actor.computeLogProb']);
  });

  test('remax leaves nothing of rewards that are equal, also where float32 does not hold them', async () => {
    const overrides = ['algorithm.adv_estimator=remax', 'trainer.val_before_train=false'];
    const run = trainer({ overrides, options: { reward: () => 0.1 } });
    await run.trainer.fit();
    for (const update of run.engines.updates) expect(new Set(update.get('advantages'))).toEqual(new Set([0]));
  });

  test('a file in the place of the run directory is named with its key', async () => {
    const directory = join(runDirectory(), 'file');
    writeFileSync(directory, '');
    await expect(trainer({ directory }).trainer.fit()).rejects.toMatchObject({
      code: 'IO',
      message: `trainer.default_local_dir ${directory} is a file: expected a directory, or a path where nothing is yet`,
    });
  });

  test('val_only validates and trains nothing', async () => {
    const run = trainer({ overrides: ['trainer.val_only=true'] });
    const result = await run.trainer.fit();
    expect(run.engines.calls).toEqual(['generate', 'close']);
    expect(result.finalModel).toBeNull();
  });
});

describe('rollout correction', () => {
  const correction = 'algorithm.rollout_correction';
  const once = ['trainer.total_training_steps=1', 'trainer.val_before_train=false'];
  const metricsOf = async (overrides: string[]) => {
    const run = trainer({ overrides: [...once, ...overrides] });
    await run.trainer.fit();
    const [line] = read(run.directory, 'metrics.jsonl').trim().split('\n');
    return {
      calls: run.engines.calls,
      batch: run.engines.updates.at(-1),
      metrics: JSON.parse(line as string),
    };
  };

  test('its metrics are logged when nothing is corrected', async () => {
    const { metrics, batch } = await metricsOf([]);
    expect(metrics['rollout_corr/kl']).toBe(0);
    expect(metrics).not.toHaveProperty(['rollout_corr/rollout_is_mean']);
    expect(batch?.has('rolloutIsWeights')).toBe(false);
  });

  test('weights and rejection reach the update', async () => {
    // The fake engines sample and evaluate by one function of the token's place, from the same weights: ratios of 1.
    const { metrics, batch } = await metricsOf([`${correction}.preset=decoupled_geo_rs_token_tis`]);
    expect(metrics['rollout_corr/rollout_is_mean']).toBeCloseTo(1, 6);
    expect(metrics['rollout_corr/rollout_rs_masked_fraction']).toBe(0);
    expect(batch?.get('rolloutIsWeights').every((w) => w === 1)).toBe(true);
    const strict = await metricsOf([
      `${correction}.rollout_rs=seq_sum_k1`,
      `${correction}.rollout_rs_threshold="1.5_2.0"`,
    ]);
    expect(strict.metrics['rollout_corr/rollout_rs_masked_fraction']).toBeCloseTo(1, 6);
    expect(strict.batch?.get('responseMask').includes(1)).toBe(false);
    expect(strict.batch?.get('advantages').every((a) => a === 0)).toBe(true);
  });

  test('bypass mode takes the rollout’s log-probs instead of a pass over the model', async () => {
    const { calls, batch, metrics } = await metricsOf([`${correction}.preset=bypass_ppo_clip_k3_rs`]);
    expect(calls.slice(0, 2)).toEqual(['generate', 'updatePolicy']);
    expect(batch?.get('oldLogProbs')).toEqual(batch?.get('rolloutLogProbs'));
    expect(metrics).not.toHaveProperty(['rollout_corr/kl']); // the update's
  });
});
