import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path, { join } from 'node:path';
import { getPath } from '../../../ts/config/reading/tree';
import { compose, groupChoice } from '../../../ts/config/verl/compose';
import { checkoutOf, directoryFiles, tableFiles, VERL_VERSIONS } from '../../../ts/config/verl/config_files';

const main = tableFiles('main');

describe("verl's own files", () => {
  it.each([
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

  it.each(VERL_VERSIONS)('%s has an SFT trainer', (version) => {
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

  it('are found around a script', () => {
    expect(checkoutOf(join(root, 'examples/deep/run.sh'))?.directory).toBe(join(root, 'verl/trainer/config'));
    expect(checkoutOf(join(tmpdir(), 'run.sh'))).toBeNull();
  });
});
