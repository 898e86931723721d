import { readFileSync, writeFileSync } from 'node:fs';
import { dump } from 'js-yaml';
import { loadConfig } from '../../ts/config/config';
import { importVerl } from '../../ts/config/verl/import';
import { readVerlSource } from '../../ts/config/verl/source';
import { Trainer } from '../../ts/trainer/trainer';
import { Workspace } from '../helpers/e2e_workspace';

// Launch commands of verl's asynchronous programs, from the import to the last step.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

type Line = Record<string, number>;

async function run(name: string, program: string, keys: string): Promise<Line[]> {
  const { data, actor_rollout_ref: roles, reward } = loadConfig(workspace.file('train.yaml'));
  const script = workspace.file(`${name}.sh`);
  const shared = {
    'data.train_files': data.train_files[0],
    'data.val_files': 'null',
    'data.max_prompt_length': data.max_prompt_length,
    'data.max_response_length': data.max_response_length,
    'actor_rollout_ref.model.path': roles.model.path,
    'actor_rollout_ref.hybrid_engine': 'False',
    'actor_rollout_ref.actor.fsdp_config.dtype': 'float32',
    'actor_rollout_ref.actor.ppo_mini_batch_size': 2,
    'actor_rollout_ref.rollout.n': 2,
    'algorithm.adv_estimator': 'grpo',
    'trainer.device': 'cpu',
    'trainer.n_gpus_per_node': 1,
    'trainer.val_before_train': 'False',
    'trainer.logger': 'console',
    'trainer.default_local_dir': workspace.file(name),
    'rollout.nnodes': 1,
    'rollout.n_gpus_per_node': 1,
  };
  const words = Object.entries(shared).map(([key, value]) => `${key}=${value}`);
  writeFileSync(script, `python3 -m ${program} ${words.join(' ')} ${keys}\n`);
  const environment = { PATH: process.env['PATH'], HOME: process.env['HOME'] };
  const { config, notMapped } = importVerl(
    readVerlSource(script, [], { environment, version: 'main', run: false }),
  );
  expect(notMapped).toEqual([]);
  const file = workspace.file(`${name}.yaml`);
  writeFileSync(file, dump(config));
  // verl's own would be Python.
  const path = reward.custom_reward_function.path;
  await new Trainer(loadConfig(file, [`reward.custom_reward_function.path=${path}`])).fit();
  const lines = readFileSync(workspace.file(`${name}/metrics.jsonl`), 'utf8')
    .trim()
    .split('\n');
  return lines.map((line) => JSON.parse(line));
}

const OLDEST = 'training/off_policy/trajectory_staleness_worst/max';

test('one step off: no response is of weights that are more than a step old', async () => {
  const lines = await run(
    'one_step_off',
    'verl.experimental.one_step_off_policy.main_ppo',
    'data.train_batch_size=4 trainer.total_training_steps=4',
  );
  expect(lines).toHaveLength(4);
  for (const line of lines) expect(line[OLDEST]).toBeLessThanOrEqual(1);
}, 240_000);

test('fully asynchronous: prompts are counted in steps that lie between two updates of the rollout’s weights', async () => {
  const lines = await run(
    'fully_async',
    'verl.experimental.fully_async_policy.fully_async_main',
    'data.train_batch_size=0 async_training.trigger_parameter_sync_step=2 async_training.staleness_threshold=0.5 ' +
      'rollout.total_rollout_steps=18',
  );
  expect(lines).toHaveLength(4);
  // One response is shown of each prompt, and there are two mini-batches of two.
  const samples = readFileSync(workspace.file('fully_async/samples/1.jsonl'), 'utf8');
  expect(samples.trim().split('\n')).toHaveLength(4);
  // Half a batch is worked on ahead: it is a step old at most, unless a response takes longer than that.
  expect(lines[0]?.[OLDEST]).toBe(0);
}, 240_000);
