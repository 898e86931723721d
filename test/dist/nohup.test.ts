import { spawnSync } from 'node:child_process';
import { closeSync, constants, openSync } from 'node:fs';
import { join } from 'node:path';

// What a program can tell of nohup and its like, which Node undoes for itself as it starts.

const ASK = `console.log(require(${JSON.stringify(join(__dirname, '../../dist/base/nohup.js'))}).ignoresHangups())`;
/** As npx does: a Node between nohup and the program, whose children ignore nothing. */
const BETWEEN = `require('child_process').spawnSync('sh', ['-c', '"$0" -e "$1"; exit', process.execPath, process.argv[1]], { stdio: 'inherit' })`;

/** Runs `script` in a session of its own with node, the question and a program between as $0, $1 and $2. */
function asked(script: string, stdin: number | 'ignore' = 'ignore'): string {
  const { stdout, stderr } = spawnSync(
    'setsid',
    ['--wait', 'bash', '-c', script, process.execPath, ASK, BETWEEN],
    {
      env: { ...process.env, _: '' },
      stdio: [stdin, 'pipe', 'pipe'],
      encoding: 'utf8',
    },
  );
  expect(stderr).toBe('');
  return stdout.trim();
}

test.each([
  ['a shell', '"$0" -e "$1"; exit'],
  ['another Node', '"$0" -e "$2" "$1"; exit'],
  ['a script that handles it', 'trap : HUP; "$0" -e "$1"; exit'],
  [
    'a terminal whose server nohup has started',
    'export _=/usr/bin/nohup; exec bash -c \'"$0" -e "$1"; exit\' "$0" "$1"',
  ],
])('hangups count in a program of %s', (_, script) => {
  expect(asked(script)).toBe('false');
});

test.each([
  ['nohup', 'nohup "$0" -e "$1"; exit'],
  ['another Node that nohup has started', 'nohup "$0" -e "$2" "$1"; exit'],
  ['a script under nohup', 'nohup bash -c \'"$0" -e "$1"; exit\' "$0" "$1"; exit'],
  ['a script that ignores them', 'trap \'\' HUP; "$0" -e "$1"; exit'],
])('hangups are ignored in a program of %s', (_, script) => {
  expect(asked(script)).toBe('true');
});

test('a stdin that cannot be read is what nohup makes of a terminal', () => {
  const stdin = openSync('/dev/null', constants.O_WRONLY);
  try {
    expect(asked('exec "$0" -e "$1"', stdin)).toBe('true');
  } finally {
    closeSync(stdin);
  }
});
