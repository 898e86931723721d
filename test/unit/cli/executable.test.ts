import { execFileSync, spawnSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const ROOT = resolve(__dirname, '../../..');

test('the built command starts as a program of its own, as the link that npx keeps starts it', () => {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
  expect(execFileSync(join(ROOT, 'dist', 'cli.js'), ['--version'], { encoding: 'utf8' })).toBe(
    `${version}\n`,
  );
});

test('output that the disk does not take is not a success; a reader that has gone is none of its business', () => {
  const script = join(mkdtempSync(join(tmpdir(), 'output-')), 'run.sh');
  writeFileSync(script, 'python3 -m verl.trainer.main_ppo trainer.nnodes=2\n');
  const cli = join(ROOT, 'dist', 'cli.js');
  const full = openSync('/dev/full', 'w');
  for (const args of [['--version'], ['import-verl', script, '--allow-missing']]) {
    const { status, stderr } = spawnSync(process.execPath, [cli, ...args], {
      encoding: 'utf8',
      stdio: ['ignore', full, 'pipe'],
    });
    expect([args, status, stderr]).toEqual([
      args,
      1,
      'troupe: error (NO_SPACE): the output is incomplete: ENOSPC: no space left on device, write\n',
    ]);
  }
  closeSync(full);
  const gone = spawnSync('sh', ['-c', '{ "$0" "$1" --help; echo $? >&2; } | true', process.execPath, cli], {
    encoding: 'utf8',
  });
  expect(gone.stderr).toBe('0\n');
});

describe('a module that ends the program before its command is done', () => {
  const directory = mkdtempSync(join(tmpdir(), 'early-end-'));
  const config = join(directory, 'run.yaml');
  writeFileSync(
    config,
    'data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: a/model } }\n',
  );
  const validated = (library: string, text: string): { status: number | null; stderr: string } => {
    const file = join(directory, library);
    writeFileSync(file, text);
    return spawnSync(
      process.execPath,
      [join(ROOT, 'dist', 'cli.js'), 'validate', config, `actor_rollout_ref.model.external_lib=${file}`],
      { encoding: 'utf8' },
    );
  };
  const told = (code: number, name: string, line: number, by = 'exit'): string =>
    `troupe: error (ABORTED): the program was ended with exit code ${code} before it was done: process.${by} was called at ` +
    `${join(directory, name)}:${line}. Code that this process loads has to throw or return instead\n`;

  test.each([
    ['success.cjs', 'exit', 0, 1],
    ['failure.cjs', 'exit', 3, 3],
    ['quiet_success.cjs', 'reallyExit', 0, 1],
    ['quiet_failure.cjs', 'reallyExit', 3, 3],
  ])('%s: process.%s(%d) is told with its place, and is no success', (name, by, code, status) => {
    const result = validated(name, `const leave = () => {\n  process.${by}(${code});\n};\nleave();\n`);
    expect(result).toMatchObject({ status, stderr: told(code, name, 2, by) });
  });

  test('a module that lets it be', () => {
    expect(validated('harmless.cjs', 'exports.one = 1;\n')).toMatchObject({ status: 0, stderr: '' });
  });
});
