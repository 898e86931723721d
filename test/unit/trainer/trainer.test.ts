import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { WorkerDiedError } from '../../../ts/errors';
import { registerRewardManager } from '../../../ts/reward/contract/manager_registry';
import { createRewardManager } from '../../../ts/reward/manager';
import { CONFORMANCE } from '../../helpers/conformance';
import { FakeEngines, fakeData, lengthReward, read, runDirectory, trainer } from '../../helpers/fake_run';

const ppo = [
  'algorithm.adv_estimator=gae',
  'algorithm.use_kl_in_reward=true',
  'algorithm.kl_ctrl.type=adaptive',
];

describe('reward managers', () => {
  const steps = ['trainer.total_training_steps=1', 'trainer.val_before_train=false'];

  test('dapo: the penalty reaches scores, metrics and dumps', async () => {
    const run = trainer({
      overrides: [
        ...steps,
        'reward.reward_manager.name=dapo',
        'reward.reward_kwargs.overlong_buffer_cfg={enable: true, len: 4, log: true}',
      ],
      options: { reward: () => ({ score: 1, acc: true }) },
    });
    await run.trainer.fit();
    const rows = read(run.directory, 'samples/1.jsonl').trim().split('\n');
    for (const row of rows.map((line) => JSON.parse(line))) {
      // A buffer of all 4 tokens: every token costs a quarter.
      expect(row.score).toBeCloseTo(1 - row.output.split(' ').length / 4, 12);
      expect(row.overlong_reward).toBeCloseTo(row.score - 1, 12);
      expect([row.acc, row.overlong]).toEqual([true, true]);
    }
    const metrics = JSON.parse(read(run.directory, 'metrics.jsonl'));
    expect(metrics['reward/acc/mean']).toBe(1);
    expect(metrics['reward/overlong/max']).toBe(1);
    expect(metrics['critic/score/mean']).toBeCloseTo(1 + metrics['reward/overlong_reward/mean'], 6);
  });

  test('batch and managers of a module; closed at the end', async () => {
    const batch = trainer({
      overrides: [...steps, 'reward.reward_manager.name=batch'],
      options: { reward: undefined, batchReward: (samples) => samples.map(() => 3) },
    });
    await batch.trainer.fit();
    expect(JSON.parse(read(batch.directory, 'metrics.jsonl'))['critic/score/mean']).toBe(3);

    const module = join(runDirectory(), 'manager.cjs');
    writeFileSync(
      module,
      `exports.closed = 0;
       exports.mine = (fn, { kwargs }) => ({
         score: async (samples) => ({ scores: samples.map(() => kwargs.x), extras: {}, failures: 0 }),
         close: () => { exports.closed++; },
       });`,
    );
    const own = trainer({
      overrides: [
        ...steps,
        `reward.reward_manager={source: importlib, module: {path: ${module}, name: mine}}`,
        'reward.custom_reward_function.reward_kwargs={x: 5}',
      ],
    });
    await own.trainer.fit();
    expect(JSON.parse(read(own.directory, 'metrics.jsonl'))['critic/score/mean']).toBe(5);
    expect(require(module).closed).toBe(1);
  });

  test.each([
    ['batch', {}, /the manager batch needs a function that scores a batch/],
    ['prime', { reward: lengthReward }, /prime runs reward functions in processes of their own/],
  ])('%s without its function does not start', async (name, options, message) => {
    const run = trainer({
      overrides: [`reward.reward_manager.name=${name}`],
      options: { reward: undefined, ...options },
    });
    await expect(run.trainer.fit()).rejects.toThrow(message);
    expect(run.engines.calls).toEqual([]);
  });
});

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

describe('resuming', () => {
  const overrides = [...ppo, 'trainer.total_training_steps=5', 'trainer.save_freq=2', 'trainer.test_freq=3'];

  test('a run killed before every third call is, once resumed, bitwise the uninterrupted run', async () => {
    const whole = trainer({ overrides });
    await whole.trainer.fit();
    const metrics = read(whole.directory, 'metrics.jsonl');
    const total = whole.engines.calls.length - 1;
    for (let deadAt = 1; deadAt < total; deadAt += 3) {
      const directory = runDirectory();
      const dying = new FakeEngines();
      dying.failAt(deadAt, new Error('killed'));
      await expect(trainer({ directory, overrides, engines: dying }).trainer.fit()).rejects.toThrow('killed');
      const resumed = trainer({ directory, overrides });
      await resumed.trainer.fit();
      expect(read(directory, 'metrics.jsonl')).toBe(metrics);
      expect(resumed.engines.weights).toBe(whole.engines.weights);
      rmSync(directory, { recursive: true });
    }
  });

  test('a stop request saves, and the resumed run equals the uninterrupted one', async () => {
    const whole = trainer({ overrides });
    await whole.trainer.fit();
    const directory = runDirectory();
    for (const call of [8, 5, 3]) {
      const part = trainer({ directory, overrides });
      part.engines.onCall = (count) => {
        if (count === call) expect(part.trainer.requestStop('SIGINT')).toBe(true);
      };
      const result = await part.trainer.fit();
      expect(result).toMatchObject({ interrupted: true, stopReason: 'SIGINT', finalModel: null });
      if (result.step > 0)
        expect(read(directory, 'latest_checkpointed_iteration.txt')).toBe(String(result.step));
    }
    await trainer({ directory, overrides }).trainer.fit();
    expect(read(directory, 'metrics.jsonl')).toBe(read(whole.directory, 'metrics.jsonl'));
  });

  test('a stop request while the data are made, or where nothing learns, has nothing to save', async () => {
    const early = trainer({
      overrides,
      options: {
        data: async () => {
          expect(early.trainer.requestStop('SIGINT')).toBe(false);
          return fakeData();
        },
      },
    });
    expect(await early.trainer.fit()).toMatchObject({ step: 0, interrupted: true });
    const look = trainer({ overrides: [...overrides, 'trainer.val_only=true'] });
    look.engines.onCall = () => expect(look.trainer.requestStop('SIGINT')).toBe(false);
    await look.trainer.fit();
    expect(look.engines.calls.length).toBeGreaterThan(0);
  });

  test('disable starts over; resume_path takes a step; another seed is refused', async () => {
    const first = trainer({ overrides });
    await first.trainer.fit();
    const metrics = read(first.directory, 'metrics.jsonl');
    const again = trainer({
      directory: first.directory,
      overrides: [...overrides, 'trainer.resume_mode=disable'],
    });
    await again.trainer.fit();
    expect(read(first.directory, 'metrics.jsonl')).toBe(metrics);

    const from = [
      'trainer.resume_mode=resume_path',
      `trainer.resume_from_path=${join(first.directory, 'global_step_4')}`,
    ];
    const elsewhere = trainer({ overrides: [...overrides, ...from] });
    await elsewhere.trainer.fit();
    const lines = metrics.trim().split('\n');
    expect(read(elsewhere.directory, 'metrics.jsonl').trim().split('\n')).toEqual(lines.slice(-1));

    const other = trainer({ directory: first.directory, overrides: [...overrides, 'trainer.seed=99'] });
    await expect(other.trainer.fit()).rejects.toThrow(/trainer\.seed: .* seed/);
  });

  test('what an earlier run saved is not resumed once another has begun in its place', async () => {
    const whole = trainer({ overrides });
    await whole.trainer.fit();
    const metrics = read(whole.directory, 'metrics.jsonl');
    const dies = async (...more: string[]) => {
      const run = trainer({ directory: whole.directory, overrides: [...overrides, ...more] });
      run.engines.onCall = () => {
        throw new Error('killed');
      };
      await expect(run.trainer.fit()).rejects.toThrow('killed');
    };
    const resumes = async (after: number) => {
      const run = trainer({ directory: whole.directory, overrides });
      await run.trainer.fit();
      expect(run.engines.updates).toHaveLength(5 - after);
      expect(read(whole.directory, 'metrics.jsonl')).toBe(metrics);
    };
    const step4 = join(whole.directory, 'global_step_4');
    await dies('trainer.resume_mode=resume_path', `trainer.resume_from_path=${step4}`);
    await resumes(4);
    await dies('trainer.resume_mode=disable');
    await resumes(0);
    // Looking at it alone changes nothing.
    const kept = ['latest_checkpointed_iteration.txt', 'config.json', 'timings.jsonl'];
    const files = (): string[] => kept.map((name) => read(whole.directory, name));
    const before = files();
    const half = join(whole.directory, '.incomplete_global_step_6');
    mkdirSync(half);
    const only = ['trainer.resume_mode=disable', 'trainer.val_only=true'];
    await trainer({ directory: whole.directory, overrides: [...overrides, ...only] }).trainer.fit();
    expect(files()).toEqual(before);
    expect(existsSync(half)).toBe(true);
    const [added, ...more] = read(whole.directory, 'metrics.jsonl').slice(metrics.length).trim().split('\n');
    expect(more).toEqual([]);
    expect(JSON.parse(added as string)).toMatchObject({ step: 0 });
    expect(read(whole.directory, 'metrics.jsonl').startsWith(metrics)).toBe(true);
  });
});

describe('failures', () => {
  test('data that cannot be read: the reward manager is closed', async () => {
    let closed = 0;
    registerRewardManager('counts closes', (_, options) => ({
      ...createRewardManager('naive', lengthReward, options),
      close: () => {
        closed++;
      },
    }));
    const { trainer: run } = trainer({
      overrides: ["reward.reward_manager.name='counts closes'"],
      options: {
        data: async () => {
          throw new Error('no such file');
        },
      },
    });
    await expect(run.fit()).rejects.toThrow('no such file');
    expect(closed).toBe(1);
  });

  test('a dead worker: the error passes through and everything is closed', async () => {
    const engines = new FakeEngines();
    const death = new WorkerDiedError('rank 0 died', {
      rank: 0,
      phase: 'gen',
      exitCode: null,
      signal: 'SIGKILL',
    });
    engines.failAt(3, death);
    engines.closeError = new Error('close failed too');
    await expect(trainer({ engines }).trainer.fit()).rejects.toBe(death);
    expect(engines.calls.at(-1)).toBe('close');
  });

  test('a disk that is full while saving: NO_SPACE, the earlier checkpoint stays', async () => {
    const overrides = [
      'trainer.total_training_steps=2',
      'trainer.save_freq=1',
      'trainer.val_before_train=false',
    ];
    const engines = new FakeEngines();
    let saves = 0;
    engines.onCall = (_, name) => {
      if (name === 'actor.saveCheckpoint' && ++saves === 2) {
        throw Object.assign(new Error('ENOSPC: no space left on device'), { code: 'ENOSPC' });
      }
    };
    const run = trainer({ overrides, engines });
    await expect(run.trainer.fit()).rejects.toMatchObject({ code: 'NO_SPACE' });
    expect(read(run.directory, 'latest_checkpointed_iteration.txt')).toBe('1');
    expect(readdirSync(run.directory).filter((name) => name.includes('global_step'))).toEqual([
      'global_step_1',
    ]);
  });

  test('a reward that is NaN stops the run and names the sample', async () => {
    const run = trainer({ options: { reward: () => Number.NaN } });
    await expect(run.trainer.fit()).rejects.toMatchObject({ code: 'REWARD_FAILED' });
  });

  test.each(['final_model', 'final_adapter'])(
    'a %s that the trained one must not replace is found before any engine starts',
    async (name) => {
      const directory = runDirectory();
      mkdirSync(join(directory, name));
      writeFileSync(join(directory, name, 'README.md'), 'mine');
      const overrides = ['actor_rollout_ref.model.lora_rank=2'];
      const { trainer: refused, engines } = trainer({ directory, overrides });
      await expect(refused.fit()).rejects.toMatchObject({
        code: 'IO',
        message: expect.stringContaining(`${join(directory, name)}: it holds 'README.md'`),
      });
      expect(engines.calls).toEqual([]);
    },
  );

  test('an unwritable run directory is found before any engine starts', async () => {
    const file = join(runDirectory(), 'file');
    writeFileSync(file, '');
    const run = trainer({ directory: join(file, 'run') });
    await expect(run.trainer.fit()).rejects.toMatchObject({ code: 'IO' });
    expect(run.engines.calls).toEqual([]);
  });
});
