import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { allGone, Command, runCommand } from '../helpers/e2e_process';
import { BATCH, VALIDATION_PROMPTS, Workspace } from '../helpers/e2e_workspace';
import { StuckFunction } from '../helpers/stuck_function';

// A rank of a real run that hangs in native code: it lives and answers, and never comes to a collective in which the others wait.

const stuck = new StuckFunction('troupe::Communicator::reduce_scatter_async');

/** The usual reward; the third step waits for the file "go". */
const REWARD = `const { existsSync } = require('node:fs');
const { join } = require('node:path');
const quick = require('./reward.cjs').compute_score;
let calls = 0;
exports.compute_score = async (sample) => {
  const held = ++calls > ${2 * (VALIDATION_PROMPTS + BATCH.prompts * BATCH.n)};
  while (held && !existsSync(join(__dirname, 'go'))) await new Promise((done) => setTimeout(done, 20));
  return quick(sample);
};
`;

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  writeFileSync(workspace.file('held.cjs'), REWARD);
});
afterAll(() => workspace.remove());

const args = (name: string): string[] => [
  'train',
  workspace.file('train.yaml'),
  `trainer.default_local_dir=${workspace.file(name)}`,
  'trainer.n_gpus_per_node=2',
  'trainer.worker_timeouts.call_floor=10',
  'trainer.fault_tolerance.max_restarts=3',
];
const read = (name: string, file: string): string => readFileSync(join(workspace.file(name), file), 'utf8');

const title =
  'a rank that never enters a collective is named, with its stack; the run goes on to the same metrics';
const testStuck = (body: () => Promise<void>): void =>
  stuck.obstacle === null
    ? test(title, body, 600_000)
    : test.skip(`${title} (${stuck.obstacle})`, body, 600_000);

testStuck(async () => {
  const whole = await runCommand(args('whole'));
  expect(whole.code === 0 ? '' : whole.stderr).toBe('');

  const run = new Command([
    ...args('stuck'),
    `reward.custom_reward_function.path=${workspace.file('held.cjs')}`,
  ]);
  await run.until('the second step', () => run.said(/^step 2\/4 \| checkpoint/m));
  const workers = run.workers();
  expect(workers).toHaveLength(2);
  const isSecond = (pid: number): boolean =>
    readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('worker 1/2');
  stuck.in(workers.find(isSecond) as number);
  writeFileSync(workspace.file('go'), '');
  const exit = await run.exited;
  expect(exit.code === 0 ? '' : `${exit.stdout}\n${exit.stderr}`).toBe('');
  expect(exit.stdout).toMatch(
    /failed after step 2: worker rank 1 died in phase update_actor of step 3 \(updatePolicy of 'actor'\): it hangs: updatePolicy of 'actor' has taken \d+\.\d s so far \(limit: .*trainer\.worker_timeouts\.call_f/,
  );
  expect(exit.stdout).toMatch(/It was at\n *(Thread|TID) .*troupe-engine/);
  // What a debugger says; without one, or where it takes too long, it is what the kernel knows.
  const frame = /\n +#0 (.*)/.exec(exit.stdout)?.[1];
  if (frame !== undefined) expect(frame).toContain('Communicator::reduce_scatter');
  expect(exit.stdout).toMatch(
    /Its peers were in a collective: rank 0: reduce_scatter #\d+ of .* \(backward\)/,
  );
  expect(exit.stdout.match(/^restart \d/gm)).toEqual(['restart 1']);
  expect(JSON.parse(read('stuck', 'faults.jsonl').split('\n')[0] as string)).toMatchObject({
    event: 'fault',
    step: 2,
    rank: 1,
    phase: 'update_actor of step 3',
    restart: true,
  });
  expect(read('stuck', 'metrics.jsonl')).toBe(read('whole', 'metrics.jsonl'));
  expect(await allGone(workers, 5_000)).toBe(true);
});
