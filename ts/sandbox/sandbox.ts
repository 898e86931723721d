// Runs a command that nobody has read, on this machine: no network, few files, limits on everything. Model code (reward/code) and
// launch scripts of others (config/verl) go through it.
//
//   const sandbox = await Sandbox.create();
//   const { status, exitCode, stdout } = await sandbox.run({
//     command: ['bash', 'run.sh'],            // (bash -c takes its stdin for a remote shell's: give it --norc) found on SYSTEM_PATH or on the PATH of `env`; or an absolute path
//     files: { 'run.sh': text },              // written where the command starts
//     writable: '/tmp/my-dir',                // the only directory that lasts; same path inside; also where the command starts
//     readable: ['/tmp/stand-ins'],           // seen besides the system's programs and libraries; same path inside
//     env: { PATH: `/tmp/stand-ins:${SYSTEM_PATH}` },   // all that it sees, besides HOME, TMPDIR, LANG and a PATH
//     limits: { timeout: 20, memoryLimitMb: 512, maxProcesses: 64, maxOutputMb: 4 },
//   });
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { chown, realpath, stat } from 'node:fs/promises';
import { isAbsolute, normalize } from 'node:path';
import { promisify } from 'node:util';
import { checkOptionNames, choiceOption } from '../base/check_options';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { type ChildResult, type RunStatus, runChild } from './child_run';
import { type Confinement, type Mechanism, SYSTEM_PATH, sandboxCommand } from './command';
import { checkedLimits, type SandboxLimits } from './limits';
import { MemoryWatch } from './memory_watch';
import { RunUsers } from './run_users';
import { makeScratch, removeAbandoned, removeScratch } from './scratch_directory';
import { seccompFilter } from './seccomp';
import { endStrays, ticksSinceBoot } from './strays';

export { type Mechanism, SYSTEM_PATH } from './command';

export type Isolation = 'namespaces' | 'process';

export interface SandboxOptions {
  /**
   * namespaces (default): no network, own process ids, files read-only but for scratch directories in memory; refused where
   * the kernel does not permit it. With bubblewrap (0.7 or newer) in SYSTEM_PATH the program sees only the system's programs and
   * libraries, and can make no namespaces of its own; else it sees all files that its user may read.
   * process: limits only; the program reaches the network and all that its user may.
   */
  isolation?: Isolation;
  /** Ways to have it, tried in this order. Default: for namespaces bubblewrap, then unshare; for process the only one. */
  mechanisms?: readonly Mechanism[];
  /** What else somebody may do where the sandbox cannot be had, for the error. */
  advice?: string;
}

export interface SandboxRequest {
  /** Program (absolute, or a name on PATH) and arguments. */
  command: readonly string[];
  /** '' */
  stdin?: string;
  /** Text files, by plain name, in the directory where the command starts. None */
  files?: Readonly<Record<string, string>>;
  /**
   * A directory that exists, in which the command may write: what it leaves stays, belongs to the caller, and has no limit but
   * that on each file. One run at a time. The command starts there. Default: a scratch directory that goes with the run.
   */
  writable?: string;
  /** Absolute paths that the command may read besides the system's programs and libraries. None */
  readable?: readonly string[];
  /** Environment, beside or instead of PATH, HOME, TMPDIR and LANG. */
  env?: Readonly<Record<string, string>>;
  limits?: Partial<SandboxLimits>;
}

export interface SandboxResult {
  status: RunStatus;
  /** null: a signal ended it. */
  exitCode: number | null;
  /** What it printed; cut at the limit. */
  stdout: string;
  /** The end of what it wrote to stderr. */
  stderr: string;
}

const SETUP_MS = 60_000;
const TOKEN = 'TROUPE_SANDBOX';
const WHERE = 'sandbox request';
const REQUEST_KEYS = ['command', 'stdin', 'files', 'writable', 'readable', 'env', 'limits'];

const failed = (message: string, cause?: unknown): TroupeError =>
  new TroupeError('SANDBOX_FAILED', `[sandbox] ${message}`, { cause });
const bad = (message: string): TroupeError => new TroupeError('INVALID_ARGUMENT', `[${WHERE}] ${message}`);

/**
 * Runs commands in child processes with limits on wall and processor time, memory, processes, files and output, and an environment of
 * their own. When the caller is root, each runs as a user that owns nothing.
 *
 * With namespaces a command has no network and one directory at most to write to, and nothing is left of a run when it ends, nor when the
 * caller is killed.
 *
 * With isolation `process` it has what its user has, beside the limits. A process of a run that leaves its group and changes its
 * environment may outlive it. When the caller is killed, a scratch directory and what the command has started stay, until the same user
 * makes another such sandbox on this machine.
 */
export class Sandbox {
  private readonly users = new RunUsers();
  private readonly memory = new MemoryWatch();

  private constructor(
    readonly mechanism: Mechanism,
    private readonly advice: string,
  ) {}

  /**
   * Tries the sandbox out: bubblewrap, where it is installed and works, else unshare.
   * @throws TroupeError SANDBOX_FAILED when the kernel does not permit it
   */
  static async create(o: SandboxOptions = {}): Promise<Sandbox> {
    checkOptionNames('sandbox options', o, ['isolation', 'mechanisms', 'advice']);
    const isolation = choiceOption(
      'sandbox options',
      'isolation',
      o.isolation,
      ['namespaces', 'process'],
      'namespaces',
    );
    const usual: Mechanism[] = isolation === 'process' ? ['process'] : ['bubblewrap', 'unshare'];
    const mechanisms = o.mechanisms ?? usual;
    const refused: string[] = [];
    if (mechanisms.includes('process')) await removeAbandoned(TOKEN);
    for (const mechanism of mechanisms) {
      const sandbox = new Sandbox(mechanism, o.advice ?? '');
      const { started, stderr } = await sandbox.execute({ command: ['true'] });
      if (started) return sandbox;
      // Where it is not installed there is nothing to say about it.
      if (!/setpriv: failed to execute bwrap/.test(stderr)) refused.push(firstLine(stderr));
    }
    throw new Sandbox(mechanisms[0] as Mechanism, o.advice ?? '').refused(refused.join('; '));
  }

  /**
   * Runs a command to its end, or to the end of what it may use. A command that fails is a result.
   * @throws TroupeError INVALID_ARGUMENT for a request that is none; SANDBOX_FAILED when it could not be run at all
   */
  async run(request: SandboxRequest): Promise<SandboxResult> {
    const { started, ...result } = await this.execute(request);
    if (!started) throw this.refused(firstLine(result.stderr));
    return result;
  }

  private refused(why: string): TroupeError {
    const namespaces =
      'allow namespaces (in a container: CAP_SYS_ADMIN for root, or a seccomp profile that permits unshare and mount)';
    const advice = [this.mechanism === 'process' ? 'see the reason' : namespaces, this.advice];
    return failed(
      `the sandbox could not be set up (${why}): ${advice.filter((text) => text !== '').join(', ')}`,
    );
  }

  private async execute(request: SandboxRequest): Promise<ChildResult> {
    const given = await checked(request);
    const uid = process.getuid?.() === 0 ? this.users.take() : null;
    const user = { uid: uid ?? process.geteuid?.() ?? 0, ownUser: uid !== null };
    const mark = { variable: TOKEN, value: randomUUID(), ...user, since: ticksSinceBoot() - 1 };
    let scratch: string | null = null;
    try {
      if (this.mechanism === 'process') scratch = await makeScratch(mark);
      const home = scratch ?? '/tmp';
      const env = { PATH: SYSTEM_PATH, HOME: home, TMPDIR: home, LANG: 'C.UTF-8', ...given.env };
      const run: Confinement = {
        ...given,
        files: given.files.map(([name, text]) => [name, Buffer.byteLength(text)]),
        directory: given.writable ?? home,
        env: { ...env, [TOKEN]: mark.value },
        uid,
      };
      return await lent(given.writable, uid, () =>
        runChild(sandboxCommand(this.mechanism, run), {
          cwd: '/',
          env: { PATH: SYSTEM_PATH, LANG: 'C.UTF-8', [TOKEN]: mark.value },
          stdin: given.stdin,
          files: given.files.map(([, text]) => text),
          filter: this.mechanism === 'bubblewrap' ? seccompFilter() : null,
          timeoutMs: given.limits.timeout * 1000,
          maxOutputBytes: given.limits.maxOutputMb * 1024 * 1024,
          setupMs: SETUP_MS,
          onStart: (pid, exceeded) => {
            const { memoryLimitMb } = given.limits;
            const reason = `ended: its processes together held more than ${memoryLimitMb} MiB of memory`;
            return this.memory.watch(pid, memoryLimitMb, () => exceeded(reason));
          },
          onExit: scratch === null ? undefined : () => endStrays(mark),
        }),
      );
    } catch (error) {
      if (error instanceof TroupeError) throw error;
      throw failed(
        `the sandbox could not be started (${reasonOf(error)}): it needs bash and util-linux (setpriv, unshare, prlimit) in ${SYSTEM_PATH}`,
        error,
      );
    } finally {
      // Files that could not be removed keep their user.
      if (scratch !== null) await removeScratch(scratch);
      if (uid !== null) this.users.giveBack(uid);
    }
  }
}

interface Checked {
  command: readonly string[];
  stdin: string;
  files: (readonly [name: string, text: string])[];
  writable: string | null;
  readable: readonly string[];
  env: Readonly<Record<string, string>>;
  limits: SandboxLimits;
}

async function checked(o: SandboxRequest): Promise<Checked> {
  checkOptionNames(WHERE, o, REQUEST_KEYS);
  const { command, readable = [], env = {}, files = {} } = o;
  if (command.length === 0 || command[0] === '') throw bad('command: expected a program and its arguments');
  // "env" would read it as a variable.
  if ((command[0] as string).includes('=')) throw bad(`command: a program with = in its name: ${command[0]}`);
  for (const name of Object.keys(files))
    if (!/^\w[\w.-]*$/.test(name)) throw bad(`files: expected plain names but got ${JSON.stringify(name)}`);
  for (const name of Object.keys(env))
    if (!/^[A-Za-z_]\w*$/.test(name))
      throw bad(`env: expected names of variables but got ${JSON.stringify(name)}`);
  for (const text of [...command, ...Object.values(env), ...readable])
    if (text.includes('\0')) throw bad('command, env and readable: expected text without zero bytes');
  return {
    command,
    stdin: o.stdin ?? '',
    files: Object.entries(files),
    writable: o.writable === undefined ? null : await directory(o.writable),
    readable: await Promise.all(readable.map(existing)),
    env,
    limits: checkedLimits(`${WHERE} limits`, o.limits ?? {}),
  };
}

async function existing(path: string): Promise<string> {
  const found = isAbsolute(path) ? await stat(path).catch(() => null) : null;
  if (found === null) throw bad(`readable: expected an absolute path that exists but got ${path}`);
  return normalize(path).replace(/(?<=.)\/$/, '');
}

async function directory(path: string): Promise<string> {
  const found = isAbsolute(path) ? await stat(path).catch(() => null) : null;
  if (!found?.isDirectory()) throw bad(`writable: expected the absolute path of a directory but got ${path}`);
  return await realpath(path);
}

/** Gives a directory to the user of a run, and back with all that the run left in it. */
async function lent<T>(path: string | null, uid: number | null, work: () => Promise<T>): Promise<T> {
  if (path === null || uid === null) return await work();
  const owner = await stat(path);
  await chown(path, uid, uid);
  try {
    return await work();
  } finally {
    await promisify(execFile)('chown', ['-hR', `--from=${uid}`, `${owner.uid}:${owner.gid}`, path]);
  }
}

/** mount adds a line of advice to its reason. */
const firstLine = (stderr: string): string =>
  stderr.split('\n').find((line) => line.trim() !== '') ?? 'no answer';
