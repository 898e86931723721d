import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { runCommand } from '../helpers/e2e_process';
import { modelTensors, promptRows, Workspace, writeJsonLines, writeModel } from '../helpers/e2e_workspace';

// Some hundreds of inputs that are made to do harm, in processes of their own with a limit on memory: each must end in time, with
// an error that was foreseen and that names the file, key, line or argument, without control characters and without end.

const HELPERS = resolve(__dirname, '../helpers');
/** Of one input, on a machine that is busy with other things. */
const MOST_SECONDS = 60;
const MOST_BYTES = 6 * 2 ** 30;
const MOST_CHARACTERS = 20_000;
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/;

interface Line {
  count?: number;
  begin?: number;
  name?: string;
  end?: number;
  refused?: boolean;
  foreseen?: boolean;
  code?: string | null;
  missing?: string[];
  length?: number;
  message?: string;
}

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'troupe-hostile-'));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

function problemOf({ refused, foreseen, missing = [], length = 0, message = '' }: Line): string | null {
  if (!refused) return 'was taken';
  if (!foreseen) return `not foreseen: ${message}`;
  if (missing.length > 0) return `does not name ${missing.join(', ')}: ${message}`;
  if (CONTROL.test(message)) return `has control characters: ${JSON.stringify(message)}`;
  return length > MOST_CHARACTERS ? `has ${length} characters` : null;
}

/** Runs the cases from `first` on; resolves to the next one to begin with: that after the one that ended the process, or none. */
function run(first: number, problems: string[]): Promise<{ next: number; count: number }> {
  const program = [
    process.execPath,
    '-r',
    join(HELPERS, 'register_ts.js'),
    join(HELPERS, 'hostile/program.ts'),
  ];
  const child = spawn('prlimit', [`--data=${MOST_BYTES}`, ...program, directory, String(first)], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stderr = '';
  child.stderr.on('data', (text: Buffer) => {
    stderr = (stderr + text.toString()).slice(-2000);
  });
  let current: { index: number; name: string } | null = null;
  let count = 0;
  let late = false;
  let timer: NodeJS.Timeout | undefined;
  const watch = (): void => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      late = true;
      child.kill('SIGKILL');
    }, MOST_SECONDS * 1000);
  };
  watch();
  createInterface(child.stdout).on('line', (text) => {
    watch();
    const line = JSON.parse(text) as Line;
    if (line.count !== undefined) count = line.count;
    if (line.begin !== undefined) current = { index: line.begin, name: line.name ?? '' };
    if (line.end === undefined) return;
    const problem = problemOf(line);
    if (problem !== null) problems.push(`${current?.name}: ${problem}`);
    current = null;
  });
  return new Promise((done, fail) => {
    child.once('error', fail);
    child.once('close', (code, signal) => {
      clearTimeout(timer);
      if (current === null && code === 0) return done({ next: count, count });
      if (current === null) return fail(new Error(`the program ended with ${code ?? signal}: ${stderr}`));
      problems.push(
        `${current.name}: ${late ? 'hangs' : `ended the process with ${code ?? signal}: ${stderr}`}`,
      );
      done({ next: current.index + 1, count });
    });
  });
}

test('300 hostile inputs end with an error that was foreseen and names the place', async () => {
  const problems: string[] = [];
  let state = { next: 0, count: 1 };
  while (state.next < state.count) state = await run(state.next, problems);
  expect(problems).toEqual([]);
  expect(state.count).toBeGreaterThanOrEqual(300);
}, 600_000);

describe('a whole program', () => {
  let workspace: Workspace;
  beforeAll(async () => {
    workspace = await Workspace.create();
  });
  afterAll(() => workspace.remove());

  const refused = async (args: string[], code: number, ...says: string[]): Promise<void> => {
    const result = await runCommand(args, { prefix: ['prlimit', `--data=${MOST_BYTES}`] });
    expect(result).toMatchObject({ code, signal: null });
    expect(result.stderr).toMatch(/^troupe: error \(/);
    expect(result.stderr).not.toContain('not foreseen');
    expect(result.stderr).not.toMatch(CONTROL);
    expect(result.stderr.length).toBeLessThan(MOST_CHARACTERS);
    for (const part of says) expect(result.stderr).toContain(part);
  };

  it('validates no run of a thousand million workers', () =>
    refused(
      [
        'validate',
        workspace.file('train.yaml'),
        'trainer.n_gpus_per_node=1000000000',
        'trainer.num_threads=1000000',
      ],
      2,
      'trainer.n_gpus_per_node: expected an integer from 1 to 1024',
      'trainer.num_threads: expected an integer from 1 to 1024',
    ));

  it('starts no model of a thousand million layers', async () => {
    const model = await writeModel(workspace.file('deep'), { config: { num_hidden_layers: 1e9 } });
    await refused(
      ['train', workspace.file('train.yaml'), `actor_rollout_ref.model.path=${model}`],
      1,
      'deep/config.json: num_hidden_layers',
      'got 1000000000',
    );
  });

  it('shows no control character of a tensor', async () => {
    const tensors = modelTensors().map((tensor, i) =>
      i === 3 ? { ...tensor, name: '\u001b[2J\u0007' } : tensor,
    );
    const model = await writeModel(workspace.file('loud'), { tensors });
    await refused(
      ['train', workspace.file('train.yaml'), `actor_rollout_ref.model.path=${model}`],
      1,
      '\\x1b[2J\\x07',
      'not expected in this model',
    );
  });

  it('ends when its chat template does not', () =>
    refused(
      [
        'train',
        workspace.file('train.yaml'),
        `data.train_files=${chats()}`,
        "actor_rollout_ref.model.custom_chat_template='{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}'",
      ],
      1,
      'the chat template failed',
      'does it loop for ever?',
    ));

  const chats = (): string => {
    const rows = promptRows(20).map((row) => ({
      ...row,
      prompt: [{ role: 'user', content: row['prompt'] }],
    }));
    return writeJsonLines(workspace.file('chats.jsonl'), rows);
  };
});
