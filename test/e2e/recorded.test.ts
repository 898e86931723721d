import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadConfig, Trainer } from '../../ts/index';
import { Workspace } from '../helpers/e2e_workspace';

// Runs that take the responses of some steps from an earlier one (skip.rollout).

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

async function train(name: string, overrides: string[]): Promise<Record<string, number>[]> {
  const directory = workspace.file(name);
  const config = loadConfig(workspace.file('train.yaml'), [
    'trainer.total_training_steps=3',
    'trainer.save_freq=-1',
    'trainer.test_freq=-1',
    'trainer.val_before_train=false',
    'trainer.logger=[]',
    'actor_rollout_ref.actor.optim.lr_warmup_steps=0',
    `trainer.default_local_dir=${directory}`,
    ...overrides,
  ]);
  await new Trainer(config, {}).fit();
  const lines = readFileSync(join(directory, 'metrics.jsonl'), 'utf8').trim().split('\n');
  // Times and memory are of the machine.
  return lines.map((line) =>
    Object.fromEntries(
      Object.entries(JSON.parse(line) as Record<string, number>).filter(
        ([key]) => !/^(timing|perf|skip)/.test(key),
      ),
    ),
  );
}

test('kept responses make the same steps, and say so where the weights are others', async () => {
  const kept = [
    'skip.rollout.enable=true',
    `skip.rollout.dump_dir=${workspace.file('kept')}`,
    'skip.rollout.steps=[1,2]',
    'trainer.project_name=p',
    'trainer.experiment_name=e',
  ];
  const plain = await train('plain', []);
  expect(await train('first', kept)).toEqual(plain);
  expect(readdirSync(join(workspace.file('kept'), 'p', 'e')).sort()).toEqual(['1.jsonl', '2.jsonl']);
  expect(await train('second', kept)).toEqual(plain);
  const difference = 'training/rollout_probs_diff_max';
  expect(plain[1]?.[difference]).toBeLessThan(1e-5);
  // Another learning rate: the second step learns from what the policy of then has said.
  const other = await train('other', [...kept, 'actor_rollout_ref.actor.optim.lr=0.03']);
  expect(other[0]?.['critic/score/mean']).toBe(plain[0]?.['critic/score/mean']);
  expect(other[1]?.['critic/score/mean']).toBe(plain[1]?.['critic/score/mean']);
  expect(other[1]?.[difference]).toBeGreaterThan(1e-3);
});
