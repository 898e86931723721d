import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { dump, load } from 'js-yaml';
import { importVerlCommand } from '../../../ts/cli/import_verl';
import { checkTree, loadConfig } from '../../../ts/config/config';
import { getPath } from '../../../ts/config/reading/tree';
import { importVerl, type VerlImport } from '../../../ts/config/verl/import';
import { readVerlSource } from '../../../ts/config/verl/source';
import { directory, fresh, KEYS, OPTIONS, ppo, read, why, write } from './verl_command';

const FULLY = 'verl.experimental.fully_async_policy.fully_async_main';
const ONE_STEP = 'verl.experimental.one_step_off_policy.main_ppo';
const POLICY = 'algorithm.adv_estimator=grpo actor_rollout_ref.hybrid_engine=False';
const fully = (keys: string, version?: string): VerlImport =>
  read(
    `python3 -m ${FULLY} ${KEYS} ${POLICY} data.train_batch_size=0 actor_rollout_ref.actor.ppo_mini_batch_size=32 ${keys}`,
    version,
  );
const oneStep = (keys: string, version?: string): VerlImport =>
  read(`python3 -m ${ONE_STEP} ${KEYS} ${POLICY} data.train_batch_size=64 ${keys}`, version);
const WARMUP = 'actor_rollout_ref.actor.optim.lr_warmup_steps';

describe('the fully asynchronous program', () => {
  const SIZES =
    'async_training.trigger_parameter_sync_step=4 async_training.require_batches=2 rollout.total_rollout_steps=2560';

  it('is separate_async, with a step that lies between two updates of the rollout’s weights', () => {
    const result = fully(`${SIZES} async_training.staleness_threshold=0.5 trainer.test_freq=20`);
    expect(result.notMapped).toEqual([]);
    expect(result.config).toMatchObject({
      data: { train_batch_size: 256 },
      actor_rollout_ref: { actor: { ppo_mini_batch_size: 32 } },
      algorithm: { rollout_correction: { bypass_mode: true } },
      trainer: {
        total_training_steps: 10,
        test_freq: 20,
        v1: {
          trainer_mode: 'separate_async',
          separate_async: { num_warmup_batches: 0.5 },
          sampler: { max_off_policy_threshold: 1024 },
        },
      },
    });
    expect(getPath(result.config, 'data.gen_batch_size')).toBeUndefined();
    for (const key of ['async_training.trigger_parameter_sync_step', 'async_training.require_batches'])
      expect(why(result.changed, key)).toMatch(/4 x 2 x ppo_mini_batch_size 32 = 256 prompts/);
    expect(why(result.changed, 'async_training.staleness_threshold')).toMatch(/num_warmup_batches/);
    expect(why(result.changed, 'rollout.total_rollout_steps')).toMatch(/2560 prompts are 10 steps of 256/);
  });

  it.each(['lr_scheduler_type=cosine', 'lr_scheduler_type=constant'])(
    'ends schedules with the run: %s',
    (key) => {
      const optim = 'actor_rollout_ref.actor.optim';
      const { changed } = fully(`${SIZES} ${optim}.${key}`);
      const said = why(changed, `${optim}.lr_scheduler_type`);
      if (key.endsWith('constant')) expect(said).toBeUndefined();
      else expect(said).toMatch(/falls once over the run; there in one of 4 parts of it/);
    },
  );

  it('has the schedules of Megatron, too', () => {
    const optim = 'actor_rollout_ref.actor.optim';
    const { changed, notMapped } = fully(`model_engine=megatron ${SIZES} ${optim}.lr_decay_style=linear`);
    expect(notMapped).toEqual([]);
    expect(changed.filter(({ key }) => key === `${optim}.lr_decay_style`)).toHaveLength(2);
  });

  it('has the defaults of its own files', () => {
    const { config } = fully('rollout.total_rollout_steps=1280');
    expect(config).toMatchObject({
      data: { train_batch_size: 128 },
      trainer: { total_training_steps: 10, v1: { separate_async: { num_warmup_batches: 0.1 } } },
    });
  });

  it('says which prompts are left over, and refuses fewer than a step takes', () => {
    const some = fully(`${SIZES} rollout.total_rollout_steps=600`);
    expect(getPath(some.config, 'trainer.total_training_steps')).toBe(2);
    expect(why(some.changed, 'rollout.total_rollout_steps')).toMatch(/without the last 88 .*whole 64/);
    const few = fully(`${SIZES} rollout.total_rollout_steps=255`);
    expect(why(few.notMapped, 'rollout.total_rollout_steps')).toMatch(
      /0 steps of 256.*trainer\.total_training_steps expects an integer from 1/,
    );
  });

  it('lets the passes over the data end the run where no prompts are counted', () => {
    const { config, withoutEffect } = fully(
      'rollout.total_rollout_steps=null trainer.total_epochs=3 trainer.total_training_steps=7',
    );
    expect(config['trainer']).toMatchObject({ total_epochs: 3 });
    expect(getPath(config, 'trainer.total_training_steps')).toBeUndefined();
    expect(why(withoutEffect, 'trainer.total_training_steps')).toMatch(/rollout\.total_rollout_steps/);
  });

  it.each([
    ['async_training.staleness_threshold=0.5', 'notMapped', /do not wait for requests in flight/],
    ['async_training.staleness_threshold=0', 'withoutEffect', /nothing is in flight/],
  ] as const)('partial_rollout=False with %s is %s', (keys, list, reason) => {
    const result = fully(`${SIZES} async_training.partial_rollout=False ${keys}`);
    expect(why(result[list], 'async_training.partial_rollout')).toMatch(reason);
  });

  it('counts the warm-up in steps', () => {
    const steps = fully(`${SIZES} ${WARMUP}=10`);
    expect(getPath(steps.config, WARMUP)).toBe(3);
    expect(why(steps.changed, WARMUP)).toMatch(/10 updates of the learning rate.*makes 4 in a step: 3 here/);
    const share = fully(`${SIZES} ${WARMUP}_ratio=0.2`);
    expect(getPath(share.config, `${WARMUP}_ratio`)).toBe(0.05);
    const whole = fully(
      `rollout.total_rollout_steps=32 async_training.trigger_parameter_sync_step=1 ${WARMUP}=10`,
    );
    expect(getPath(whole.config, WARMUP)).toBe(10);
    expect(why(whole.changed, WARMUP)).toBeUndefined();
  });

  it('says what verl does for each part of a step', () => {
    const { changed } = fully(
      `${SIZES} algorithm.adv_estimator=reinforce_plus_plus actor_rollout_ref.actor.ppo_epochs=2`,
    );
    expect(why(changed, 'algorithm.adv_estimator')).toMatch(/there over each 64 prompts/);
    expect(why(changed, 'actor_rollout_ref.actor.ppo_epochs')).toMatch(/2 passes .*there over each 64/);
    expect(why(fully(SIZES).changed, 'algorithm.adv_estimator')).toBeUndefined();
  });

  it.each([
    ['async_training.use_dynamic_resource_scheduling=True', /lending the trainer’s GPUs to the rollout/],
    ['+async_training.no_such=3', /is not known here \(its value: 3\)/],
    ['+rollout.no_such=3', /is not known here/],
    ['async_training.require_batches=all', /expected a number, got "all"/],
  ])('%s is missing', (keys, reason) => {
    const key = keys.replace(/^\+|=.*$/g, '');
    expect(why(fully(`${SIZES} ${keys}`).notMapped, key)).toMatch(reason);
  });

  it.each([
    ['rollout.n=9', 'rollout.n', /actor_rollout_ref\.rollout\.n counts/],
    [
      'async_training.concurrent_samples_per_replica=9',
      'async_training.concurrent_samples_per_replica',
      /max_num_seqs/,
    ],
    ['algorithm.filter_groups.enable=True', 'algorithm.filter_groups', /does not filter/],
  ])('%s has no effect', (keys, key, reason) => {
    const result = fully(`${SIZES} ${keys}`);
    expect(why(result.withoutEffect, key)).toMatch(reason);
    expect(getPath(result.config, 'algorithm.filter_groups.enable')).not.toBe(true);
  });

  it('gives its share of memory to the rollout of its own', () => {
    const rollout = 'actor_rollout_ref.rollout';
    const { config, withoutEffect } = fully(
      `${SIZES} ${rollout}.gpu_memory_utilization=0.3 ${rollout}.standalone_gpu_memory_utilization=0.8`,
    );
    expect(getPath(config, `${rollout}.gpu_memory_utilization`)).toBe(0.8);
    expect(why(withoutEffect, `${rollout}.gpu_memory_utilization`)).toMatch(/GPUs that learn as well/);
  });

  it('has other keys in verl 0.6', () => {
    const keys = `${SIZES} rollout.test_freq=5 trainer.test_freq=7`;
    const recorded = fully(keys, 'v0.6.1');
    expect(recorded.notMapped).toEqual([]);
    expect(getPath(recorded.config, 'trainer.test_freq')).toBe(5);
    expect(why(recorded.withoutEffect, 'trainer.test_freq')).toMatch(/rollout\.test_freq counts/);
    const bypass = 'algorithm.rollout_correction.bypass_mode';
    expect(getPath(recorded.config, bypass)).toBe(true);
    const recomputed = fully(`${keys} async_training.compute_prox_log_prob=True`, 'v0.6.1');
    expect(getPath(recomputed.config, bypass)).toBe(false);
  });

  it('is read from a composed file, too', () => {
    const file = write(
      dump({
        data: { train_files: ['a.parquet'], train_batch_size: 0, gen_batch_size: 1 },
        actor_rollout_ref: { model: { path: './m' }, actor: { ppo_mini_batch_size: 16 } },
        async_training: { staleness_threshold: 1, trigger_parameter_sync_step: 2, require_batches: 1 },
        rollout: { nnodes: 1, n_gpus_per_node: 4, total_rollout_steps: 320 },
      }),
      'yaml',
    );
    const { config } = importVerl(readVerlSource(file, [], { ...OPTIONS, run: false }));
    expect(config).toMatchObject({
      data: { train_batch_size: 32 },
      algorithm: { rollout_correction: { bypass_mode: true } },
      trainer: {
        total_training_steps: 10,
        v1: { trainer_mode: 'separate_async', separate_async: { num_warmup_batches: 1 } },
      },
    });
  });
});

it('troupe import-verl reports of a launch script what became of each number', () => {
  const script = write(`set -eu
GPUS=\${GPUS:-8}
rollout=2
mini=16
takes=2
args=(
  ${KEYS} ${POLICY}
  data.train_batch_size=0
  trainer.n_gpus_per_node=$((GPUS - rollout)) rollout.n_gpus_per_node=$rollout
  actor_rollout_ref.actor.ppo_mini_batch_size=$mini
  rollout.total_rollout_steps=$((mini * takes * 25))
)
python3 recipe/fully_async_policy/fully_async_main.py "\${args[@]}" \\
  async_training.trigger_parameter_sync_step=$takes async_training.staleness_threshold=0.25 "$@"
`);
  const out = join(directory, `${fresh()}.yaml`);
  let said = '';
  const code = importVerlCommand(script, [], {
    out,
    allowMissing: false,
    version: 'main',
    write: (text) => {
      said += text;
    },
  });
  expect(code).toBe(0);
  expect(said).toMatch(/would have started: recipe\/fully_async_policy\/fully_async_main\.py/);
  expect(said).toMatch(/2 x 1 x ppo_mini_batch_size 16 = 32 prompts \(data\.train_batch_size\)/);
  expect(said).toMatch(/800 prompts are 25 steps of 32/);
  expect(load(readFileSync(out, 'utf8'))).toMatchObject({
    data: { train_batch_size: 32 },
    trainer: {
      n_gpus_per_node: 6,
      total_training_steps: 25,
      v1: { trainer_mode: 'separate_async', separate_async: { num_warmup_batches: 0.25 } },
    },
  });
});

describe('the program that is one step off', () => {
  it('is separate_async with one batch ahead, which nothing passes', () => {
    const result = oneStep('trainer.total_training_steps=5');
    expect(result.notMapped).toEqual([]);
    expect(result.config).toMatchObject({
      data: { train_batch_size: 64 },
      actor_rollout_ref: { rollout: { free_cache_engine: false } },
      algorithm: { rollout_correction: { bypass_mode: true } },
      trainer: {
        total_training_steps: 5,
        v1: {
          trainer_mode: 'separate_async',
          separate_async: { num_warmup_batches: 1 },
          sampler: { max_off_policy_threshold: 2, max_off_policy_strategy: 'wait' },
        },
      },
    });
    expect(why(result.changed, 'the program')).toMatch(/one batch ahead/);
  });

  it('gives machines to the rollout as main_ppo does', () => {
    const place = 'actor_rollout_ref.rollout';
    const own = oneStep('rollout.nnodes=2 rollout.n_gpus_per_node=4');
    const main = ppo(`${place}.nnodes=2 ${place}.n_gpus_per_node=4`);
    for (const key of ['nnodes', 'n_gpus_per_node']) {
      expect(getPath(own.config, `${place}.${key}`)).toEqual(getPath(main.config, `${place}.${key}`));
      for (const list of ['notMapped', 'withoutEffect'] as const)
        expect(why(own[list], `rollout.${key}`)).toBe(why(main[list], `${place}.${key}`));
    }
  });

  it.each([
    // Eight and eight GPUs do not lie on one machine.
    ['trainer.nnodes=8 trainer.n_gpus_per_node=8 rollout.nnodes=8 rollout.n_gpus_per_node=8', 16, 4],
    ['trainer.nnodes=4 trainer.n_gpus_per_node=8 rollout.nnodes=12 rollout.n_gpus_per_node=8', 16, 2],
    // Four and four do.
    ['trainer.nnodes=1 trainer.n_gpus_per_node=4 rollout.nnodes=2 rollout.n_gpus_per_node=4', 2, 2],
    ['trainer.nnodes=2 trainer.n_gpus_per_node=6 rollout.nnodes=2 rollout.n_gpus_per_node=2', 2, 6],
  ])('%s: as many machines as verl needs, %i', (keys, nodes, perNode) => {
    const { config, changed } = oneStep(keys);
    expect(config['trainer']).toMatchObject({ nnodes: nodes, n_gpus_per_node: perNode });
    const place = 'actor_rollout_ref.rollout';
    const all = nodes * ((getPath(config, `${place}.n_gpus_per_node`) as number) + perNode);
    expect(getPath(config, `${place}.nnodes`)).toBe(nodes);
    const asked = [...keys.matchAll(/=(\d+)/g)].map(([, number]) => Number(number)) as [
      number,
      number,
      number,
      number,
    ];
    expect(all).toBe(asked[0] * asked[1] + asked[2] * asked[3]);
    expect(/have workers of both/.test(why(changed, 'trainer.nnodes') ?? '')).toBe(
      !keys.includes(`trainer.nnodes=${nodes} `),
    );
  });

  it('says where no whole number of each fits on all machines', () => {
    const { config, changed } = oneStep(
      'trainer.nnodes=2 trainer.n_gpus_per_node=8 rollout.nnodes=1 rollout.n_gpus_per_node=8',
    );
    expect(config['trainer']).toMatchObject({ nnodes: 2, n_gpus_per_node: 8 });
    expect(changed.map(({ why: reason }) => reason).join('\n')).toMatch(/which need 16 GPUs so/);
  });

  it.each([
    'python3 -m recipe.one_step_off_policy.main_ppo',
    'python3 recipe/one_step_off_policy/main_ppo.py',
    'python3 -m verl.experimental.one_step_off_policy.main_ppo --config-path=config --config-name=one_step_off_ppo_megatron_trainer.yaml',
  ])('%s', (command) => {
    const { config, notMapped } = read(`${command} ${KEYS} ${POLICY}`);
    expect(notMapped.map(({ key }) => key)).not.toContain('the program');
    expect(getPath(config, 'trainer.v1.separate_async.num_warmup_batches')).toBe(1);
    expect(getPath(config, 'algorithm.rollout_correction.bypass_mode')).toBe(true);
    expect(getPath(config, 'actor_rollout_ref.actor.strategy') === 'megatron').toBe(/megatron/.test(command));
  });

  it('corrected nothing in verl 0.6', () => {
    const { config, defaults } = oneStep('trainer.total_epochs=1', 'v0.6.1');
    expect(getPath(config, 'algorithm.rollout_correction')).toEqual({ bypass_mode: false });
    expect(why(defaults, 'algorithm.rollout_correction.bypass_mode')).toMatch(/no correction/);
  });

  it('takes its defaults from the checkout around the script', () => {
    const root = join(directory, `checkout${fresh()}`);
    for (const folder of ['verl/trainer/config', 'recipe/one_step_off_policy/config'])
      mkdirSync(join(root, folder), { recursive: true });
    writeFileSync(join(root, 'verl/trainer/config/ppo_trainer.yaml'), 'trainer: { nnodes: 1 }\n');
    const config =
      'defaults: [ppo_trainer, _self_]\nrollout: { nnodes: 1, n_gpus_per_node: 3 }\ntrainer: { seed: 7 }\n';
    writeFileSync(join(root, 'recipe/one_step_off_policy/config/one_step_off_ppo_trainer.yaml'), config);
    const script = join(root, 'run.sh');
    writeFileSync(script, `python3 -m recipe.one_step_off_policy.main_ppo ${KEYS} ${POLICY}\n`);
    const source = readVerlSource(script, [], { environment: OPTIONS.environment, run: false });
    expect(getPath(source.tree, 'rollout.n_gpus_per_node')).toBe(3);
    expect(getPath(importVerl(source).config, 'trainer.seed')).toBe(7);
  });
});

describe('main_ppo with trainer.v1', () => {
  it('colocate_async is taken as it is', () => {
    const { config, notMapped } = ppo(
      'algorithm.adv_estimator=grpo trainer.v1.trainer_mode=colocate_async trainer.v1.colocate_async.num_warmup_batches=2 ' +
        'data.gen_batch_size=1 trainer.v1.sampler.max_off_policy_threshold=4 trainer.use_v1=True trainer.n_gpus_per_node=2',
    );
    expect(notMapped).toEqual([]);
    const resolved = loadConfig(write(dump(config), 'yaml'));
    expect(resolved.trainer.v1).toMatchObject({
      trainer_mode: 'colocate_async',
      colocate_async: { num_warmup_batches: 2 },
      sampler: { max_off_policy_threshold: 4, max_off_policy_strategy: 'drop' },
    });
    // verl corrects what it is told to.
    expect(resolved.algorithm.rollout_correction).toMatchObject({ rollout_is: null, bypass_mode: false });
  });

  it('separate_async counts the warm-up in mini-batches', () => {
    const keys =
      'trainer.v1.trainer_mode=separate_async data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 ' +
      `trainer.v1.separate_async.parameter_sync_step=4 ${WARMUP}=9 actor_rollout_ref.actor.optim.lr_decay_steps=40`;
    const { config, changed } = ppo(`model_engine=megatron algorithm.adv_estimator=grpo ${keys}`);
    expect(getPath(config, WARMUP)).toBe(3);
    expect(getPath(config, 'actor_rollout_ref.actor.optim.total_training_steps')).toBe(10);
    expect(why(changed, WARMUP)).toMatch(/makes 4 in a step/);
  });

  it('leaves a synchronous run alone', () => {
    const { config } = ppo(`algorithm.adv_estimator=grpo ${WARMUP}=9`);
    expect(getPath(config, WARMUP)).toBe(9);
    expect(getPath(config, 'algorithm.rollout_correction')).toBeUndefined();
  });
});

it.each(['async_training', 'rollout'])('troupe validate says what to give for the section %s', (section) => {
  const tree = {
    data: { train_files: 'a.parquet' },
    actor_rollout_ref: { model: { path: 'm' } },
    [section]: { nnodes: 1 },
  };
  expect(() => checkTree(tree, 'train')).toThrow(
    new RegExp(`${section}: .*trainer\\.v1\\.separate_async\\.num_warmup_batches.*`),
  );
});
