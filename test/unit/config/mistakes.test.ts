import { loadConfig, loadSftConfig } from '../../../ts/config/config';
import { configError, failure, load, MINIMAL, writeConfig } from './write_config';

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

  it.each([
    ['actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-summ', 'seq-mean-token-sum'],
    ['actor_rollout_ref.actor.kl_loss_type=low_var', 'low_var_kl'],
    ['trainer.resume_mode=Auto', 'auto'],
    ['actor_rollout_ref.actor.strategy=fdsp2', 'fsdp2'],
  ])('%s: the nearest name is named', (override, name) => {
    expect(failure([override]).message).toMatch(new RegExp(`; did you mean ${name}\\?$`));
  });

  it('of names that are near nothing none is named', () => {
    expect(failure(['trainer.resume_mode=zzz']).message).toMatch(/, got "zzz"$/);
  });

  it.each([
    'optim@actor.optim=fsdp',
    'hydra/job_logging=disabled',
    '+actor@actor_rollout_ref.actor=dp_actor',
  ])('%s: groups are for import-verl', (override) => {
    expect(failure([override]).message).toMatch(
      /^override '.*': chooses a file of a group, .* troupe import-verl/,
    );
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

  it.each(['..', '../../x', 'a/..', 'a/../../b', '/x', 'a\0b', '.', './', './/.'])(
    'a name %j is no directory of its own',
    (name) => {
      const stays =
        'a name that as a path leads into its directory (no / in front, no .. as a part, not . alone, no NUL)';
      for (const key of ['project_name', 'experiment_name']) {
        const message = `trainer.${key}: expected ${stays}, got ${JSON.stringify(name)}`;
        const file = writeConfig('data: { train_files: a.jsonl }\nmodel: { path: m }\n');
        const override = `trainer.${key}="${name}"`;
        expect(failure([override]).message).toBe(message);
        expect(configError(() => loadSftConfig(file, [override])).message).toBe(message);
      }
    },
  );

  it.each([
    ['Qwen/Qwen3-8B', 'Qwen/Qwen3-8B'],
    ['a/b/c', 'a/b/c'],
    ['./a', 'a'],
    ['a..b', 'a..b'],
    ['...', '...'],
    ['.a', '.a'],
    ['007', '007'],
  ])('a name %s makes the directory %s', (name, directory) => {
    const { trainer } = load([`trainer.project_name=${name}`, `trainer.experiment_name=${name}`]);
    expect(trainer.default_local_dir).toBe(`checkpoints/${directory}/${directory}`);
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
    [
      'reward: { custom_reward_function: { reward_kwargs: { most: [.inf] } } }',
      /reward_kwargs: expected a mapping without NaN or infinities, got \{"most":\["Infinity"\]\}/,
    ],
  ])('in the file itself: %j', (text, message) => {
    expect(failure([], text).message).toMatch(message);
  });

  it('a missing file is named', () => {
    const { message } = configError(() => loadConfig('no/such.yaml'));
    expect(message).toContain(`no/such.yaml (relative to ${process.cwd()}): `);
    expect(configError(() => loadConfig('/no/such.yaml')).message).toMatch(/\/no\/such\.yaml: /);
  });
});
