import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path, { join } from 'node:path';
import { getPath } from '../../../ts/config/reading/tree';
import { compose, groupChoice } from '../../../ts/config/verl/compose';
import { checkoutAt, checkoutOf, directoryFiles, tableFiles } from '../../../ts/config/verl/config_files';

const main = tableFiles('main');

describe("verl's own files", () => {
  it.each([
    ['v0.3.0.post1', 'actor_rollout_ref.actor.entropy_coeff', 0.001],
    ['v0.3.0.post1', 'algorithm.use_kl_in_reward', undefined],
    ['v0.4.1', 'algorithm.use_kl_in_reward', false],
    ['v0.5.0', 'actor_rollout_ref.rollout.multi_turn.max_parallel_calls', 1],
    ['v0.8.0', 'actor_rollout_ref.actor.strategy', 'fsdp'],
    ['v0.6.1', 'reward_model.reward_manager', 'naive'],
    ['v0.6.1', 'actor_rollout_ref.rollout.mode', 'sync'],
    ['v0.7.1', 'actor_rollout_ref.rollout.mode', 'async'],
    ['v0.9.0', 'trainer.use_v1', true],
    ['main', 'reward.reward_manager.name', 'naive'],
    ['main', 'critic.fsdp.dtype', 'bfloat16'],
    ['main', 'trainer.n_gpus_per_node', 8],
  ])('%s has %s = %j', (version, key, value) => {
    const { tree, missing } = compose('ppo_trainer', tableFiles(version), []);
    expect(missing).toEqual([]);
    expect(getPath(tree, key)).toEqual(value);
  });

  it.each(['v0.6.1', 'v0.7.1', 'v0.8.0', 'v0.9.0', 'main'])('%s has an SFT trainer', (version) => {
    const { tree, missing } = compose('sft_trainer_engine', tableFiles(version), []);
    expect(missing).toEqual([]);
    expect(tree).toMatchObject({
      optim: { lr: 0.001, betas: [0.9, 0.999] },
      trainer: { total_epochs: 4, device: 'cuda' },
    });
  });

  it('leave a group out that is null', () => {
    const choice = groupChoice('critic=null', main);
    const { tree, missing } = compose('ppo_trainer', main, choice === null ? [] : [choice]);
    expect([getPath(tree, 'critic.optim'), missing]).toEqual([undefined, []]);
  });

  it('choose another engine by a group, or by another primary file', () => {
    const choice = groupChoice('model_engine=megatron', main);
    expect(choice).toEqual({ group: 'model_engine', package: null, option: 'megatron', added: false });
    const chosen = compose('ppo_trainer', main, choice === null ? [] : [choice]).tree;
    expect(getPath(chosen, 'actor_rollout_ref.actor.strategy')).toBe('megatron');
    expect(compose('ppo_megatron_trainer', main, []).tree).toEqual(chosen);
  });
});

describe('an argument is a choice', () => {
  it.each([
    ['engine=fsdp', { group: 'engine', option: 'fsdp', package: null }],
    ['optim@actor_rollout_ref.actor.optim=megatron', { package: 'actor_rollout_ref.actor.optim' }],
    ['~critic', { group: 'critic', option: null }],
    ['critic=null', { group: 'critic', option: null }],
    ['critic=NULL', { group: 'critic', option: null }],
    ['+profiler=profiler', { added: true }],
  ])('%s', (argument, expected) => {
    expect(groupChoice(argument, main)).toMatchObject(expected);
  });

  it.each(['data.train_files=x', 'trainer.nnodes=1', 'critic={enable:false}', 'max_turns=4'])(
    'not %s',
    (word) => {
      expect(groupChoice(word, main)).toBeNull();
    },
  );
});

describe('files of a directory', () => {
  const root = mkdtempSync(join(tmpdir(), 'troupe-compose-'));
  const put = (name: string, text: string): void => {
    const file = join(root, 'verl/trainer/config', name);
    mkdirSync(path.dirname(file), { recursive: true });
    writeFileSync(file, text);
  };
  put('actor/actor.yaml', 'a: 1\nb: 1\n');
  put('actor/dp.yaml', 'defaults: [../optim@optim: x, actor, _self_]\nb: 2\n');
  put('actor/late.yaml', 'defaults: [_self_, actor]\nb: 2\n');
  put('optim/x.yaml', 'lr: 1\n');
  put('optim/y.yaml', 'lr: 2\n');
  put('world/all.yaml', '# @package _global_\nwhere: root\n');
  put(
    'primary.yaml',
    `defaults: [world: all, "actor@deep.actor": dp, "optional none@none": z, "optim@gone": null]\ndeep: { own: 1 }\n`,
  );
  put(
    'outer.yaml',
    'defaults: [primary, override actor@deep.actor: late, missing_file, _self_]\ndeep: { own: 2 }\n',
  );
  const files = directoryFiles(join(root, 'verl/trainer/config'));

  it('go where their packages say, and the later wins', () => {
    expect(compose('primary', files, [])).toEqual({
      tree: { where: 'root', deep: { actor: { optim: { lr: 1 }, a: 1, b: 2 }, own: 1 } },
      missing: [],
      unused: [],
    });
  });

  it('may be overridden by an outer file, and by the command line', () => {
    const { tree, missing } = compose('outer', files, []);
    expect(tree).toMatchObject({ deep: { own: 2, actor: { a: 1, b: 1 } } });
    expect(missing).toEqual(['missing_file']);
    const choice = groupChoice('optim@deep.actor.optim=y', files);
    expect(compose('primary', files, choice === null ? [] : [choice]).tree).toMatchObject({
      deep: { actor: { optim: { lr: 2 } } },
    });
  });

  it('that lead back to themselves are an error, however often', () => {
    const loop = mkdtempSync(join(tmpdir(), 'troupe-loop-'));
    writeFileSync(join(loop, 'a.yaml'), 'defaults: [b, b, b, b, b, b, _self_]\n');
    writeFileSync(join(loop, 'b.yaml'), 'defaults: [a, a, a, a, a, a, _self_]\n');
    expect(() => compose('a', directoryFiles(loop), [])).toThrow(
      /at most 1000 files .* leads back to itself/,
    );
  });

  it('are found around a script, by a directory, and in an installed package', () => {
    writeFileSync(join(root, 'verl/trainer/config/ppo_trainer.yaml'), 'a: 1\n');
    expect(checkoutAt(root)).toEqual(checkoutAt(join(root, 'verl')));
    expect(checkoutAt(join(root, 'verl/trainer'))).toBeNull();
    expect(checkoutOf(join(root, 'examples/deep/run.sh'))?.directory).toBe(join(root, 'verl/trainer/config'));
    expect(checkoutOf(join(tmpdir(), 'run.sh'))).toBeNull();
  });
});

// Expected: what Hydra 1.3.8 composes of the same files.
describe('defaults lists', () => {
  const root = mkdtempSync(join(tmpdir(), 'troupe-hydra-'));
  const files = {
    primary: `
defaults:
  - plain@there
  - g/inside
  - g@at: one
  - g/sub@at.sub: x
  - optional g@no: none
  - g@gone: null
  - db: [first, second]
  - world: header
  - world@kept: header
  - /opt@o.p: \${db_name}_opt
  - db_name: big
  - override hydra/job_logging: none
  - _self_
  - override g/inner@at.inner: two
at: { own: 1 }
`,
    plain: 'p: 1',
    'g/inside': 'i: 1',
    'g/one': 'defaults: [inner: one, /opt@_global_.deep: big_opt, ../plain@_here_, _self_]\na: 1',
    'g/inner/one': 'n: 1',
    'g/inner/two': 'n: 2',
    'g/sub/x': 'x: 1',
    'db/first': 'f: 1',
    'db/second': 's: 1',
    'world/header': '# @package elsewhere\nw: 1',
    'opt/big_opt': 'size: big',
    'opt/small_opt': 'size: small',
    'db_name/big': '{}',
    'db_name/small': 'b: 1',
    siblings: 'defaults: [{ g: one }, late, _self_]',
    late: 'defaults: [{ override g/inner: two }, _self_]',
    scalars:
      'many: 100_000\noctal: 010\non: yes\nletter: y\nfloat: 1e-6\nday: 2026-01-02\nbase: &b { c: 1 }\nmerged: { <<: *b, d: 2 }',
  };
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(join(root, name)), { recursive: true });
    writeFileSync(join(root, `${name}.yaml`), text);
  }
  const places = directoryFiles(root);
  const composed = (name: string, ...args: string[]) =>
    compose(
      name,
      places,
      args.map((argument) => groupChoice(argument, places)).filter((choice) => choice !== null),
    );
  const tree = {
    there: { p: 1 },
    g: { i: 1 },
    at: { inner: { n: 2 }, p: 1, a: 1, sub: { x: 1 }, own: 1 },
    deep: { size: 'big' },
    db: { f: 1, s: 1 },
    elsewhere: { w: 1 },
    kept: { w: 1 },
    o: { p: { size: 'big' } },
    db_name: {},
  };

  it('have packages of files and of groups, lists of options, absolute groups and options named by other groups', () => {
    expect(composed('primary')).toEqual({ tree, missing: [], unused: [] });
  });

  it('give way to the command line', () => {
    expect(composed('primary', 'db_name=small').tree).toEqual({
      ...tree,
      o: { p: { size: 'small' } },
      db_name: { b: 1 },
    });
    expect(composed('primary', 'g/inner@at.inner=one').tree).toEqual({
      ...tree,
      at: { ...tree.at, inner: { n: 1 } },
    });
  });

  it('are read from their end: what a later file overrides holds in an earlier one', () => {
    expect(composed('siblings').tree).toMatchObject({ g: { inner: { n: 2 }, a: 1 } });
  });

  it('that have no such group are said', () => {
    expect(composed('primary', 'g@nowhere=one')).toEqual({ tree, missing: [], unused: ['g@nowhere=one'] });
  });

  it('stand in YAML as OmegaConf reads it', () => {
    expect(composed('scalars').tree).toEqual({
      many: 100_000,
      octal: 8,
      true: true,
      letter: 'y',
      float: 1e-6,
      day: '2026-01-02',
      base: { c: 1 },
      merged: { c: 1, d: 2 },
    });
  });
});
