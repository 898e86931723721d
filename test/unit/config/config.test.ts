import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { batchArithmetic, configNotes, describeConfig, loadConfig } from '../../../ts/config/config';
import { ppoSchema } from '../../../ts/config/schema/ppo_schema';
import { documentSchema } from '../../../ts/config/schema/schema_docs';
import { sftSchema } from '../../../ts/config/schema/sft_schema';
import { configError, MINIMAL, writeConfig } from './write_config';

const load = (overrides: string[] = [], text = MINIMAL) => loadConfig(writeConfig(text), overrides);
const failure = (overrides: string[] = [], text = MINIMAL) => configError(() => load(overrides, text));

/** As a configuration writes it. */
const reference = (key: string): string => `\${${key}}`;

describe('defaults', () => {
  it("are verl's", () => {
    const config = load();
    expect(config.data).toMatchObject({
      max_prompt_length: 512,
      max_response_length: 512,
      prompt_key: 'prompt',
      reward_fn_key: 'data_source',
      shuffle: true,
      truncation: 'error',
      train_files: ['train.jsonl'],
      val_files: null,
    });
    const { actor, rollout, ref } = config.actor_rollout_ref;
    expect(actor).toMatchObject({
      ppo_max_token_len_per_gpu: 16384,
      ppo_epochs: 1,
      clip_ratio_c: 3,
      loss_agg_mode: 'token-mean',
      kl_loss_type: 'low_var_kl',
      grad_clip: 1,
    });
    expect(actor.optim).toMatchObject({ lr: 1e-6, weight_decay: 0.01, betas: [0.9, 0.999] });
    expect(rollout).toMatchObject({ n: 1, temperature: 1, top_k: -1, top_p: 1, do_sample: true });
    expect(rollout.val_kwargs).toEqual({ n: 1, temperature: 0, top_k: -1, top_p: 1, do_sample: false });
    expect(ref.log_prob_max_token_len_per_gpu).toBe(16384);
    expect(config.critic.optim.lr).toBe(1e-5);
    expect(config.critic.cliprange_value).toBe(0.5);
    expect(config.algorithm.kl_ctrl).toEqual({
      type: 'fixed',
      kl_coef: 0.001,
      target_kl: 0.1,
      horizon: 10000,
    });
    expect(config.trainer.default_local_dir).toBe('checkpoints/troupe/run');
  });

  it('follow other keys', () => {
    const config = load([
      'actor_rollout_ref.actor.clip_ratio=0.1',
      'actor_rollout_ref.actor.clip_ratio_high=0.28',
      'actor_rollout_ref.actor.ppo_epochs=3',
      'data.max_response_length=100',
    ]);
    const { actor, model } = config.actor_rollout_ref;
    expect([actor.clip_ratio_low, actor.clip_ratio_high]).toEqual([0.1, 0.28]);
    expect(actor.loss_scale_factor).toBe(100);
    expect(config.critic).toMatchObject({ ppo_epochs: 3, ppo_mini_batch_size: 16 });
    expect(config.critic.model.path).toBe(model.path);
  });

  it('are frozen to the leaves', () => {
    const config = load();
    expect(Object.isFrozen(config.actor_rollout_ref.actor.optim.betas)).toBe(true);
    expect(() => Object.assign(config.trainer, { seed: 5 })).toThrow(TypeError);
  });
});

describe('a name may look like a number', () => {
  const names = ({ trainer, logging }: ReturnType<typeof load>) => [
    trainer.project_name,
    trainer.experiment_name,
    logging.wandb.project,
    trainer.default_local_dir,
  ];

  it('in a file: it stays as it is spelled', () => {
    const text = `${MINIMAL}
trainer: { project_name: 20240501, experiment_name: 1.0 }
logging: { wandb: { project: 0x1F } }
`;
    expect(names(load([], text))).toEqual(['20240501', '1.0', '0x1F', 'checkpoints/20240501/1.0']);
  });

  it('on the command line, in a section and by reference', () => {
    expect(
      names(
        load([
          'trainer.project_name=20240501_1',
          'trainer={experiment_name:2024}',
          `logging.wandb.project=${reference('trainer.seed')}`,
          'trainer.seed=7',
        ]),
      ),
    ).toEqual(['20240501_1', '2024', '7', 'checkpoints/20240501_1/2024']);
  });

  it('and must be one', () => {
    expect(failure(['trainer.project_name=true']).message).toMatch(
      /project_name: expected a string, got true/,
    );
    expect(failure(['trainer.project_name=']).message).toMatch(/project_name: expected a string, got ""/);
  });
});

describe('overrides', () => {
  it.each([
    [
      'actor_rollout_ref.actor.optim.lr=1e-4',
      (c: ReturnType<typeof load>) => c.actor_rollout_ref.actor.optim.lr,
      1e-4,
    ],
    ['+trainer.seed=7', (c: ReturnType<typeof load>) => c.trainer.seed, 7],
    ['++trainer.seed=7', (c: ReturnType<typeof load>) => c.trainer.seed, 7],
    [
      'trainer.logger=["console","file"]',
      (c: ReturnType<typeof load>) => c.trainer.logger,
      ['console', 'file'],
    ],
    ["trainer.experiment_name='7'", (c: ReturnType<typeof load>) => c.trainer.experiment_name, '7'],
    [
      'data.val_files=[a.parquet,b.parquet]',
      (c: ReturnType<typeof load>) => c.data.val_files,
      ['a.parquet', 'b.parquet'],
    ],
    ['trainer.val_before_train=False', (c: ReturnType<typeof load>) => c.trainer.val_before_train, false],
    ['data.val_batch_size=', (c: ReturnType<typeof load>) => c.data.val_batch_size, null],
    ['trainer.default_local_dir=a=b', (c: ReturnType<typeof load>) => c.trainer.default_local_dir, 'a=b'],
  ])('%s', (override, read, expected) => {
    expect(read(load([override]))).toEqual(expected);
  });

  it('of what is not a section say so', () => {
    expect(failure(['data.train_files.first=1']).message).toMatch(
      /data\.train_files is "train\.jsonl", not a section/,
    );
  });

  it.each(['trainer.seed', '=1', 'a..b=1', '.a=1', '~trainer.seed'])('%s is refused', (override) => {
    expect(failure([override]).message).toContain(`override '${override}'`);
  });
});

describe('mistakes', () => {
  it.each([
    [
      'actor_rollout_ref.actor.clip_ration=0.1',
      'actor_rollout_ref.actor.clip_ration',
      'actor_rollout_ref.actor.clip_ratio?',
    ],
    ['trainer.total_epoch=1', 'trainer.total_epoch', 'trainer.total_epochs?'],
    ['trainr.seed=1', 'trainr', 'trainer?'],
    ['actor_rollout_ref.rollout.gamma=1', 'actor_rollout_ref.rollout.gamma', 'algorithm.gamma?'],
    ['data.lr=1', 'data.lr', 'actor_rollout_ref.actor.optim.lr?'],
    ['actor_rollout_ref.actor.lr=1', 'actor_rollout_ref.actor.lr', 'actor_rollout_ref.actor.optim.lr?'],
    ['critic.lr=1', 'critic.lr', 'critic.optim.lr?'],
    ['trainer.sede=1', 'trainer.sede', 'trainer.seed?'],
  ])('%s: the nearest key is named', (override, path, hint) => {
    const error = failure([override]);
    expect(error.path).toBe(path);
    expect(error.message).toBe(`unknown key ${path}: did you mean ${hint}`);
  });

  it.each(['typo', 'x', 'foo', 'gama'])('trainer.%s is near nothing: the keys there are named', (key) => {
    expect(failure([`trainer.${key}=1`]).message).toMatch(
      new RegExp(`^unknown key trainer\\.${key}: the keys here are .*\\bseed\\b`),
    );
  });

  it.each([
    ['', 'reward.custom_reward_function.path', 'reward: { custom_reward_function: { path: ... } }'],
    ['trainer', 'v1.trainer_mode', 'v1: { trainer_mode: ... }'],
    ['', 'trainer.checkpoint_staging', 'trainer: { checkpoint_staging: ... }'],
  ])('in %s a key %s is one of sections', (section, key, sections) => {
    const lines = section === '' ? `${key}: 1` : `${section}:\n  ${key}: 1`;
    const path = section === '' ? key : `${section}.${key}`;
    const message = `unknown key ${path}: a key of a file is not split at its dots: write ${sections}`;
    expect(failure([], `${MINIMAL}${lines}\n`).message).toBe(message);
  });

  it('a key with dots that is nowhere is like any other', () => {
    expect(failure([], `${MINIMAL}trainer.sed: 1\n`).message).not.toContain('dots');
    expect(failure([], `${MINIMAL}trainer.seed.x: 1\n`).message).not.toContain('dots');
    expect(failure([], `${MINIMAL}trainer.toString: 1\n`).message).not.toContain('dots');
  });

  it('with nothing near name the keys that are there', () => {
    expect(failure(['algorithm.kl_ctrl.zzzzzzzz=1']).message).toContain('type, kl_coef, target_kl, horizon');
    // Any other letter is as near as n.
    expect(failure(['actor_rollout_ref.rollout.x=1']).message).toMatch(
      /unknown key .*rollout\.x: the keys here are/,
    );
  });

  it.each([
    ['data.train_batch_size=abc', 'data.train_batch_size: expected an integer from 1 to 16777216, got "abc"'],
    ['data.train_batch_size=1.5', 'data.train_batch_size: expected an integer from 1 to 16777216, got 1.5'],
    [
      'trainer.n_gpus_per_node=1e9',
      'trainer.n_gpus_per_node: expected an integer from 1 to 1024, got 1000000000',
    ],
    [
      'trainer.num_threads=1000000',
      'trainer.num_threads: expected an integer from 1 to 1024, or null, got 1000000',
    ],
    ['actor_rollout_ref.rollout.n=1e9', 'rollout.n: expected an integer from 1 to 65536, got 1000000000'],
    ['reward.num_workers=1000000', 'reward.num_workers: expected an integer from 1 to 4096, got 1000000'],
    [
      'actor_rollout_ref.rollout.temperature=1e-300',
      'temperature: expected 0, or a number from 0.000001 to 1000000',
    ],
    ['actor_rollout_ref.actor.optim.lr=1e300', 'optim.lr: expected a number from 0 to 1000000'],
    ['actor_rollout_ref.actor.optim.lr=inf', 'optim.lr: expected a number from 0 to 1000000, got "inf"'],
    ['algorithm.kl_ctrl.target_kl=0', 'algorithm.kl_ctrl.target_kl: expected a number > 0, got 0'],
    [
      'actor_rollout_ref.rollout.val_kwargs.top_p=0',
      'actor_rollout_ref.rollout.val_kwargs.top_p: expected a number > 0 and <= 1, got 0',
    ],
    ['data.shuffle=1', 'data.shuffle: expected true or false, got 1'],
    ['data.truncation=both', 'data.truncation: expected one of error, left, right, middle, got "both"'],
    ['data=3', 'data: expected a section with keys, got 3'],
    [
      'actor_rollout_ref.actor.fsdp_config.dtype=fp8',
      'expected float32 (fp32) or bfloat16 (bf16), or null, got "fp8"',
    ],
    [
      'actor_rollout_ref.model.lora_rank=-1',
      'actor_rollout_ref.model.lora_rank: expected an integer from 0 to 65536, got -1',
    ],
    [
      'critic.model.target_parameters=[experts.down_proj]',
      'needs adapters on parameters that are no linear layers, which are not there',
    ],
    [
      'actor_rollout_ref.actor.strategy=torchtitan',
      'actor_rollout_ref.actor.strategy: expected one of fsdp, fsdp2, megatron, got "torchtitan"',
    ],
  ])('%s', (override, message) => {
    expect(failure([override]).message).toContain(message);
  });

  it('are all reported at once', () => {
    const error = failure([], 'data: { shufle: true, train_batch_size: x }');
    expect(error.message.split('\n')).toHaveLength(4);
    expect(error.message).toMatch(
      /data\.train_files: expected a string or a list of strings, but it is not given/,
    );
    expect(error.message).toMatch(/actor_rollout_ref\.model\.path: expected a string, but it is not given/);
  });

  it.each([
    ['a: &a\n  b: *a', /an anchor contains itself/],
    [
      Array.from(
        { length: 9 },
        (_, i) => `k${i}: &k${i} [${Array(9).fill(i === 0 ? 'x' : `*k${i - 1}`)}]`,
      ).join('\n'),
      /expected at most 100000 values/,
    ],
    ['a: [1', /run\.yaml:\d+:\d+: not valid YAML/],
    ['a: 1\na: 2', /run\.yaml:2:1: not valid YAML: duplicated mapping key/],
    ['- 1', /expected a mapping of sections, got \[1\]/],
  ])('in the file itself: %j', (text, message) => {
    expect(failure([], text).message).toMatch(message);
  });

  it('a missing file is named', () => {
    const { message } = configError(() => loadConfig('no/such.yaml'));
    expect(message).toContain(`no/such.yaml (relative to ${process.cwd()}): `);
    expect(configError(() => loadConfig('/no/such.yaml')).message).toMatch(/\/no\/such\.yaml: /);
  });
});

describe('anchors', () => {
  const text = `
data: { train_files: a.jsonl, <<: { max_prompt_length: 7, seed: 3 }, seed: 9 }
actor_rollout_ref:
  model: { path: model }
  actor: { optim: &optim { lr: 1e-5, betas: [0.9, 0.95] } }
critic: { optim: *optim }
`;
  const optims = (overrides: string[], given = text) => {
    const { actor_rollout_ref: roles, critic } = load(overrides, given);
    return [roles.actor.optim, critic.optim];
  };

  it('give each of their places a copy of its own, which an override changes alone', () => {
    expect(optims([])).toMatchObject([{ lr: 1e-5 }, { lr: 1e-5 }]);
    const both = [{ lr: 1e-5 }, { lr: 7, betas: [0.9, 0.95] }];
    expect(optims(['critic.optim.lr=7'])).toMatchObject(both);
    expect(optims(['critic.optim={lr:7}'])).toMatchObject(both);
    expect(optims(['~actor_rollout_ref.actor.optim.betas'])).toMatchObject([
      { betas: [0.9, 0.999] },
      { betas: [0.9, 0.95] },
    ]);
  });

  it('are merged by <<, where the section does not say otherwise', () => {
    expect(load([], text).data).toMatchObject({ max_prompt_length: 7, seed: 9 });
    const merged = text.replace('optim: *optim', 'optim: { <<: *optim, lr: 2e-5 }');
    expect(optims([], merged)).toMatchObject([
      { lr: 1e-5, betas: [0.9, 0.95] },
      { lr: 2e-5, betas: [0.9, 0.95] },
    ]);
    expect(optims(['critic.optim.lr=3'], merged)).toMatchObject([{ lr: 1e-5 }, { lr: 3 }]);
    const named = load([], `${text}trainer: { <<: { project_name: 007 } }\n`);
    expect(named.trainer.project_name).toBe('007');
    expect(failure([], 'data: { <<: 5 }').message).toMatch(/run\.yaml:1:\d+: not valid YAML/);
  });
});

it('files of data are at least one, unless a class makes the rows', () => {
  expect(failure(['data.train_files=[]'])).toMatchObject({
    path: 'data.train_files',
    message: 'data.train_files: expected at least one file, got []',
  });
  expect(failure(['data.val_files=[]']).message).toContain('or null for no validation');
  const made = load(['data.train_files=[]', 'data.custom_cls={path:rows.py,name:Rows}']);
  expect(made.data.train_files).toEqual([]);
});

it('has no more sequences in a batch than memory can hold', () => {
  const { path, message } = failure(['data.train_batch_size=1000', 'actor_rollout_ref.rollout.n=65536']);
  expect(path).toBe('data.train_batch_size');
  expect(message).toContain(
    'expected at most 16777216 sequences in a batch, got 1000 prompts x actor_rollout_ref.rollout.n 65536',
  );
});

describe('keys of verl', () => {
  it('without effect are noted with the reason', () => {
    const config = load([
      'actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4',
      'actor_rollout_ref.rollout.enforce_eager=true',
      'actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params=0',
      '+ray_kwargs.ray_init.num_cpus=4',
    ]);
    expect(configNotes(config).map(({ path }) => path)).toEqual([
      'actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu',
      'actor_rollout_ref.actor.fsdp_config.wrap_policy',
      'actor_rollout_ref.rollout.enforce_eager',
      'ray_kwargs',
    ]);
    for (const { reason } of configNotes(config)) expect(reason).not.toBe('');
  });

  it('that ask for what happens anyway are not worth a note', () => {
    expect(
      configNotes(load(['actor_rollout_ref.actor.strategy=fsdp', 'algorithm.use_pf_ppo=false'])),
    ).toEqual([]);
  });

  it('of LoRA for Megatron are without effect where there is no adapter', () => {
    const lora = 'actor_rollout_ref.model.lora';
    const keys = [
      'dropout=0.1',
      'type=dora',
      'exclude_modules=[linear_fc1]',
      'alpha=0',
      'target_modules=["*.linear_qkv"]',
    ].map((key) => `${lora}.${key}`);
    const paths = keys.map((key) => key.replace(/=.*/, ''));
    for (const given of [keys, [`${lora}.rank=0`, ...keys], [`${lora}.rank=null`, ...keys]]) {
      const config = load(given);
      expect(config).toEqual(load());
      expect(configNotes(config)).toEqual(
        paths.map((path) => ({ path, reason: `there are no adapters: ${lora}.rank is 0` })),
      );
    }
    const unlisted = load([`${lora}.rank=0`, `${lora}.new_key=1`, `${lora}.merge=true`]);
    expect(configNotes(unlisted).map(({ path }) => path)).toEqual([`${lora}.new_key`, `${lora}.merge`]);
    // It may be a slip in the name of the rank.
    expect(failure([`${lora}.rnk=16`]).message).toMatch(/unknown key .*\.lora\.rnk: did you mean .*\.rank\?/);
    expect(failure([`${lora}.rank=-1`, ...keys]).message).toMatch(/lora\.rank: expected an integer/);
  });

  it('that ask for another schedule are refused', () => {
    const key = 'actor_rollout_ref.actor.optim.zero_indexed_step';
    expect(configNotes(load([`${key}=true`]))).toEqual([]);
    expect(failure([`${key}=false`]).message).toMatch(/schedules count from 0/);
  });

  it('that offload state work on every device, and save nothing on cpu', () => {
    const keys = [
      'actor_rollout_ref.actor.fsdp_config.optimizer_offload',
      'actor_rollout_ref.ref.fsdp_config.param_offload',
      'critic.model.fsdp_config.offload_policy',
    ];
    const asked = keys.map((key) => `${key}=true`);
    const config = load(asked);
    const nothing = 'on cpu the host is the same memory: nothing is saved';
    expect(config.actor_rollout_ref.ref.fsdp_config.param_offload).toBe(true);
    expect(config.actor_rollout_ref.actor.fsdp_config.param_offload).toBe(false);
    expect(configNotes(config)).toEqual(keys.map((path) => ({ path, reason: `works on a GPU; ${nothing}` })));
    const onCpu = configNotes(load([...asked, 'trainer.device=cpu']));
    expect(onCpu).toEqual(keys.map((path) => ({ path, reason: nothing })));
    expect(configNotes(load([...asked, 'trainer.device=cuda']))).toEqual([]);
    expect(load(['trainer.memory_per_rank=80GiB']).trainer.memory_per_rank).toBe(80 * 2 ** 30);
    expect(failure(['trainer.memory_per_rank=much']).message).toMatch(
      /trainer.memory_per_rank: expected a size such as 80GiB, or a number of bytes, or null, got "much"/,
    );
  });

  it('with older names go where they belong', () => {
    const config = load([
      'custom_reward_function.path=reward.js',
      'actor_rollout_ref.actor.optim.warmup_style=cosine',
    ]);
    expect(config.reward.custom_reward_function.path).toBe('reward.js');
    expect(config.actor_rollout_ref.actor.optim.lr_scheduler_type).toBe('cosine');
    expect(configNotes(config).map(({ reason }) => reason)).toContain(
      'is an older name of reward.custom_reward_function.path',
    );
    const both = ['custom_reward_function.path=a.js', 'reward.custom_reward_function.path=b.js'];
    expect(failure(both).message).toMatch(/older name of .*, and both are given: "a\.js" and "b\.js"/);
  });

  it('of the reward section of older versions keep their meaning', () => {
    const { reward } = load([
      'reward_model.reward_manager=dapo',
      'reward_model.num_workers=2',
      '+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True',
      '+reward_model.reward_kwargs.overlong_buffer_cfg.len=64',
      'reward_model.max_rpm=30',
      '+custom_reward_function.reward_kwargs.bonus=0.5',
    ]);
    expect(reward.reward_manager.name).toBe('dapo');
    expect(reward).toMatchObject({ num_workers: 2, max_rpm: 30, max_tpm: null, timeout: 300 });
    expect(reward.reward_kwargs.overlong_buffer_cfg).toEqual({
      enable: true,
      len: 64,
      penalty_factor: 1,
      log: false,
    });
    expect(reward.reward_kwargs.max_resp_len).toBe(load([]).data.max_response_length);
    expect(reward.custom_reward_function.reward_kwargs).toEqual({ bonus: 0.5 });
    expect(load(['reward_model.overlong_buffer.len=8']).reward.reward_kwargs.overlong_buffer_cfg.len).toBe(8);
    expect(failure(['reward_model.reward_manager=prim']).message).toMatch(
      /reward\.reward_manager\.name: .*prime.* got "prim"; did you mean prime\?/,
    );
    expect(failure(['reward.reward_manager.source=importlib']).message).toMatch(
      /reward_manager\.module\.path: expected a file/,
    );
  });

  it('accepts _target_ and references to other keys', () => {
    const text = `${MINIMAL}trainer:
  _target_: verl.Something
  project_name: p
  experiment_name: \${trainer.project_name}-\${data.train_batch_size}
algorithm: { gamma: "\${data.train_batch_size}" }
`;
    const config = load(['algorithm.gamma=1'], text);
    expect(config.trainer.experiment_name).toBe('p-64');
    expect(config.trainer.default_local_dir).toBe('checkpoints/p/p-64');
    expect(failure([`trainer.project_name=${reference('no.such')}`]).message).toMatch(
      /cannot resolve \$\{no\.such\}/,
    );
    expect(failure([`trainer.project_name=${reference('trainer.project_name')}`]).message).toMatch(
      /refers to itself/,
    );
    expect(failure([`trainer.project_name=${reference('oc.decode:HOME')}`]).message).toMatch(
      /trainer\.project_name: .*resolvers other than oc\.select and oc\.env are not available/,
    );
  });
});

describe('a reference after a backslash', () => {
  const dir = (text: string) => `trainer.default_local_dir='${text}'`;

  // As OmegaConf has it: only backslashes before a ${ count.
  it.each([
    [`x\\${reference('a')}`, `x${reference('a')}`],
    [`\\${reference('a')}`, reference('a')],
    [`x\\\\${reference('trainer.seed')}`, 'x\\7'],
    [`x\\\\\\${reference('a')}`, `x\\${reference('a')}`],
    [`\\${reference('a')}/${reference('trainer.seed')}\\d`, `${reference('a')}/7\\d`],
    ['x\\d{2}', 'x\\d{2}'],
  ])('is text: %s', (text, expected) => {
    const file = `${MINIMAL}trainer: { seed: 7, default_local_dir: '${text}' }`;
    const config = load([], file);
    expect(config.trainer.default_local_dir).toBe(expected);
    // What is written of it says the same when it is read.
    expect(loadConfig(writeConfig(describeConfig(config))).trainer.default_local_dir).toBe(expected);
  });

  it('that another key refers to is text there, too', () => {
    const config = load([
      dir(`\\${reference('a')}`),
      `trainer.experiment_name=${reference('trainer.default_local_dir')}`,
    ]);
    expect(config.trainer.experiment_name).toBe(reference('a'));
    expect(loadConfig(writeConfig(describeConfig(config))).trainer.experiment_name).toBe(reference('a'));
  });
});

describe('batch arithmetic', () => {
  it('states every size in its unit', () => {
    const lines = batchArithmetic(
      load([
        'actor_rollout_ref.rollout.n=8',
        'actor_rollout_ref.actor.ppo_epochs=2',
        'data.val_files=v.jsonl',
      ]),
    ).join('\n');
    expect(lines).toContain('64 prompts x 8 responses = 512 sequences, 512 per rank (1 rank)');
    expect(lines).toContain('at most 512 + 512 = 1024 tokens');
    expect(lines).toContain('actor: mini-batch of 16 prompts = 128 sequences');
    expect(lines).toContain('4 mini-batches x 2 epochs = 8 optimiser steps per step');
    expect(lines).toContain('micro-batches of up to 16384 tokens');
    expect(lines).toContain('critic: mini-batch of 16 prompts');
    expect(lines).toContain('one epoch is floor(prompts of the training set / 64) steps');
  });

  it('leaves out a critic that does not run', () => {
    expect(batchArithmetic(load(['algorithm.adv_estimator=grpo'])).join('\n')).not.toContain('critic');
  });
});

it('the resolved tree is a configuration itself', () => {
  const config = load(['trainer.seed=11', 'algorithm.adv_estimator=rloo']);
  expect(loadConfig(writeConfig(describeConfig(config)))).toEqual(config);
});

it('docs/config.md lists the keys as they are: else run npm run build && node scripts/config_docs.mjs', () => {
  const page = readFileSync(join(__dirname, '../../../docs/config.md'), 'utf8');
  expect(page).toContain(documentSchema(ppoSchema));
  expect(page).toContain(documentSchema(sftSchema));
});
