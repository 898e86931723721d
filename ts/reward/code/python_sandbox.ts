import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { chown, mkdtemp, rm } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { checkOptionNames, choiceOption, numberOption } from '../../base/check_options';
import { reasonOf } from '../../base/text';
import { TroupeError } from '../../errors';
import { type ChildLimits, type ChildResult, runChild } from './child_run';
import { type CodeRunner, Limiter, type RunRequest, type RunResult } from './runner';
import {
  type Isolation,
  type SandboxLimits,
  SYSTEM_PATH,
  sandboxCommand,
  sandboxEnvironment,
} from './sandbox_command';
import { endStrays, ticksSinceBoot } from './strays';

export interface PythonSandboxOptions {
  /**
   * namespaces (default): no network, own process ids, files read-only but for a scratch directory in memory; refused where
   * the kernel does not permit it. process: limits only; the program reaches the network and all that its user may.
   */
  isolation?: Isolation;
  /** Path of the interpreter. Default: the first python3 on PATH that works in the sandbox. */
  python?: string | null;
  /** Wall time of one run, seconds. 10 */
  timeout?: number;
  /** Address space of each process, MiB. 1024 */
  memoryLimitMb?: number;
  /** Processes and threads of one program. 16 */
  maxProcesses?: number;
  /** What a program may print, and the size of files it writes, MiB. 16 */
  maxOutputMb?: number;
  /** Programs at once. Default: the cores of this machine. */
  maxConcurrent?: number | null;
}

const KEYS = [
  'isolation',
  'python',
  'timeout',
  'memoryLimitMb',
  'maxProcesses',
  'maxOutputMb',
  'maxConcurrent',
];
const SETUP_MS = 60_000;
/** User ids that systemd keeps for services that own nothing. */
const UIDS = { first: 61184, count: 4336 };
const TOKEN = 'TROUPE_SANDBOX';

const failed = (message: string, cause?: unknown): TroupeError =>
  new TroupeError('SANDBOX_FAILED', `[sandbox] ${message}`, { cause });

/**
 * Runs Python programs that nobody has read in child processes with limits on wall and processor time, memory,
 * processes, files and output, an environment of their own, no network and nothing to write to. When the trainer is root, each
 * runs as a user that owns nothing. Nothing is left of a run when it ends, nor when the trainer is killed.
 */
export class PythonSandbox implements CodeRunner {
  private readonly limiter: Limiter;
  private readonly uids = new Set<number>();
  private python = '';

  private constructor(
    private readonly isolation: Isolation,
    private readonly limits: SandboxLimits,
    maxConcurrent: number,
  ) {
    this.limiter = new Limiter(maxConcurrent);
  }

  /**
   * Tries the sandbox out.
   * @throws TroupeError SANDBOX_FAILED when the kernel does not permit it or there is no Python that works in it
   */
  static async create(o: PythonSandboxOptions = {}): Promise<PythonSandbox> {
    const where = 'sandbox options';
    checkOptionNames(where, o, KEYS);
    const isolation = choiceOption(where, 'isolation', o.isolation, ['namespaces', 'process'], 'namespaces');
    const limits: SandboxLimits = {
      timeout: numberOption(where, 'timeout', o.timeout, 10, { above: 0, max: 86_400 }),
      memoryLimitMb: numberOption(where, 'memoryLimitMb', o.memoryLimitMb, 1024, { integer: true, min: 64 }),
      maxProcesses: numberOption(where, 'maxProcesses', o.maxProcesses, 16, { integer: true, min: 1 }),
      maxOutputMb: numberOption(where, 'maxOutputMb', o.maxOutputMb, 16, { above: 0 }),
    };
    const cores = availableParallelism();
    const concurrent = numberOption(where, 'maxConcurrent', o.maxConcurrent ?? undefined, cores, {
      integer: true,
      min: 1,
    });
    const sandbox = new PythonSandbox(isolation, limits, concurrent);
    await sandbox.findPython(o.python ?? null);
    return sandbox;
  }

  run(request: RunRequest): Promise<RunResult> {
    return this.limiter.run(async () => {
      const { started, ...result } = await this.execute(this.python, request);
      if (!started) throw this.refused(result.stderr);
      return result;
    });
  }

  /** The first interpreter that runs a program in the sandbox: what the trainer's user may start, the program's may not. */
  private async findPython(given: string | null): Promise<void> {
    const candidates =
      given === null
        ? [...new Set(`${process.env['PATH'] ?? ''}${delimiter}${SYSTEM_PATH}`.split(delimiter))]
            .map((directory) => join(directory, 'python3'))
            .filter((path) => path.startsWith('/') && existsSync(path))
        : [given];
    const tried: string[] = [];
    for (const path of candidates) {
      const probe = await this.execute(path, { code: 'import sys\nprint(sys.version_info[0])', stdin: '' });
      if (!probe.started) throw this.refused(probe.stderr);
      if (probe.status === 'finished' && probe.stdout.trim() === '3') {
        this.python = path;
        return;
      }
      tried.push(`${path} (${probe.status}: ${probe.stderr.trim().split('\n').at(-1) ?? ''})`);
    }
    const found = tried.length === 0 ? 'there is none on PATH' : `tried ${tried.join('; ')}`;
    throw failed(
      `found no Python 3 that works in the sandbox: ${found}. Install python3 where every user can run it, or set ` +
        'reward.sandbox.python (and more reward.sandbox.memory_limit_mb if that was too little)',
    );
  }

  private refused(stderr: string): TroupeError {
    // mount adds a line of advice to its reason.
    const why = stderr.split('\n').find((line) => line.trim() !== '') ?? 'no answer';
    const namespaces =
      'allow namespaces (in a container: CAP_SYS_ADMIN for root, or a seccomp profile that permits unshare and mount), ' +
      'set reward.sandbox_fusion.url, or set reward.sandbox.isolation=process, in which programs reach the network and all ' +
      'that their user may';
    return failed(
      `the sandbox could not be set up (${why}): ` +
        (this.isolation === 'namespaces' ? namespaces : 'see the reason, or set reward.sandbox_fusion.url'),
    );
  }

  private async execute(python: string, request: RunRequest): Promise<ChildResult> {
    const uid = process.getuid?.() === 0 ? this.takeUid() : null;
    const mark = { variable: TOKEN, value: randomUUID(), uid, since: ticksSinceBoot() - 1 };
    let directory: string | null = null;
    try {
      if (this.isolation === 'process') directory = await scratchDirectory(uid);
      const cwd = directory ?? '/';
      const limits: ChildLimits = {
        timeoutMs: this.limits.timeout * 1000,
        maxOutputBytes: this.limits.maxOutputMb * 1024 * 1024,
        setupMs: SETUP_MS,
      };
      return await runChild(sandboxCommand(python, this.isolation, this.limits, uid), request, {
        cwd,
        env: { ...sandboxEnvironment(directory ?? '/tmp'), [TOKEN]: mark.value },
        limits,
        onExit: directory === null ? undefined : () => endStrays(mark),
      });
    } catch (error) {
      throw failed(
        `the sandbox could not be started (${reasonOf(error)}): it needs util-linux (setpriv, unshare, prlimit) in ${SYSTEM_PATH}`,
        error,
      );
    } finally {
      if (uid !== null) this.uids.delete(uid);
      if (directory !== null) await remove(directory);
    }
  }

  /** One user per run: programs cannot touch each other, nor count against each other's processes. */
  private takeUid(): number {
    let uid: number;
    do uid = UIDS.first + Math.floor(Math.random() * UIDS.count);
    while (this.uids.has(uid));
    this.uids.add(uid);
    return uid;
  }
}

async function scratchDirectory(uid: number | null): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'troupe-sandbox-'));
  if (uid !== null) await chown(directory, uid, uid);
  return directory;
}

/** Also what a program made unreadable. */
async function remove(directory: string): Promise<void> {
  try {
    await rm(directory, { recursive: true, force: true });
  } catch {
    await promisify(execFile)('chmod', ['-R', 'u+rwx', directory]).catch(() => undefined);
    await rm(directory, { recursive: true, force: true, maxRetries: 3 });
  }
}
