// Command lines of the scripts and benchmarks that people start by hand.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join, resolve } from 'node:path';

const ROOT = resolve(__dirname, '../..');
const texts = new Map(
  ['bench', 'scripts', 'scripts/gpu_check'].flatMap((folder) =>
    readdirSync(join(ROOT, folder))
      .filter((name) => name.endsWith('.mjs'))
      .map((name): [string, string] => [`${folder}/${name}`, readFileSync(join(ROOT, folder, name), 'utf8')]),
  ),
);

function started(script: string, args: readonly string[]): { status: number | null; said: string } {
  const cwd = mkdtempSync(join(tmpdir(), 'command-line-'));
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(ROOT, script), ...args], {
    cwd,
    encoding: 'utf8',
    timeout: 60_000,
  });
  return { status, said: stdout + stderr };
}

const SHARED = 'scripts/command_line.mjs';
const users = [...texts].filter(([name, text]) => /\bcommandLine\(/.test(text) && name !== SHARED);

test('scripts read their command lines in one way, or say themselves what is wrong with them', () => {
  const catches = (text: string): boolean =>
    /try {\s+const { values(, positionals)? } = parseArgs/.test(text);
  // bench/cli.mjs throws what run.mjs tells; jest reads what test.mjs passes on; ui_overhead.mjs writes a program that looks at its own.
  const known = [SHARED, 'bench/cli.mjs', 'bench/run.mjs', 'bench/ui_overhead.mjs', 'scripts/test.mjs'];
  const own = [...texts]
    .filter(([name, text]) => /parseArgs\(|process\.argv(\.slice|\[2)/.test(text) && !known.includes(name))
    .filter(([, text]) => !catches(text) && !/\bcommandLine\(/.test(text));
  expect(own.map(([name]) => name)).toEqual([]);
  expect(users.length).toBeGreaterThan(20);
});

// What pages of docs/ are made with is no program.
test.each(users.map(([name]) => name).filter((name) => name !== 'scripts/generated_page.mjs'))(
  '%s: an option that is none is told in one line, before anything is done',
  (script) => {
    expect(started(script, ['--nonsense'])).toEqual({
      status: 2,
      said: `${basename(script, '.mjs')}: Unknown option '--nonsense'\n`,
    });
  },
);

test.each([
  ['bench/async_training.mjs', ['many'], 'STEPS: expected a whole number from 1 on, got many'],
  [
    'bench/async_training.mjs',
    ['3', 'late'],
    'MODE: expected sync, or how many batches are ahead, such as 0.5, got late',
  ],
  ['bench/killed_server.mjs', ['3', 'vllm'], 'KIND: expected one of native, sglang, tgi, got vllm'],
  ['bench/serve_soak.mjs', ['0'], 'STREAMS: expected a whole number from 1 on, got 0'],
  ['bench/serve_soak.mjs', ['1', '2', '3'], 'expected at most 2 arguments without --, got 1 2 3'],
  ['bench/advantages.mjs', ['--tokens=1e3'], '--tokens: expected a whole number from 1 on, got 1e3'],
  ['bench/speculation.mjs', ['--drafts=3,-1'], '--drafts: expected a whole number from 1 on, got -1'],
  ['bench/head.mjs', [], 'expected rows x hidden size x vocabulary, such as 1024x896x151936, got none'],
  ['bench/agents.mjs', ['--runs=double'], '--runs: expected one of single, instant, tools, got double'],
  ['bench/run.mjs', ['--dtype=fp8'], "--dtype: expected fp32 or bf16 but got 'fp8'"],
  [
    'scripts/clean.mjs',
    ['everything'],
    'what to remove: expected one of dist, ui/dist, build, build-cmake, build-cuda, coverage, got everything',
  ],
  ['scripts/verl_defaults.mjs', ['main'], 'expected NAME=CHECKOUT[,RECIPE_CHECKOUT], got main'],
])('%s %j: exit code 2 and one line', (script, args, message) => {
  expect(started(script, args)).toEqual({ status: 2, said: `${basename(script, '.mjs')}: ${message}\n` });
});

test.each([
  ['bench/overhead.mjs', 'no/model', /^overhead: .*no\/model.*\n$/],
  ['scripts/bridge_check.mjs', 'no/project', /^bridge_check: ENOENT: .*no\/project.*\n$/],
])('%s: what was foreseen is told in one line, too', (script, path, message) => {
  const { status, said } = started(script, [path]);
  expect({ status, last: said.split('\n').slice(-2).join('\n') }).toEqual({
    status: 1,
    last: expect.stringMatching(message),
  });
});

test.each(['reward_worker.py', 'dataset_worker.py', 'tool_server.py'])(
  '%s, which a run starts, says so to who starts it by hand',
  (name) => {
    const { status, stdout, stderr } = spawnSync('python3', [join(ROOT, 'python', name)], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: 60_000,
    });
    expect({ status, said: stdout + stderr }).toEqual({
      status: 1,
      said: `${name} is started by Troupe, as the configuration of a run says: there is nothing to start by hand\n`,
    });
  },
);
