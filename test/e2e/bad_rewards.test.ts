import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { Command, runCommand, sleep } from '../helpers/e2e_process';
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
  loops: (marker) => { if (marker) require('node:fs').writeFileSync(marker, ''); for (;;); },
  exits: () => process.exit(0),
  floats: () => { Promise.reject(new Error('floating')); return new Promise(() => {}); },
  large: () => ({ score: 1, notes: 'x'.repeat(50e6) }),
};
exports.compute_score = ({ response }, { way, marker }) =>
  /^[0-4]/.test(response) ? ways[way](marker) : { score: response.length / 8, __proto__: { x: 1 } };
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
  ['loops', 'naive'],
  ['exits', 'naive'],
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

it.each(['hangs', 'nan', 'exits', 'floats', 'large'])(
  '%s: the run stops where they are errors',
  async (way) => {
    const exit = await train(`strict-${way}`, way, ['reward.on_error=fail']);
    expect(exit).toMatchObject({ code: 1, signal: null });
    expect(exit.stderr).toMatch(
      /^troupe: error \(REWARD_FAILED\): \[reward\] .* for response \d+ of the batch/,
    );
  },
);

it('a module that ends its process as it is loaded is named, and nothing is trained', async () => {
  writeFileSync(workspace.file('leaves.cjs'), 'process.exit(0);');
  const exit = await train('leaves', 'throws', [
    `reward.custom_reward_function.path=${workspace.file('leaves.cjs')}`,
  ]);
  expect(exit).toMatchObject({ code: 1, signal: null });
  expect(exit.stderr).toMatch(
    /^troupe: error \(REWARD_FAILED\): \[reward\] reward\.custom_reward_function\.path: .*exit code 0.*leaves\.cjs/,
  );
});

it('a library that ends the program does not make it a success', async () => {
  writeFileSync(workspace.file('library.cjs'), 'setTimeout(() => process.exit(0), 1500);');
  const exit = await train('library', 'hangs', [
    `actor_rollout_ref.model.external_lib=${workspace.file('library.cjs')}`,
    'reward.timeout=60',
  ]);
  expect(exit).toMatchObject({ code: 1, signal: null });
  expect(exit.stderr).toMatch(
    /error \(ABORTED\): the program was ended with exit code 0 before it was done: process\.exit was called at \/.*library\.cjs:1/,
  );
});

it.each(['SIGINT', 'SIGTERM'] as const)('a reward that loops leaves %s its power', async (signal) => {
  const marker = workspace.file(`begun-${signal}`);
  const command = new Command([
    'train',
    workspace.file('train.yaml'),
    `reward.custom_reward_function={path: ${workspace.file('bad.cjs')}, reward_kwargs: {way: loops, marker: ${marker}}}`,
    `trainer.default_local_dir=${workspace.file(`loops-${signal}`)}`,
  ]);
  await command.until('a reward began to loop', () => existsSync(marker));
  command.kill(signal);
  // npm passes a Ctrl-C on: within 0.2 s it is the same one.
  await sleep(400);
  command.kill(signal);
  const exit = await command.exited;
  expect(exit).toMatchObject({ code: 130, signal: null });
  expect(exit.stderr).toMatch(/once more leaves at once[\s\S]*leaving at once, without a checkpoint/);
});
