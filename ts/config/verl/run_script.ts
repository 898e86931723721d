import { spawnSync } from 'node:child_process';
import { homedir } from 'node:os';
import path from 'node:path';
import { STANDS, scriptCommand } from './script_sandbox';

/** A program that a script would have started. */
export interface RecordedCall {
  program: string;
  args: string[];
  directory: string;
  environment: Record<string, string>;
}

/** What a script did. */
export interface ScriptRun {
  calls: RecordedCall[];
  /** Exit code; 124: it ran out of time. */
  status: number;
  /** The end of what it printed. */
  output: string;
}

export interface ScriptOptions {
  args: readonly string[];
  environment: Readonly<Record<string, string | undefined>>;
  /** Default: that of this process. */
  directory?: string;
  /** Wall time, seconds. 20 */
  timeout?: number;
}

/** Why a script was not run. */
export interface NotRun {
  refused: string;
}

const MOST_BYTES = 64 * 1024 ** 2;
const SETUP_SECONDS = 30;

/**
 * Runs a launch script in a sandbox (no network, nothing that it writes stays), where what it starts only writes down how it was
 * called. Returns `refused` where the kernel does not permit such a sandbox, or bash or util-linux are missing.
 */
export function runScript(file: string, options: ScriptOptions): ScriptRun | NotRun {
  const timeout = options.timeout ?? 20;
  const directory = path.resolve(options.directory ?? process.cwd());
  const home = options.environment['HOME'] ?? homedir();
  const { program, args } = scriptCommand({
    script: path.resolve(file),
    args: options.args,
    directory,
    home,
    timeout,
  });
  const { BASH_ENV: _, ENV: __, ...environment } = options.environment;
  const result = spawnSync(program, args, {
    cwd: '/',
    env: { PATH: process.env['PATH'], ...environment, HOME: home },
    timeout: (timeout + SETUP_SECONDS) * 1000,
    killSignal: 'SIGKILL',
    maxBuffer: MOST_BYTES,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const [stands, status, output, ...records] = result.stdout?.toString('utf8').split('\0') ?? [];
  if (stands !== STANDS || status === undefined || output === undefined) {
    const said = result.stderr?.toString('utf8').trim().split('\n').at(-1);
    return { refused: result.error?.message ?? (said || `the sandbox ended with ${result.status}`) };
  }
  return { calls: recordedCalls(records), status: Number(status), output };
}

/** Fields as the stand-in writes them; a call that was cut off is left out. */
function recordedCalls(fields: readonly string[]): RecordedCall[] {
  const calls: RecordedCall[] = [];
  for (let at = 0; at + 3 < fields.length; ) {
    const [program, directory, count] = fields.slice(at, at + 3) as [string, string, string];
    const first = at + 3;
    const end = first + Number(count);
    const last = fields.indexOf('', end);
    if (!(end >= first) || last < 0) break;
    const environment: Record<string, string> = {};
    for (const entry of fields.slice(end, last)) {
      const equals = entry.indexOf('=');
      environment[entry.slice(0, equals)] = entry.slice(equals + 1);
    }
    calls.push({ program, args: fields.slice(first, end), directory, environment });
    at = last + 1;
  }
  return calls;
}
