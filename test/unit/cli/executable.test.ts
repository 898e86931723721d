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
