import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { delimiter, isAbsolute, join } from 'node:path';
import { promisify } from 'node:util';
import pLimit from 'p-limit';
import { badOption, checkOptionNames, numberOption } from '../../base/check_options';
import { TroupeError } from '../../errors';
import { checkedLimits, LIMIT_KEYS, type SandboxLimits } from '../../sandbox/limits';
import { type Isolation, Sandbox, type SandboxResult, SYSTEM_PATH } from '../../sandbox/sandbox';
import type { CodeRunner, RunRequest, RunResult } from './runner';

export interface PythonSandboxOptions {
  /**
   * namespaces (default): no network, own process ids, files read-only but for a scratch directory in memory; with bubblewrap only
   * the system's programs and libraries can be seen, and the interpreter's; refused where the kernel does not permit it.
   * process: limits only; the program reaches the network and all that its user may.
   */
  isolation?: Isolation;
  /** Path of the interpreter. Default: the first python3 on PATH that works in the sandbox. */
  python?: string | null;
  /** Files and directories that programs may read besides the system's and the interpreter's. [] */
  readable?: readonly string[];
  /** Wall time of one run, seconds. 10 */
  timeout?: number;
  /** MiB: address space of each process, and what all processes of a run hold in memory together. 1024 */
  memoryLimitMb?: number;
  /** Processes and threads of one program. 16 */
  maxProcesses?: number;
  /** What a program may print, and the size of files it writes, MiB. 16 */
  maxOutputMb?: number;
  /** Programs at once. Default: the cores of this machine. */
  maxConcurrent?: number | null;
}

const KEYS = ['isolation', 'python', 'readable', 'maxConcurrent', ...LIMIT_KEYS];
const PROGRAM = 'solution.py';
const PROBE_MS = 10_000;

const ENVIRONMENT = {
  // The order of sets, and so what a program prints, repeats.
  PYTHONHASHSEED: '0',
  PYTHONDONTWRITEBYTECODE: '1',
  // Numerical libraries start a thread per core, which the limits do not allow.
  OMP_NUM_THREADS: '1',
  OPENBLAS_NUM_THREADS: '1',
  MKL_NUM_THREADS: '1',
};

const ADVICE =
  'set reward.sandbox_fusion.url, or set reward.sandbox.isolation=process, in which programs reach the network and all ' +
  'that their user may';

/** An interpreter, and the directories outside the system's that it needs. */
interface Python {
  path: string;
  prefixes: readonly string[];
}

/**
 * Runs Python programs that nobody has read in child processes with limits on wall and processor time, memory,
 * processes, files and output, and an environment of their own. When the trainer is root, each runs as a user that owns nothing. With
 * namespaces they have no network and nothing to write to, and nothing is left of one when it ends, nor when the trainer is killed.
 * With isolation `process` they have what their user has; a process that leaves its group and changes its environment may outlive its
 * program, and what a trainer that is killed leaves stays until the same user makes another such sandbox on this machine.
 */
export class PythonSandbox implements CodeRunner {
  private readonly limit: ReturnType<typeof pLimit>;
  private python: Python = { path: '', prefixes: [] };

  private constructor(
    private readonly sandbox: Sandbox,
    private readonly limits: SandboxLimits,
    private readonly readable: readonly string[],
    maxConcurrent: number,
  ) {
    if (!(sandbox instanceof Sandbox))
      throw badOption(
        'PythonSandbox',
        'it is made by await PythonSandbox.create(options), not by new PythonSandbox',
      );
    this.limit = pLimit(maxConcurrent);
  }

  /**
   * Tries the sandbox out.
   * @throws TroupeError SANDBOX_FAILED when the kernel does not permit it or there is no Python that works in it
   */
  static async create(o: PythonSandboxOptions = {}): Promise<PythonSandbox> {
    const where = 'sandbox options';
    checkOptionNames(where, o, KEYS);
    const { isolation, python, readable = [], maxConcurrent, ...limits } = o;
    const concurrent = numberOption(
      where,
      'maxConcurrent',
      maxConcurrent ?? undefined,
      availableParallelism(),
      { integer: true, min: 1 },
    );
    const checked = checkedLimits(where, limits);
    const sandbox = await Sandbox.create({ isolation, advice: ADVICE });
    const made = new PythonSandbox(sandbox, checked, readable, concurrent);
    await made.findPython(python ?? null);
    return made;
  }

  run(request: RunRequest): Promise<RunResult> {
    return this.limit(async () => {
      const { status, stdout, stderr } = await this.execute(this.python, request);
      return { status, stdout, stderr };
    });
  }

  private execute({ path, prefixes }: Python, { code, stdin }: RunRequest): Promise<SandboxResult> {
    return this.sandbox.run({
      command: [path, PROGRAM],
      files: { [PROGRAM]: code },
      stdin,
      env: ENVIRONMENT,
      readable: [...prefixes, ...this.readable],
      limits: this.limits,
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
      const python = this.sandbox.mechanism === 'bubblewrap' ? await locate(path) : { path, prefixes: [] };
      const probe = await this.execute(python, {
        code: 'import sys\nprint(sys.version_info[0])',
        stdin: '',
      });
      if (probe.status === 'finished' && probe.stdout.trim() === '3') {
        this.python = python;
        return;
      }
      tried.push(`${path} (${probe.status}: ${probe.stderr.trim().split('\n').at(-1) ?? ''})`);
    }
    const found = tried.length === 0 ? 'there is none on PATH' : `tried ${tried.join('; ')}`;
    throw new TroupeError(
      'SANDBOX_FAILED',
      `[sandbox] found no Python 3 that works in the sandbox: ${found}. Install python3 where every user can run it, or set ` +
        'reward.sandbox.python (and more reward.sandbox.memory_limit_mb if that was too little)',
    );
  }
}

const ASK = `import json, sys
print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]))`;

/** Where an interpreter has its library, which it alone knows: it may be a link, a script or part of an environment. */
async function locate(path: string): Promise<Python> {
  try {
    const { stdout } = await promisify(execFile)(path, ['-I', '-c', ASK], { timeout: PROBE_MS });
    const [executable = '', ...prefixes] = JSON.parse(stdout) as string[];
    const outside = (prefix: string): boolean =>
      isAbsolute(prefix) && prefix !== '/' && !/^\/usr(\/|$)/.test(prefix) && existsSync(prefix);
    return {
      path: isAbsolute(executable) ? executable : path,
      prefixes: [...new Set(prefixes.filter(outside))],
    };
  } catch {
    return { path, prefixes: [] };
  }
}
