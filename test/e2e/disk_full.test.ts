import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { type Exit, listTree, runCommand } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';

// A checkpoint that does not fit: the run ends with one message, the checkpoint before it is as it was, and with more space
// the run goes on to the same numbers.

let workspace: Workspace;
let undisturbed: string;
beforeAll(async () => {
  workspace = await Workspace.create();
  expect(await train(workspace.file('undisturbed'))).toMatchObject({ code: 0 });
  undisturbed = metrics(workspace.file('undisturbed'));
});
afterAll(() => workspace.remove());

const metrics = (directory: string): string => readFileSync(`${directory}/metrics.jsonl`, 'utf8');
const train = (directory: string, overrides: string[] = [], prefix: string[] = []): Promise<Exit> =>
  runCommand(
    ['train', workspace.file('train.yaml'), `trainer.default_local_dir=${directory}`, ...overrides],
    {
      prefix,
    },
  );

/** The state after a step 2 that could not be saved. */
function expectStepOneIntact(directory: string): void {
  expect(readFileSync(`${directory}/latest_checkpointed_iteration.txt`, 'utf8')).toBe('1');
  expect(existsSync(`${directory}/global_step_2`)).toBe(false);
  expect(listTree(directory).filter((path) => path.includes('incomplete'))).toEqual([]);
  const whole = workspace.file('undisturbed/global_step_1');
  const files = (path: string): string[] => listTree(path);
  expect(files(`${directory}/global_step_1`)).toEqual(files(whole));
  for (const name of ['actor/model.safetensors', 'actor/optimizer/exp_avg.safetensors']) {
    expect(readFileSync(`${directory}/global_step_1/${name}`)).toEqual(readFileSync(`${whole}/${name}`));
  }
}

function expectOneMessage({ code, stderr }: Exit, ...says: string[]): void {
  expect(code).toBe(1);
  expect(stderr).toMatch(/^troupe: error/);
  expect(stderr.match(/error/g)).toHaveLength(1);
  expect(stderr).not.toMatch(/^\s+at /m);
  for (const part of says) expect(stderr).toContain(part);
}

/** Mounts a file system of this many KiB; the reason when this user or this machine does not allow it. */
function mountSmallDisk(directory: string, kib: number): string | null {
  mkdirSync(directory);
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${kib}k`, 'tmpfs', directory], { stdio: 'pipe' });
    return null;
  } catch (error) {
    return String(error);
  }
}

it('a disk that is full', async () => {
  const disk = workspace.file('disk');
  // One checkpoint takes about 260 KiB.
  const refused = mountSmallDisk(disk, 450);
  if (refused !== null) {
    console.warn(`skipped: a small file system cannot be mounted here (${refused})`);
    return;
  }
  try {
    const directory = `${disk}/run`;
    expectOneMessage(
      await train(directory),
      'NO_SPACE',
      ' KiB, where ',
      ' KiB were free)',
      `${directory}/global_step_2 was not saved`,
      'global_step_1 is',
    );
    expectStepOneIntact(directory);

    execFileSync('mount', ['-o', 'remount,size=10m', disk], { stdio: 'pipe' });
    expect(await train(directory)).toMatchObject({ code: 0, stderr: '' });
    expect(metrics(directory)).toBe(undisturbed);
  } finally {
    execFileSync('umount', [disk], { stdio: 'pipe' });
  }
});

it('a disk that takes nothing at all: nothing is left there', async () => {
  const directory = workspace.file('nothing');
  mkdirSync(directory);
  const limited = ['sh', '-c', 'trap "" XFSZ; ulimit -f 0; exec "$0" "$@"'];
  expectOneMessage(await train(directory, [], limited), `trainer.default_local_dir ${directory}`);
  expect(listTree(directory)).toEqual([]);
});

it('a limit on the size of files', async () => {
  const directory = workspace.file('limited');
  expect(await train(directory, ['trainer.total_training_steps=1', 'trainer.test_freq=-1'])).toMatchObject({
    code: 0,
  });
  // In blocks of 512 bytes: below the size of the weights, above that of the logs.
  const limited = ['sh', '-c', 'trap "" XFSZ; ulimit -f 100; exec "$0" "$@"'];
  expectOneMessage(await train(directory, [], limited), 'model.safetensors', 'global_step_1 is as it was');
  expectStepOneIntact(directory);
  expect(await train(directory)).toMatchObject({ code: 0, stderr: '' });
  expect(metrics(directory)).toBe(undisturbed);
});
