import { readFileSync, writeFileSync } from 'node:fs';
import { runCommand } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';

// A whole run with a reward function in Python, and the same function in JavaScript.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  writeFileSync(workspace.file('reward.js.cjs'), JAVASCRIPT);
  writeFileSync(workspace.file('reward.py'), PYTHON);
  writeFileSync(workspace.file('batch.js.cjs'), BATCH_JAVASCRIPT);
  writeFileSync(workspace.file('batch.py'), BATCH_PYTHON);
});
afterAll(() => workspace.remove());

const JAVASCRIPT = `exports.compute_score = ({ response, groundTruth, extraInfo, dataSource, numTurns }, { weight }) => {
  let sevens = 0;
  for (const c of response) if (c === '7') sevens += 1;
  const score = sevens / 7 - (weight * response.length) / 3 + groundTruth.length * 0.1;
  return { score, acc: response === groundTruth, index: extraInfo.index, turns: numTurns, source: dataSource };
};
`;
const PYTHON = `import asyncio

print("loaded")

async def compute_score(data_source, solution_str, ground_truth, extra_info=None, weight=0):
    print("scoring", solution_str)
    await asyncio.sleep(0.001 * len(solution_str))
    score = solution_str.count("7") / 7 - (weight * len(solution_str)) / 3 + len(ground_truth) * 0.1
    return {"score": score, "acc": solution_str == ground_truth, "index": extra_info["index"],
            "turns": extra_info["num_turns"], "source": data_source}
`;
const BATCH_JAVASCRIPT = `exports.compute_score = (samples, { weight }) =>
  samples.map(({ response, groundTruth }) => ({ score: (weight * response.length) / 3 + groundTruth.length / 7, n: samples.length }));
`;
const BATCH_PYTHON = `def compute_score(data_sources, solution_strs, ground_truths, extra_infos, weight):
    return [{"score": weight * len(s) / 3 + len(t) / 7, "n": len(solution_strs)} for s, t in zip(solution_strs, ground_truths)]
`;

/** Metrics without those of the clock and of memory, and the samples, line by line. */
async function train(file: string, manager: string) {
  const name = `${file.replaceAll('.', '-')}-${manager}`;
  const exit = await runCommand([
    'train',
    workspace.file('train.yaml'),
    `reward.custom_reward_function={path: ${workspace.file(file)}, reward_kwargs: {weight: 0.3}}`,
    `reward.reward_manager.name=${manager}`,
    'reward.num_workers=2',
    'reward.on_error=fail',
    `trainer.default_local_dir=${workspace.file(name)}`,
    'trainer.total_training_steps=2',
    `trainer.rollout_data_dir=${workspace.file(`${name}/dump`)}`,
  ]);
  expect(exit).toMatchObject({ code: 0, signal: null });
  const metrics = readFileSync(workspace.file(`${name}/metrics.jsonl`), 'utf8')
    .trim()
    .split('\n')
    .map((line) => {
      const all = Object.entries(JSON.parse(line) as Record<string, unknown>);
      return Object.fromEntries(all.filter(([key]) => !/timing|^perf|time|memory|throughput/.test(key)));
    });
  const dumps = [1, 2].map((step) => readFileSync(workspace.file(`${name}/dump/${step}.jsonl`), 'utf8'));
  return { metrics, dumps, ...exit };
}

it.each([
  ['naive', 'reward'],
  ['prime', 'reward'],
  ['batch', 'batch'],
])('%s: the same metrics and scores as in JavaScript, to the bit', async (manager, file) => {
  const there = await train(`${file}.js.cjs`, manager);
  const here = await train(`${file}.py`, manager);
  expect(here.metrics.length).toBeGreaterThan(2);
  expect(here.metrics).toEqual(there.metrics);
  expect(here.metrics.some((one) => typeof one['critic/score/mean'] === 'number')).toBe(true);
  expect(here.dumps).toEqual(there.dumps);
  expect(here.dumps[0]).toMatch(/"score":-?0\.\d{10}/);
  if (file === 'reward') {
    expect(here.dumps[0]).toMatch(/"turns":2/);
    expect(here.stderr).toMatch(/^loaded$/m);
    expect(here.stdout).not.toMatch(/^(loaded|scoring)/m);
  }
});

it('is refused before the model is loaded where it cannot work', async () => {
  writeFileSync(workspace.file('bad.py'), 'from no_such_package import verify\n');
  const exit = await runCommand([
    'train',
    workspace.file('train.yaml'),
    `reward.custom_reward_function.path=${workspace.file('bad.py')}`,
    `trainer.default_local_dir=${workspace.file('bad')}`,
  ]);
  expect(exit.code).toBe(2);
  expect(exit.stderr).toMatch(
    /INVALID_CONFIG.*reward\.custom_reward_function\.path: .*python3.* could not load .*bad\.py: ModuleNotFoundError: No module named 'no_such_package', at .*bad\.py:1/,
  );
});

it('is told the experiment by the manager gdpo', async () => {
  writeFileSync(
    workspace.file('named.py'),
    'def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return {"score": 1, "experiment": extra_info["experiment_name"]}\n',
  );
  const exit = await runCommand([
    'train',
    workspace.file('train.yaml'),
    `reward.custom_reward_function.path=${workspace.file('named.py')}`,
    'reward.reward_manager.name=gdpo',
    'trainer.experiment_name=qwen_tools',
    'trainer.total_training_steps=1',
    `trainer.default_local_dir=${workspace.file('named')}`,
    `trainer.rollout_data_dir=${workspace.file('named/dump')}`,
  ]);
  expect(exit).toMatchObject({ code: 0, signal: null });
  expect(readFileSync(workspace.file('named/dump/1.jsonl'), 'utf8')).toMatch(/"experiment":"qwen_tools"/);
});
