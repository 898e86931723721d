import { dump } from 'js-yaml';
import { configNotes, loadConfig, loadSftConfig } from '../../../ts/config/config';
import { getPath } from '../../../ts/config/reading/tree';
import type { OptimOptions } from '../../../ts/engine/engine_options';
import { resolveSchedule, type ScheduleOptions } from '../../../ts/engine/schedule_options';
import { trainedOptions } from '../../../ts/roles/role_options';
import { actorSettings, criticSettings, sftSettings } from '../../../ts/roles/role_settings';
import { ppo, read, why, write } from './verl_command';
import { configError, load, writeConfig } from './write_config';

// Learning-rate schedules in configurations. Their numbers: test/binding/schedules.test.ts.

const ACTOR = 'actor_rollout_ref.actor.optim';
const WSD = ['lr_scheduler_type=WSD', 'lr_wsd_decay_steps=3'];
const sftFile = writeConfig('data: { train_files: a.jsonl }\nmodel: { path: m }\n');
/** Each role that learns: where its keys are, and what its engine is told of a run of so many steps. */
const ROLES = {
  actor: {
    section: ACTOR,
    options: (keys: string[], steps: number) =>
      trainedOptions(actorSettings(load(keys)), steps).optim as OptimOptions,
  },
  critic: {
    section: 'critic.optim',
    options: (keys: string[], steps: number) =>
      trainedOptions(criticSettings(load(keys)), steps).optim as OptimOptions,
  },
  'the model of troupe sft': {
    section: 'optim',
    options: (keys: string[], steps: number) =>
      trainedOptions(sftSettings(loadSftConfig(sftFile, keys)), steps).optim as OptimOptions,
  },
};

describe.each(Object.entries(ROLES))('%s', (_role, { section, options }) => {
  const of = (keys: string[], steps = 10) =>
    options(
      ['lr=1e-4', 'lr_warmup_steps=2', ...keys].map((key) => `${section}.${key}`),
      steps,
    );

  it.each<[string[], ScheduleOptions]>([
    [['lr_scheduler_type=linear'], { schedule: 'linear', totalSteps: 10 }],
    [['lr_decay_style=linear', 'lr_decay_steps=7'], { schedule: 'linear', totalSteps: 7 }],
    [['lr_scheduler_type=inverse_square_root'], { schedule: 'inverse_square_root' }],
    [['lr_decay_style=inverse-square-root'], { schedule: 'inverse_square_root' }],
    [['lr_scheduler_type=cosine', 'num_cycles=1.5'], { schedule: 'cosine', numCycles: 1.5 }],
    [WSD, { schedule: 'WSD', wsdDecaySteps: 3, wsdDecayStyle: 'exponential' }],
    [[...WSD, 'lr_wsd_decay_style=minus_sqrt'], { wsdDecaySteps: 3, wsdDecayStyle: 'minus_sqrt' }],
    [['init_lr_ratio=0.25'], { initLrRatio: 0.25 }],
    [['lr_warmup_init=25e-6'], { initLrRatio: 0.25 }],
    [['zero_indexed_step=false'], { zeroIndexedStep: false }],
    [['lr_scheduler_type=linear', 'min_lr=25e-6'], { schedule: 'linear', minLrRatio: 0.25 }],
  ])('%j', (keys, expected) => {
    expect(of(keys)).toMatchObject({ lr: 1e-4, warmupSteps: 2, ...expected });
  });

  it('is told nothing that its schedule does not read, so that its engine takes it', () => {
    const keys = ['num_cycles=2', 'lr_wsd_decay_style=linear', 'lr_wsd_decay_steps=99', 'init_lr_ratio=0.5'];
    const { lr: _lr, ...optim } = of([
      'lr_scheduler_type=linear',
      'lr_warmup_steps=-1',
      ...keys,
      'lr_warmup_steps_ratio=0',
    ]);
    expect(resolveSchedule('', optim)).toMatchObject({ kind: 'linear', warmupSteps: 0, initLrRatio: 0 });
  });

  it.each<[string[], string]>([
    [
      ['lr_scheduler_type=WSD'],
      'lr_wsd_decay_steps: expected the number of last steps in which the learning rate falls, because lr_scheduler_type is WSD',
    ],
    [
      [...WSD, 'total_training_steps=4'],
      'lr_wsd_decay_steps: expected at most 2, since the schedule has 4 steps, of which 2 are warm-up, got 3',
    ],
    [
      [...WSD, 'lr_wsd_decay_steps=0'],
      'lr_wsd_decay_steps: expected an integer from 1 to 1000000000000, or null, got 0',
    ],
    [
      [...WSD, 'lr_wsd_decay_style=sqrt'],
      'lr_wsd_decay_style: expected one of linear, cosine, exponential, minus_sqrt, got "sqrt"',
    ],
    [
      ['lr_scheduler_type=polynomial'],
      'lr_scheduler_type: expected one of constant, cosine, linear, inverse_square_root, WSD, got "polynomial"',
    ],
    [['min_lr=1'], `min_lr: expected at most ${section}.lr (0.0001), got 1`],
    [['lr_warmup_init=1'], `lr_warmup_init: expected at most ${section}.lr (0.0001), got 1`],
    [
      ['lr_warmup_init=1e-5', 'init_lr_ratio=0.2'],
      `lr_warmup_init: ${section}.init_lr_ratio 0.2 says the same as a share of lr: leave one of them out`,
    ],
    [['init_lr_ratio=1.5'], 'init_lr_ratio: expected a number from 0 to 1, got 1.5'],
    [['num_cycles=-1'], 'num_cycles: expected a number from 0 to 1000000000000, got -1'],
  ])('%j is refused', (keys, message) => {
    expect(configError(() => of(keys)).message).toBe(`${section}.${message}`);
  });

  it('has a decay that a run of fewer steps refuses, also where the data says how many', () => {
    expect(of(WSD, 5)).toMatchObject({ wsdDecaySteps: 3, totalSteps: 5 });
    expect(configError(() => of(WSD, 4)).message).toMatch(/lr_wsd_decay_steps: expected at most 2, /);
    const run = section === 'optim' ? loadSftConfig.bind(null, sftFile) : load;
    const keys = [...WSD, 'lr_warmup_steps_ratio=0.5'].map((key) => `${section}.${key}`);
    expect(configError(() => run([...keys, 'trainer.total_training_steps=4'])).message).toMatch(
      /expected at most 2, since the schedule has 4 steps, of which 2 are warm-up, got 3$/,
    );
  });
});

describe('keys of another schedule', () => {
  const notes = (...keys: string[]): Record<string, string> =>
    Object.fromEntries(
      configNotes(load(keys.map((key) => `${ACTOR}.${key}`))).map(({ path, reason }) => [
        path.replace(`${ACTOR}.`, ''),
        reason,
      ]),
    );

  it('are noted', () => {
    const others = [
      'num_cycles=1',
      'lr_wsd_decay_steps=2',
      'lr_wsd_decay_style=cosine',
      'lr_warmup_init=1e-7',
    ];
    expect(notes('lr_scheduler_type=linear', ...others)).toEqual({
      num_cycles: 'has no effect: it is of the schedule cosine, and lr_scheduler_type is linear',
      lr_wsd_decay_steps: 'has no effect: it is of the schedule WSD, and lr_scheduler_type is linear',
      lr_wsd_decay_style: 'has no effect: it is of the schedule WSD, and lr_scheduler_type is linear',
      lr_warmup_init: 'has no effect: there is no warm-up',
    });
    const still = 'has no effect: with lr_scheduler_type constant the learning rate stays';
    expect(notes('min_lr=1e-7')).toEqual({ min_lr: still });
    expect(notes('min_lr_ratio=0.1')).toEqual({ min_lr_ratio: still });
    expect(Object.keys(notes('zero_indexed_step=false'))).toEqual(['zero_indexed_step']);
  });

  it('at their defaults, and those that are read, are not', () => {
    expect(notes('num_cycles=0.5', 'lr_wsd_decay_style=exponential', 'lr_wsd_decay_steps=null')).toEqual({});
    expect(notes('lr_scheduler_type=cosine', 'num_cycles=1', 'min_lr_ratio=0.1')).toEqual({});
    expect(notes(...WSD, 'lr_wsd_decay_style=linear', 'min_lr=1e-7')).toEqual({});
    expect(notes('lr_warmup_steps=2', 'init_lr_ratio=0.1', 'zero_indexed_step=false')).toEqual({});
  });

  it('of a critic that is not there are not read', () => {
    const without = load(['algorithm.adv_estimator=grpo', 'critic.optim.num_cycles=1']);
    expect(configNotes(without)).toEqual([]);
    const withCritic = load(['algorithm.adv_estimator=gae', 'critic.optim.num_cycles=1']);
    expect(configNotes(withCritic).map(({ path }) => path)).toEqual(['critic.optim.num_cycles']);
  });
});

describe('options of scripts', () => {
  it.each<[ScheduleOptions, RegExp]>([
    [{ schedule: 'linear' }, /totalSteps: schedule 'linear' needs it/],
    [
      { schedule: 'WSD', totalSteps: 5 },
      /wsdDecaySteps: expected an integer from 1 to 5, but it is not given/,
    ],
    [
      { schedule: 'WSD', totalSteps: 5, warmupSteps: 3, wsdDecaySteps: 3 },
      /wsdDecaySteps: expected an integer from 1 to 2 but got 3/,
    ],
    [
      { schedule: 'WSD', totalSteps: 5, warmupSteps: 5, wsdDecaySteps: 3 },
      /wsdDecaySteps: .* warmupSteps are all of totalSteps; got 3/,
    ],
    [{ wsdDecayStyle: 'linear' }, /wsdDecayStyle: is read with schedule 'WSD' alone, and it is 'constant'/],
    [
      { schedule: 'linear', totalSteps: 5, numCycles: 1 },
      /numCycles: is read with schedule 'cosine' alone, and it is 'linear'/,
    ],
    [{ initLrRatio: 0.1 }, /initLrRatio: expected warmupSteps above 0 beside 0.1, got 0/],
    [{ initLrRatio: 2, warmupSteps: 2 }, /initLrRatio: expected a number from 0 to 1 but got 2/],
    [{ schedule: 'cosine', totalSteps: 5, numCycles: Number.NaN }, /numCycles: expected a number from 0/],
    [{ zeroIndexedStep: 0 as unknown as boolean }, /zeroIndexedStep: expected true or false but got 0/],
    [
      { schedule: 'wsd' as 'WSD' },
      /schedule: expected one of constant, cosine, linear, inverse_square_root, WSD but got "wsd"/,
    ],
  ])('%j is refused', (options, message) => {
    expect(() => resolveSchedule('actor options.optim', options)).toThrow(message);
  });
});

describe('of verl', () => {
  const megatron = (...keys: string[]) =>
    ppo(`model_engine=megatron ${keys.map((key) => `${ACTOR}.${key}`).join(' ')}`);

  it('come over with their keys', () => {
    const imported = megatron(
      'lr=1e-5',
      'lr_decay_style=WSD',
      'lr_wsd_decay_steps=4',
      'lr_wsd_decay_style=cosine',
      'lr_warmup_init=1e-6',
      'lr_warmup_steps=2',
    );
    expect(imported.notMapped).toEqual([]);
    const config = loadConfig(write(dump(imported.config), 'yaml'));
    expect(trainedOptions(actorSettings(config), 9).optim).toMatchObject({
      schedule: 'WSD',
      wsdDecaySteps: 4,
      wsdDecayStyle: 'cosine',
      initLrRatio: expect.closeTo(0.1, 12),
    });
    const fsdp = ppo(
      `${ACTOR}.lr_scheduler_type=cosine ${ACTOR}.num_cycles=1.5 ${ACTOR}.zero_indexed_step=False`,
    );
    expect(fsdp.notMapped).toEqual([]);
    expect(getPath(fsdp.config, ACTOR)).toMatchObject({ num_cycles: 1.5, zero_indexed_step: false });
  });

  it('its constant counts from 0 always', () => {
    const imported = ppo(`${ACTOR}.lr_warmup_steps=4 ${ACTOR}.zero_indexed_step=False`);
    expect(why(imported.withoutEffect, `${ACTOR}.zero_indexed_step`)).toMatch(
      /with the schedule cosine alone/,
    );
    expect(getPath(imported.config, `${ACTOR}.zero_indexed_step`)).toBeUndefined();
  });

  it('WSD of its earlier supervised trainer is a share of the steps', () => {
    const imported = read(
      'python3 -m verl.trainer.fsdp_sft_trainer data.train_files=a data.val_files=null model.partial_pretrain=m ' +
        'trainer.default_hdfs_dir=null optim.lr_scheduler=wsd',
      'v0.5.0',
    );
    expect(imported.notMapped.map(({ key }) => key)).toEqual(['optim.lr_scheduler']);
    expect(why(imported.notMapped, 'optim.lr_scheduler')).toMatch(/last tenth .*lr_scheduler_type=WSD/);
  });

  it('count updates of the learning rate, of which a step may have several', () => {
    const { config } = ppo(
      'model_engine=megatron algorithm.adv_estimator=grpo trainer.v1.trainer_mode=separate_async data.train_batch_size=64 ' +
        `actor_rollout_ref.actor.ppo_mini_batch_size=16 trainer.v1.separate_async.parameter_sync_step=4 ` +
        `${ACTOR}.lr_decay_style=WSD ${ACTOR}.lr_decay_steps=40 ${ACTOR}.lr_wsd_decay_steps=10`,
    );
    expect(getPath(config, ACTOR)).toMatchObject({ total_training_steps: 10, lr_wsd_decay_steps: 3 });
  });
});
