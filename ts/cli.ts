#!/usr/bin/env node
import { TrajectoryEnded } from './agent/trajectory_ended';
import { watchEnd } from './cli/early_end';
import './cli/warnings';
import { ignoresHangups } from './base/nohup';
import { watchLoop } from './cli/loop_watch';
import { runCli } from './cli/program';
import { exitCodeOf, reportError, reportLeftBehind } from './cli/report';
import { outliveTerminal } from './cli/terminal';
import { TroupeError } from './errors';

const debug = process.argv.includes('--debug');
const done = watchEnd(debug);

function fail(error: unknown): void {
  done();
  reportError(error, debug);
  process.exit(exitCodeOf(error));
}

function failLeftBehind(error: unknown, kind: 'rejection' | 'exception'): void {
  done();
  reportLeftBehind(error, kind, debug);
  process.exit(exitCodeOf(error));
}

process.on('unhandledRejection', (error) => {
  if (!(error instanceof TrajectoryEnded)) failLeftBehind(error, 'rejection');
});
process.on('uncaughtException', (error) => failLeftBehind(error, 'exception'));

outliveTerminal();
// Node does not ignore what it was told to ignore, and would die of it.
if (ignoresHangups()) process.on('SIGHUP', () => {});

// What loads code of the user's into this process.
if (['train', 'sft', 'eval', 'agent', 'validate', 'plan'].includes(process.argv[2] ?? '')) watchLoop();

/** What these print is news of their work, and not what they are asked for. */
const AT_WORK = ['train', 'sft', 'serve', 'ui', 'retriever', 'host-agent'];
const isResult = !AT_WORK.includes(process.argv[2] ?? '');

// A reader that has gone (| head), or a full disk below a redirected output, ends the output, not the run.
process.stderr.on('error', () => {});
let ended = false;
let incomplete = false;
function endOutput(error: NodeJS.ErrnoException): void {
  // After the first error there are others, of a stream that is destroyed.
  if (ended) return;
  ended = true;
  if (error.code === 'EPIPE') return;
  incomplete = true;
  const message = `the output is incomplete: ${error.message}`;
  if (isResult) reportError(new TroupeError('NO_SPACE', message, { cause: error }), debug);
  else process.stderr.write(`warning: ${message}\n`);
}
process.stdout.on('error', endOutput);

// Timers and connections that a reward function leaves behind must not keep a program alive that is done; what is still being
// written goes out first.
function leave(code: number): void {
  done();
  process.stdout.write('', (error) => {
    // It comes before the event.
    if (error) endOutput(error);
    process.stderr.write('', () => process.exit(code === 0 && incomplete && isResult ? 1 : code));
  });
}

runCli(process.argv.slice(2)).then(leave, fail);
