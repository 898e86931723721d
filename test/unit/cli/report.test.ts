import { statSync } from 'node:fs';
import { join } from 'node:path';
import { exitCodeOf, reportError, reportLeftBehind, UsageError } from '../../../ts/cli/report';
import { ConfigError, TroupeError } from '../../../ts/errors';
import { packageRoot } from '../../../ts/install/package_root';

function reported(error: unknown, debug = false): string[] {
  const lines: string[] = [];
  reportError(error, debug, (line) => lines.push(line));
  return lines;
}

function missingFile(): unknown {
  try {
    return statSync('/nowhere');
  } catch (error) {
    return error;
  }
}

test('exit codes: 2 for what the user typed or configured, 1 for the rest', () => {
  const errors = [new UsageError('x'), new ConfigError('x'), new TroupeError('IO', 'x'), new Error('x'), 'x'];
  expect(errors.map(exitCodeOf)).toEqual([2, 2, 1, 1, 1]);
});

test('one line for what was foreseen', () => {
  expect(reported(new TroupeError('NO_SPACE', 'the disk is full'))).toEqual([
    'troupe: error (NO_SPACE): the disk is full',
  ]);
  expect(reported(missingFile())).toEqual([
    expect.stringMatching(/^troupe: error: ENOENT: no such file .*'\/nowhere'$/),
  ]);
});

test('a hint for what was not', () => {
  expect(reported(new TypeError('x is not a function'))).toEqual([
    'troupe: error: x is not a function',
    'This error was not foreseen: run again with --debug for the stack.',
  ]);
});

test('--debug: stacks, causes included', () => {
  const cause = new RangeError('below');
  const lines = reported(new TroupeError('IO', 'above', { cause }), true);
  expect(lines).toHaveLength(3);
  expect(lines[1]).toMatch(/TroupeError: above\n +at /);
  expect(lines[2]).toMatch(/RangeError: below\n +at /);
});

test('what nobody waited for: where it was, if that is not in our own code', () => {
  const lines: string[] = [];
  const error = new TypeError('x is not a function');
  error.stack = [
    'TypeError: x is not a function',
    '    at fetch (node:internal/deps/undici/undici:1:2)',
    `    at inner (${join(packageRoot, 'dist', 'agent', 'run_agent.js')}:3:4)`,
    '    at async ask (file:///home/me/my agent.mjs:7:11)',
    '    at file:///home/me/other.mjs:1:1',
  ].join('\n');
  reportLeftBehind(error, 'rejection', false, (line) => lines.push(line));
  expect(lines).toEqual([
    'troupe: error: x is not a function',
    expect.stringMatching(
      /^A promise was rejected, and nobody waited for it, at \/home\/me\/my agent\.mjs:7\. Code that/,
    ),
  ]);
});

test.each([
  ['rejection', /^A promise was rejected, and nobody waited for it\. This error was not foreseen: run again/],
  ['exception', /^An error was thrown where nobody could catch it\. This error was not foreseen: run again/],
] as const)('a %s of our own is not foreseen', (kind, hint) => {
  const error = new TypeError('x is not a function');
  error.stack = `TypeError: x\n    at f (${join(packageRoot, 'dist', 'cli.js')}:3:4)\n    at node:internal/timers:1:2`;
  for (const one of [error, 5]) {
    const lines: string[] = [];
    reportLeftBehind(one, kind, false, (line) => lines.push(line));
    expect(lines).toEqual([reported(one)[0], expect.stringMatching(hint)]);
  }
});
