import { readFileSync, writeFileSync } from 'node:fs';
import { runCommand } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';

// Reward functions that misbehave in a whole run: it goes on or stops as configured, and comes to its end.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  writeFileSync(workspace.file('bad.cjs'), BAD);
});
afterAll(() => workspace.remove());

/** Fails in its way for responses that begin with a digit below 5, and leaves something behind that would keep a program alive. */
const BAD = `setInterval(() => {}, 1000);
const ways = {
  throws: () => { throw new Error('boom'); },
  hangs: () => new Promise(() => {}),
  nan: () => NaN,
  circle: () => { const all = { score: 1 }; all.self = all; return all; },
  loops: () => { for (;;); },
  exits: () => process.exit(3),
};
exports.compute_score = ({ response }, { way }) =>
  /^[0-4]/.test(response) ? ways[way]() : { score: response.length / 8, __proto__: { x: 1 } };
`;

const train = (name: string, way: string, overrides: readonly string[]) =>
  runCommand([
    'train',
    workspace.file('train.yaml'),
    `reward.custom_reward_function={path: ${workspace.file('bad.cjs')}, reward_kwargs: {way: ${way}}}`,
    'reward.timeout=0.5',
    `trainer.default_local_dir=${workspace.file(name)}`,
    'trainer.total_training_steps=2',
    ...overrides,
  ]);

const failures = (name: string): number[] =>
  readFileSync(workspace.file(`${name}/metrics.jsonl`), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line)['reward/failures'])
    .filter((count) => count !== undefined);

it.each([
  ['throws', 'naive'],
  ['hangs', 'naive'],
  ['circle', 'naive'],
  ['hangs', 'rate_limited'],
  ['loops', 'prime'],
  ['exits', 'prime'],
])('%s, %s: the run goes on where failures score 0', async (way, manager) => {
  const name = `${way}-${manager}`;
  const exit = await train(name, way, [
    'reward.on_error=zero',
    `reward.reward_manager.name=${manager}`,
    'reward.max_concurrent=64',
    'reward.num_workers=2',
  ]);
  expect(exit).toMatchObject({ code: 0, signal: null });
  expect(failures(name)).toHaveLength(2);
  expect(Math.max(...failures(name))).toBeGreaterThan(0);
});

it.each(['hangs', 'nan'])('%s: the run stops where they are errors', async (way) => {
  const exit = await train(`strict-${way}`, way, ['reward.on_error=fail']);
  expect(exit).toMatchObject({ code: 1, signal: null });
  expect(exit.stderr).toMatch(
    /^troupe: error \(REWARD_FAILED\): \[reward\] .* for response \d+ of the batch/,
  );
});
