import { existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { allGone, Command, listTree, runCommand } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';

// Checkpoints that pass through memory, on four workers; here a directory of the workspace is the memory.

let workspace: Workspace;
let memory: string;
beforeAll(async () => {
  workspace = await Workspace.create();
  memory = workspace.file('memory');
  mkdirSync(memory);
});
afterAll(() => workspace.remove());

const args = (name: string, ...overrides: string[]): string[] => [
  'train',
  workspace.file('train.yaml'),
  `trainer.default_local_dir=${workspace.file(name)}`,
  'trainer.n_gpus_per_node=4',
  'trainer.total_training_steps=6',
  'trainer.test_freq=-1',
  ...overrides,
];
const staged = (name: string, ...overrides: string[]): string[] =>
  args(name, `trainer.checkpoint_staging.directory=${memory}`, ...overrides);
const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');

/** The last step in the metrics of a run so far. */
function stepOf(name: string): number {
  if (!existsSync(join(workspace.file(name), 'metrics.jsonl'))) return 0;
  const last = metrics(name).trimEnd().split('\n').at(-1) as string;
  return last === '' ? 0 : (JSON.parse(last) as { step: number }).step;
}

test('async: the files of checkpoints that were written at once; every_step: a killed trainer repeats one step', async () => {
  expect(await runCommand(args('plain'))).toMatchObject({ code: 0 });
  expect(await runCommand(staged('async', 'trainer.checkpoint_staging.async=true'))).toMatchObject({
    code: 0,
    stderr: '',
  });
  expect(metrics('async')).toBe(metrics('plain'));
  const files = (name: string): string[] =>
    listTree(workspace.file(name)).filter((path) => /^global_step_\d+\/.*safetensors$/.test(path));
  expect(files('async')).toEqual(files('plain'));
  for (const path of files('plain'))
    expect([path, readFileSync(join(workspace.file('async'), path))]).toEqual([
      path,
      readFileSync(join(workspace.file('plain'), path)),
    ]);

  const held = ['trainer.checkpoint_staging.every_step=true', 'trainer.save_freq=-1'];
  const killed = new Command(staged('killed', ...held));
  await killed.until('three steps', () => stepOf('killed') >= 3);
  const workers = killed.workers();
  killed.kill('SIGKILL');
  await killed.exited;
  expect(await allGone(workers, 5_000)).toBe(true);
  const done = stepOf('killed');
  const again = await runCommand(staged('killed', ...held));
  expect(again.code === 0 ? '' : again.stderr).toBe('');
  const from = Number(/resuming after step (\d+) from .*memory/.exec(again.stdout)?.[1]);
  // The step whose line had been written may not have been held yet.
  expect([done, done - 1]).toContain(from);
  expect(metrics('killed')).toBe(metrics('plain'));
  expect(readdirSync(memory)).toEqual([]);
}, 600_000);

test.each([[true], [false]])(
  'a step that ought to be on the disk and is in memory alone is saved by the next process, async: %s',
  async (again) => {
    const name = `left_${again}`;
    const held = ['trainer.checkpoint_staging.every_step=true', 'trainer.save_freq=-1'];
    const killed = new Command(staged(name, ...held));
    await killed.until('two steps', () => stepOf(name) >= 2);
    const workers = killed.workers();
    killed.kill('SIGKILL');
    await killed.exited;
    expect(await allGone(workers, 5_000)).toBe(true);
    const [place] = readdirSync(memory);
    const step = readFileSync(
      join(memory, place as string, 'latest_checkpointed_iteration.txt'),
      'utf8',
    ).trim();
    const result = await runCommand(
      staged(
        name,
        `trainer.total_training_steps=${step}`,
        'trainer.save_freq=1000',
        `trainer.checkpoint_staging.async=${again}`,
      ),
    );
    expect(result.code === 0 ? '' : result.stderr).toBe('');
    expect(listTree(workspace.file(name))).toContain(`global_step_${step}/trainer.json`);
    expect(readdirSync(memory)).toEqual([]);
  },
  300_000,
);
