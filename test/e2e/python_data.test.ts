import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { allGone, Command, type Exit, runCommand } from '../helpers/e2e_process';
import { promptRows, Workspace, writeJsonLines } from '../helpers/e2e_workspace';
import { readSafetensors } from '../helpers/safetensors';

// Whole runs on a data set class in Python (data.custom_cls).

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  // A copy: Python writes beside what it imports.
  const fixture = join(__dirname, '../fixtures/python_dataset.py');
  writeFileSync(workspace.file('dataset.py'), readFileSync(fixture, 'utf8'));
});
afterAll(() => workspace.remove());

const classOf = (name: string): string =>
  `data.custom_cls={path: ${workspace.file('dataset.py')}, name: ${name}}`;

async function train(name: string, ...overrides: string[]): Promise<Exit> {
  const directory = `trainer.default_local_dir=${workspace.file(name)}`;
  const dump = [
    `trainer.rollout_data_dir=${workspace.file(`${name}/dump`)}`,
    `trainer.validation_data_dir=${workspace.file(`${name}/validated`)}`,
  ];
  return await runCommand(['train', workspace.file('train.yaml'), directory, ...dump, ...overrides]);
}

/** Metrics, the trained tensors, samples and what was validated. */
function resultOf(name: string): unknown {
  const dumps = ['dump', 'validated'].flatMap((part) =>
    readdirSync(workspace.file(`${name}/${part}`))
      .sort()
      .map((file) => [part, file, readFileSync(workspace.file(`${name}/${part}/${file}`), 'utf8')]),
  );
  return {
    metrics: readFileSync(workspace.file(`${name}/metrics.jsonl`), 'utf8'),
    model: readSafetensors(workspace.file(`${name}/final_model/model.safetensors`)),
    dumps,
  };
}

it('a class that changes nothing trains on the files to the bit, and the next one on what it makes of them', async () => {
  // One prompt is too long, and left out.
  const long = { ...promptRows(1)[0], prompt: '11+22+33+44=' };
  writeJsonLines(workspace.file('long.jsonl'), [long, ...promptRows(20)]);
  const filter = ['data.filter_overlong_prompts=true', `data.train_files=${workspace.file('long.jsonl')}`];
  expect(await train('files', ...filter)).toMatchObject({ code: 0 });
  const run = await train('lines', classOf('Lines'), ...filter);
  expect(run).toMatchObject({ code: 0, signal: null });
  expect(run.stdout).toMatch(/data\.custom_cls: Lines of .*dataset\.py made 21 training rows/);
  expect(run.stdout).toMatch(/made 3 validation rows/);
  expect(run.stderr).toMatch(/^read 21 False$/m);
  expect(resultOf('lines')).toEqual(resultOf('files'));

  // The same rows, written by the test.
  const swapped = (count: number): object[] =>
    promptRows(count).map((row) => {
      const [a, b] = (row['prompt'] as string).replace('=', '').split('+');
      return {
        ...row,
        prompt: `${b}+${a}=`,
        extra_info: { ...(row['extra_info'] as object), from: 'Swapped' },
      };
    });
  writeJsonLines(workspace.file('swapped.jsonl'), swapped(20));
  writeJsonLines(workspace.file('swapped_val.jsonl'), swapped(3));
  const files = [
    `data.train_files=${workspace.file('swapped.jsonl')}`,
    `data.val_files=${workspace.file('swapped_val.jsonl')}`,
  ];
  expect(await train('swapped_files', ...files)).toMatchObject({ code: 0 });
  expect(await train('swapped', classOf('Swapped'))).toMatchObject({ code: 0 });
  expect(resultOf('swapped')).toEqual(resultOf('swapped_files'));
  expect(resultOf('swapped')).not.toEqual(resultOf('files'));
});

it('a run that is resumed gives the bits of one that is not', async () => {
  expect(await train('straight', classOf('Swapped'))).toMatchObject({ code: 0 });
  const first = await train('halves', classOf('Swapped'), 'trainer.total_training_steps=2');
  expect(first).toMatchObject({ code: 0 });
  expect(await train('halves', classOf('Swapped'))).toMatchObject({ code: 0 });
  expect(resultOf('halves')).toEqual(resultOf('straight'));
});

it('a run is not resumed on other rows', async () => {
  expect(await train('random', classOf('Random'), 'trainer.total_training_steps=1')).toMatchObject({
    code: 0,
  });
  const again = await train('random', classOf('Random'), 'trainer.total_training_steps=2');
  expect(again.code).not.toBe(0);
  expect(again.stderr).toMatch(
    /INVALID_DATA.*cannot resume: the checkpoint was made with the rows of a class \(data\.custom_cls\), SHA-256 [0-9a-f]{12}, now they are those of a class .*, SHA-256 [0-9a-f]{12}: expected the same rows/,
  );
  expect(existsSync(workspace.file('random/global_step_2'))).toBe(false);
  const other = await train('random', classOf('Lines'), 'trainer.total_training_steps=2');
  expect(other.stderr).toMatch(/data\.custom_cls\.name/);
  expect(other.code).not.toBe(0);
});

it('a signal while rows are made ends the run at once, with all that the class has started', async () => {
  // Its row never comes.
  writeFileSync(
    workspace.file('slow.py'),
    `import os, time
class Slow:
    def __init__(self, **_): print("making", os.getpid(), flush=True)
    def __len__(self): return 1
    def __getitem__(self, item): time.sleep(600)
`,
  );
  const slow = `data.custom_cls={path: ${workspace.file('slow.py')}, name: Slow}`;
  const directory = `trainer.default_local_dir=${workspace.file('slow')}`;
  const command = new Command(['train', workspace.file('train.yaml'), directory, slow]);
  await command.until('the class is made', () => command.said(/^making \d+$/m));
  const maker = Number(/^making (\d+)$/m.exec(command.stderr)?.[1]);
  command.killGroup('SIGINT');
  const { code, stdout } = await command.exited;
  expect(code).toBe(130);
  expect(stdout).toMatch(/stopped by SIGINT before the first step was done: there is nothing to save/);
  expect(await allGone([maker], 5_000)).toBe(true);
  expect(existsSync(workspace.file('slow'))).toBe(false);
});

it('a row that fails ends the run before it has begun', async () => {
  const rows = (value: string): string =>
    `data.custom_cls={path: ${workspace.file('dataset.py')}, name: Given, config: {rows: ['row()', '${value}']}}`;
  const run = await train('failed', rows('row(extra_info={"a": [][1]})'));
  expect(run.code).not.toBe(0);
  expect(run.stderr).toMatch(
    /INVALID_DATA.*Given of .*dataset\.py: training row 1: IndexError: list index out of range/,
  );
  expect(existsSync(workspace.file('failed/metrics.jsonl'))).toBe(false);
  // What the trainer finds itself names the row as well.
  const wrong = await train('wrong', rows('row(prompt=5)'));
  expect(wrong.stderr).toMatch(
    /INVALID_DATA.*\[data\] Given of .*dataset\.py, training, row 1: expected a prompt string or a list of \{role, content\}, got 5/,
  );
});

it('validate looks for the file, and troupe sft refuses a class', async () => {
  const validate = (...args: string[]): Promise<Exit> => runCommand(['validate', ...args]);
  const there = await validate(workspace.file('train.yaml'), classOf('Lines'));
  expect(there).toMatchObject({ code: 0 });
  const missing = await validate(
    workspace.file('train.yaml'),
    'data.custom_cls={path: /nowhere/a.py, name: A}',
  );
  expect(missing).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(/data\.custom_cls\.path: there is no file \/nowhere\/a\.py/),
  });
  const sft = await validate(workspace.file('sft.yaml'), classOf('Lines'));
  expect(sft).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(/data\.custom_cls\.path: .*needs a data set class in Python/),
  });
});
