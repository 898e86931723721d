import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { dump } from 'js-yaml';
import { checkTree } from '../../../ts/config/config';
import { getPath, leafPaths } from '../../../ts/config/reading/tree';
import { importVerl, type VerlImport } from '../../../ts/config/verl/import';
import { readVerlSource } from '../../../ts/config/verl/source';
import { VERL_VERSIONS } from '../../../ts/config/verl/versions';
import { directory, fresh, KEYS, OPTIONS, ppo, read, why, write } from './verl_command';

// What scripts of verl's releases meant then.

const ACTOR = 'actor_rollout_ref.actor';
const OLDEST = 'v0.3.0.post1';
const sft = (program: string, keys: string, version: string): VerlImport =>
  read(`python3 -m verl.trainer.${program} data.train_files=a data.val_files=null ${keys}`, version);
const isValid = ({ config, program, notMapped }: VerlImport): void => {
  expect(notMapped).toEqual([]);
  checkTree(config, program);
};

describe('up to v0.3.0', () => {
  it('losses have no dual clip', () => {
    const { config, defaults } = ppo('', OLDEST);
    expect(getPath(config, `${ACTOR}.clip_ratio_c`)).toBe(1e9);
    expect(why(defaults, `${ACTOR}.clip_ratio_c`)).toMatch(/has no such key, and clips once/);
    expect(getPath(ppo('', 'v0.4.1').config, `${ACTOR}.clip_ratio_c`)).toBeUndefined();
  });

  it.each([
    ['', true],
    [`${ACTOR}.use_kl_loss=True`, undefined],
    ['algorithm.kl_ctrl.kl_coef=0', undefined],
  ])('the KL lowers rewards unless the loss has it: "%s"', (keys, expected) => {
    const imported = ppo(keys, OLDEST);
    isValid(imported);
    expect(getPath(imported.config, 'algorithm.use_kl_in_reward')).toBe(expected);
    expect(getPath(ppo(keys, 'v0.4.1').config, 'algorithm.use_kl_in_reward')).toBeUndefined();
  });

  it('warmup_style is not read', () => {
    const style = `${ACTOR}.optim.warmup_style=cosine`;
    const imported = ppo(style, OLDEST);
    isValid(imported);
    expect(getPath(imported.config, `${ACTOR}.optim.lr_scheduler_type`)).toBeUndefined();
    expect(why(imported.withoutEffect, `${ACTOR}.optim.warmup_style`)).toMatch(/not read by this version/);
    expect(getPath(ppo(style, 'v0.4.1').config, `${ACTOR}.optim.lr_scheduler_type`)).toBe('cosine');
  });

  it('what Megatron does by default and is not done here is said', () => {
    const megatron = '--config-name=ppo_megatron_trainer';
    expect(why(ppo(megatron, OLDEST).notMapped, `${ACTOR}.shuffle`)).toMatch(
      /^true is the default of this version/,
    );
    isValid(ppo(`${megatron} ${ACTOR}.shuffle=False trainer.n_gpus_per_node=8`, OLDEST));
  });

  it('the learning rate under Megatron falls linearly', () => {
    const type = (version: string) => {
      const imported = ppo('--config-name=ppo_megatron_trainer trainer.n_gpus_per_node=8', version);
      isValid(imported);
      return ['actor_rollout_ref.actor', 'critic'].map((role) =>
        getPath(imported.config, `${role}.optim.lr_scheduler_type`),
      );
    };
    expect(type('v0.4.1')).toEqual(['linear', 'linear']);
    expect(type('v0.5.0')).toEqual([undefined, 'linear']);
  });

  it('other names are those of now', () => {
    const imported = ppo(
      `trainer.val_generations_to_log_to_wandb=3 ${ACTOR}.checkpoint.contents=[model] reward_model.param_offload=True`,
      OLDEST,
    );
    isValid(imported);
    expect(getPath(imported.config, 'trainer.log_val_generations')).toBe(3);
    expect(getPath(imported.config, 'reward.reward_model.megatron.param_offload')).toBe(true);
  });
});

describe('the SFT trainer of pairs', () => {
  const pairs =
    'model.partial_pretrain=m trainer.default_hdfs_dir=null data.prompt_key=extra_info data.response_key=extra_info ' +
    "+data.prompt_dict_keys=['question'] +data.response_dict_keys=['answer']";

  it.each([
    [OLDEST, 'after_each_epoch', 'disable'],
    ['v0.4.1', undefined, 'disable'],
    ['v0.5.0', undefined, undefined],
    ['v0.6.1', undefined, undefined],
  ])('of %s', (version, frequency, resume) => {
    const imported = sft('fsdp_sft_trainer', pairs, version);
    isValid(imported);
    expect(imported.config['data']).toMatchObject({
      prompt_key: 'extra_info',
      prompt_dict_keys: ['question'],
      response_dict_keys: ['answer'],
      apply_chat_template: true,
    });
    const trainer = ['save_freq', 'test_freq', 'resume_mode'].map((key) =>
      getPath(imported.config, `trainer.${key}`),
    );
    expect(trainer).toEqual([frequency, frequency, resume]);
    // optim.lr_scheduler is the one that it reads; v0.6.1 has lr_scheduler_type=constant beside it.
    expect(getPath(imported.config, 'optim.lr_scheduler_type')).not.toBe('constant');
  });

  it('knows conversations by data.multiturn.enable', () => {
    const { config } = sft('fsdp_sft_trainer', `${pairs} data.multiturn.enable=True`, 'v0.6.1');
    expect(config['data']).toMatchObject({ messages_key: 'messages' });
    expect(getPath(config, 'data.apply_chat_template')).toBeUndefined();
  });
});

describe('rejection up to v0.6.1', () => {
  const C = 'algorithm.rollout_correction';
  const corrected = (keys: string): VerlImport =>
    ppo(
      keys
        .split(' ')
        .map((key) => `${C}.${key}`)
        .join(' '),
      'v0.6.1',
    );

  it.each([
    ['rollout_rs=token rollout_rs_threshold=2', 'token_k1', '0.5_2'],
    ['rollout_rs=geometric rollout_rs_threshold=1.25 rollout_rs_threshold_lower=0.5', 'seq_mean_k1', '0.8_2'],
    ['rollout_rs=sequence rollout_rs_threshold=4 rollout_rs_threshold_lower=0.1', 'seq_sum_k1', '0.25_10'],
  ])('has bounds of the ratio, here of its inverse: %s', (keys, criterion, bounds) => {
    const imported = corrected(keys);
    isValid(imported);
    expect(getPath(imported.config, C)).toMatchObject({
      rollout_rs: criterion,
      rollout_rs_threshold: bounds,
    });
  });

  it('has its own loss beside bypass_mode alone', () => {
    const reinforce = corrected('bypass_mode=True use_policy_gradient=True rollout_is=token');
    isValid(reinforce);
    expect(getPath(reinforce.config, C)).toMatchObject({ loss_type: 'reinforce', rollout_is: 'token' });
    const clipped = corrected('bypass_mode=True rollout_is=token rollout_rs=token rollout_rs_threshold=2');
    isValid(clipped);
    expect(getPath(clipped.config, `${C}.rollout_is`)).toBeUndefined();
    expect(getPath(clipped.config, `${C}.rollout_rs`)).toBeUndefined();
    expect(why(clipped.withoutEffect, `${C}.rollout_rs`)).toMatch(/without use_policy_gradient/);
  });

  it('needs what there is not for a veto of tokens', () => {
    expect(
      why(corrected('rollout_token_veto_threshold=1e-4').notMapped, `${C}.rollout_token_veto_threshold`),
    ).toMatch(/needs a veto/);
  });
});

it.each([
  ['trainer.test_freq=False', 'trainer.test_freq', -1],
  ['actor_rollout_ref.rollout.name=sglang_async', 'actor_rollout_ref.rollout.name', 'sglang'],
  ['+reward_manager.name=dapo', 'reward.reward_manager.name', 'dapo'],
])('%s is %s=%j', (given, key, value) => {
  const imported = ppo(given, 'v0.5.0');
  isValid(imported);
  expect(getPath(imported.config, key)).toBe(value);
});

it.each(VERL_VERSIONS)('a whole configuration of %s is what the command is', (version) => {
  const command = `python3 -m verl.trainer.main_ppo ${KEYS} actor_rollout_ref.rollout.name=vllm`;
  const options = { ...OPTIONS, version, run: false };
  const source = readVerlSource(write(command), [], options);
  const whole = importVerl(readVerlSource(write(dump(source.tree), 'yaml'), [], options));
  isValid(whole);
  const { config } = importVerl(source);
  for (const key of leafPaths(config))
    expect([key, getPath(whole.config, key)]).toEqual([key, getPath(config, key)]);
});

describe('whose defaults hold', () => {
  /** A checkout as v0.3 has it: one file, and no groups. */
  const checkout = (): string => {
    const root = join(directory, `release${fresh()}`);
    mkdirSync(join(root, 'verl/trainer/config'), { recursive: true });
    mkdirSync(join(root, 'verl/version'));
    writeFileSync(join(root, 'verl/version/version'), '0.3.9\n');
    const config = `data: { train_files: null, train_batch_size: 77 }\nactor_rollout_ref: { model: { path: null }, actor: { entropy_coeff: 0.5 } }\n`;
    writeFileSync(join(root, 'verl/trainer/config/ppo_trainer.yaml'), config);
    return root;
  };
  const imported = (file: string, version: string | null = null): VerlImport => {
    const { environment } = OPTIONS;
    return importVerl(readVerlSource(file, [], { environment, version, run: false }));
  };
  const COMMAND = 'python3 -m verl.trainer.main_ppo data.train_files=a actor_rollout_ref.model.path=./m';

  it('a checkout has its own, however old it is', () => {
    const script = join(checkout(), 'run.sh');
    writeFileSync(script, COMMAND);
    const { config, version } = imported(script);
    expect(version).toBe('0.3.9, of the checkout');
    expect(getPath(config, 'data.train_batch_size')).toBe(77);
    expect(getPath(config, `${ACTOR}.entropy_coeff`)).toBe(0.5);
  });

  it('a directory that is named has them: a checkout, or an installed package', () => {
    const root = checkout();
    for (const place of [root, join(root, 'verl')]) {
      const { config, version } = imported(write(COMMAND), place);
      expect(version).toBe(`0.3.9, of ${place}`);
      expect(getPath(config, 'data.train_batch_size')).toBe(77);
    }
    expect(() => imported(write(COMMAND), join(root, 'verl/trainer'))).toThrow(
      /expected one of v0.* or the directory/,
    );
  });

  it('without one it is the newest, and the report says so', () => {
    expect(imported(write(COMMAND)).version).toBe('main (the newest known; --verl says another)');
  });

  it('an engine by a name that a version does not have is refused', () => {
    expect(why(ppo('model_engine=megatron', 'v0.5.0').notMapped, 'model_engine')).toMatch(
      /is not there in verl v0.5.0/,
    );
  });

  it('a choice that no defaults list has is refused', () => {
    expect(why(ppo('data@nowhere=legacy_data', 'v0.5.0').notMapped, 'data@nowhere=legacy_data')).toMatch(
      /no defaults list/,
    );
  });
});
