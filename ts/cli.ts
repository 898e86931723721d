#!/usr/bin/env node
import './cli/warnings';
import { runCli } from './cli/program';
import { exitCodeOf, reportError } from './cli/report';

const debug = process.argv.includes('--debug');

function fail(error: unknown): void {
  reportError(error, debug);
  process.exit(exitCodeOf(error));
}

process.on('unhandledRejection', fail);
process.on('uncaughtException', fail);
// A reader that has gone (| head), or a full disk below a redirected output, ends the output, not the run.
process.stderr.on('error', () => {});
let told = false;
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE' || told) return;
  told = true;
  process.stderr.write(`warning: the output is incomplete: ${error.message}\n`);
});

// Timers and connections that a reward function leaves behind must not keep a program alive that is done; what is still being
// written goes out first.
function leave(code: number): void {
  process.stdout.write('', () => process.stderr.write('', () => process.exit(code)));
}

runCli(process.argv.slice(2)).then(leave, fail);
