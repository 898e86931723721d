import { statSync } from 'node:fs';
import { exitCodeOf, reportError, UsageError } from '../../../ts/cli/report';
import { ConfigError, TroupeError } from '../../../ts/errors';

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
