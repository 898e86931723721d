// The command `troupe generate`: what it prints and writes, on one worker and on two.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { runCommand } from '../helpers/e2e_process';
import { promptRows, Workspace, writeJsonLines } from '../helpers/e2e_workspace';

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

const ROWS = promptRows(5);
const SAMPLING = ['--max-new-tokens', '6', '--n', '3', '--seed', '4', '--device', 'cpu'];

const generate = (...options: string[]) =>
  runCommand(['generate', '--model', workspace.file('model'), ...SAMPLING, ...options]);
const linesOf = (text: string): Record<string, unknown>[] =>
  text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);

test('rows of a file, with their responses, are those that are printed, however many workers share them', async () => {
  const prompts = writeJsonLines(workspace.file('asked.jsonl'), ROWS);
  const printed = await generate('--prompts', prompts, '--json');
  expect(printed.code).toBe(0);
  const responses = ROWS.map((_, index) =>
    linesOf(printed.stdout)
      .filter((line) => line['index'] === index)
      .map(({ response }) => response),
  );
  expect(responses.map(({ length }) => length)).toEqual([3, 3, 3, 3, 3]);
  expect(new Set(responses.flat()).size).toBeGreaterThan(5);
  for (const [name, ...more] of [
    ['one.jsonl'],
    ['two.jsonl', '--workers', '2'],
    ['together.jsonl', '--workers', '2', '--tensor-parallel', '2'],
  ]) {
    const output = workspace.file(name as string);
    const { code, stdout } = await generate('--prompts', prompts, '--output', output, ...more);
    expect({ code, stdout }).toEqual({ code: 0, stdout: `${output}: 15 responses to 5 prompts\n` });
    expect(linesOf(readFileSync(output, 'utf8'))).toEqual(
      ROWS.map((row, i) => ({ ...row, responses: responses[i] })),
    );
  }
});

test('a place where nothing can be written is told before anything is loaded', async () => {
  const prompts = writeJsonLines(workspace.file('few.jsonl'), promptRows(2));
  const there = workspace.file('there.jsonl');
  writeFileSync(there, 'mine\n');
  const fresh = workspace.file('fresh.jsonl');
  for (const [exit, options, message] of [
    [
      1,
      ['--prompts', prompts, '--output', there],
      /IO.*--output: .*there\.jsonl is there already: move it away/,
    ],
    [
      1,
      ['--prompts', prompts, '--output', workspace.file('no/dir.jsonl')],
      /IO.*there is no directory .*\/no\n/,
    ],
    [
      2,
      ['--prompts', prompts, '--output', `${fresh}.parquet`],
      /--output: expected a \.jsonl file, got .*parquet/,
    ],
    [2, ['--prompt', '1+2=', '--output', fresh], /--output: expected --prompts FILE/],
    [2, ['--prompts', prompts, '--output', fresh, '--json'], /--output: expected no --json/],
    [
      1,
      ['--prompts', prompts, '--output', fresh, '--response-key', 'extra_info'],
      /few\.jsonl:1: there is a column 'extra_info' already: name another one by --response-key/,
    ],
    [2, ['--prompt', '1+2=', '--workers', '0'], /--workers: expected an integer from 1 to \d+ but got 0/],
    [
      2,
      ['--prompt', '1+2=', '--workers', '3', '--tensor-parallel', '2'],
      /--tensor-parallel: expected a divisor of --workers 3 but got 2/,
    ],
  ] as [number, string[], RegExp][]) {
    const { code, stdout, stderr } = await generate(...options);
    expect({ code, stdout }).toEqual({ code: exit, stdout: '' });
    expect(stderr).toMatch(message);
    expect(stderr.trim().split('\n').length).toBeLessThan(3);
  }
  expect(readFileSync(there, 'utf8')).toBe('mine\n');
  expect(existsSync(fresh)).toBe(false);
});
