import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Batch } from '../../ts/batch/batch';
import { Tokenizer } from '../../ts/data/tokenizer';
import { RewardModel } from '../../ts/reward_model/reward_model';
import { allGone, Command } from '../helpers/e2e_process';
import { rewardTensors, Workspace, writeModel } from '../helpers/e2e_workspace';

// `troupe train` with a reward model among the workers.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  await writeModel(workspace.file('reward_model'), { tensors: rewardTensors() });
  writeFileSync(
    workspace.file('tokens.cjs'),
    'exports.compute_score = ({ rewardModelScore, responseTokens }) => ({ score: rewardModelScore, ids: [...responseTokens] });',
  );
});
afterAll(() => workspace.remove());

const start = (name: string, ...overrides: string[]): Command =>
  new Command([
    'train',
    workspace.file('train.yaml'),
    'reward.custom_reward_function.path=null',
    'reward.reward_model.enable=true',
    `reward.reward_model.model_path=${workspace.file('reward_model')}`,
    'reward.reward_model.forward_max_token_len_per_gpu=256',
    `trainer.default_local_dir=${workspace.file(name)}`,
    `trainer.rollout_data_dir=${workspace.file(`${name}_rollouts`)}`,
    'trainer.total_training_steps=2',
    ...overrides,
  ]);

const train = (name: string, ...overrides: string[]) => start(name, ...overrides).exited;

const OWN_WORKERS = ['enable_resource_pool=true', 'nnodes=1', 'n_gpus_per_node=2'].map(
  (key) => `reward.reward_model.${key}`,
);

interface Row {
  input: string;
  ids: number[];
  score: number;
}

const rows = (name: string, step: number): Row[] =>
  readFileSync(join(workspace.file(`${name}_rollouts`), `${step}.jsonl`), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

test('the scores of a run are those of the model, with and without a reward function that passes them on', async () => {
  const reward = `reward.custom_reward_function.path=${workspace.file('tokens.cjs')}`;
  expect(await train('run', reward)).toMatchObject({ code: 0 });
  const dumped = [...rows('run', 1), ...rows('run', 2)];
  expect(dumped).toHaveLength(32);
  expect(new Set(dumped.map(({ score }) => score)).size).toBeGreaterThan(4);

  const tokenizer = Tokenizer.load(workspace.file('model'));
  const model = await RewardModel.create({
    model: workspace.file('reward_model'),
    maxTokensPerMicroBatch: 256,
  });
  try {
    const prompts = dumped.map(({ input }) => tokenizer.encode(input));
    const scores = await model.score(
      Batch.fromSequences(
        prompts,
        dumped.map(({ ids }) => ids),
      ),
    );
    expect(dumped.map(({ score }) => score)).toEqual(Array.from(scores));
  } finally {
    await model.close();
  }

  expect(await train('plain')).toMatchObject({ code: 0 });
  const plain = [...rows('plain', 1), ...rows('plain', 2)];
  expect(plain.map(({ score }) => score)).toEqual(dumped.map(({ score }) => score));

  expect(await train('own', ...OWN_WORKERS)).toMatchObject({ code: 0, stderr: '' });
  expect([...rows('own', 1), ...rows('own', 2)]).toEqual(plain);
});

test('a worker of its pool dies, whatever it is at: exit code 1, one error, nothing left', async () => {
  const run = start('killed', ...OWN_WORKERS, 'actor_rollout_ref.actor.ppo_epochs=500');
  await run.until('the first step', () => existsSync(workspace.file('killed/samples/1.jsonl')));
  const workers = run.workers();
  expect(workers).toHaveLength(3);
  const last = workers.find((pid) =>
    readFileSync(`/proc/${pid}/environ`, 'utf8').includes('\0LOCAL_RANK=2\0'),
  );
  process.kill(last as number, 'SIGKILL');
  const { code, stderr } = await run.exited;
  expect(code).toBe(1);
  expect(stderr).toMatch(/worker rank 1 of pool reward died in phase [\w ()']+: killed by SIGKILL/);
  expect(stderr.match(/troupe: error/g)).toHaveLength(1);
  expect(await allGone(workers, 5000)).toBe(true);
});

test('remax, and PPO with a critic, run with it', async () => {
  const short = ['trainer.total_training_steps=1', 'trainer.val_before_train=false'];
  expect(await train('remax', 'algorithm.adv_estimator=remax', ...short)).toMatchObject({ code: 0 });
  expect(
    await train(
      'ppo',
      'algorithm.adv_estimator=gae',
      `critic.model.path=${workspace.file('model')}`,
      ...short,
    ),
  ).toMatchObject({ code: 0 });
});

test('a causal LM in its place is refused before training', async () => {
  const result = await train('bad', `reward.reward_model.model_path=${workspace.file('model')}`);
  expect(result.code).toBe(1);
  expect(result.stderr).toMatch(/has no score\.weight \[1, 32\]: expected a reward model/);
});
