import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { batchArithmetic, describeConfig, loadConfig } from '../../../ts/config/config';
import { ppoSchema } from '../../../ts/config/schema/ppo_schema';
import { documentSchema } from '../../../ts/config/schema/schema_docs';
import { sftSchema } from '../../../ts/config/schema/sft_schema';
import { failure, load, writeConfig } from './write_config';

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
