import pLimit from 'p-limit';
import { checkOptionNames, numberOption } from '../../base/check_options';
import { AnswerTooLong, HttpConnection } from '../../base/http_connection';
import { reasonOf, show } from '../../base/text';
import { sleep, timerMs } from '../../base/timers';
import { TroupeError } from '../../errors';
import { runCodeUrl } from '../contract/run_code_url';
import type { CodeRunner, RunRequest, RunResult, RunStatus } from './runner';

export interface SandboxFusionOptions {
  /** http(s)://host[:port][/run_code] */
  url: string;
  /** Requests at once. 64 */
  maxConcurrent?: number;
  /** Memory of one program, MiB. 1024 */
  memoryLimitMb?: number;
  /** Seconds that a program may run, and as many to be prepared. 10 */
  timeout?: number;
  /** Seconds that the server may need on top of these, for instance in line. 10 */
  patience?: number;
  /** Attempts after the first, where the server cannot be reached or says 429, 502, 503 or 504. 3 */
  retries?: number;
  /** Before the first of them, milliseconds; doubles. 1000 */
  retryDelayMs?: number;
}

const KEYS = ['url', 'maxConcurrent', 'memoryLimitMb', 'timeout', 'patience', 'retries', 'retryDelayMs'];
const BUSY = new Set([429, 502, 503, 504]);
const MAX_ANSWER = 64 * 1024 * 1024;

/** An attempt failed in a way that another may not. */
class Temporary extends Error {}

const failed = (message: string, cause?: unknown): TroupeError =>
  new TroupeError('SANDBOX_FAILED', `[sandbox_fusion] ${message}`, { cause });

/** Runs Python programs on a Sandbox Fusion server (bytedance/SandboxFusion), POST /run_code. */
export class SandboxFusion implements CodeRunner {
  private readonly limit: ReturnType<typeof pLimit>;
  private readonly url: string;
  private readonly server: HttpConnection;
  private readonly retries: number;
  private readonly retryDelayMs: number;
  private readonly timeout: number;
  private readonly patience: number;
  private readonly memoryLimitMb: number;

  constructor(o: SandboxFusionOptions) {
    const where = 'sandbox_fusion options';
    checkOptionNames(where, o, KEYS);
    try {
      this.url = runCodeUrl(o.url);
      this.server = new HttpConnection(this.url);
    } catch (error) {
      throw new TroupeError('INVALID_ARGUMENT', `[${where}] url: ${reasonOf(error)}`);
    }
    this.limit = pLimit(numberOption(where, 'maxConcurrent', o.maxConcurrent, 64, { integer: true, min: 1 }));
    this.memoryLimitMb = numberOption(where, 'memoryLimitMb', o.memoryLimitMb, 1024, {
      integer: true,
      min: 1,
    });
    this.timeout = numberOption(where, 'timeout', o.timeout, 10, { above: 0 });
    this.patience = numberOption(where, 'patience', o.patience, 10, { min: 0 });
    this.retries = numberOption(where, 'retries', o.retries, 3, { integer: true, min: 0 });
    this.retryDelayMs = numberOption(where, 'retryDelayMs', o.retryDelayMs, 1000, { min: 0 });
  }

  /** @throws TroupeError SANDBOX_FAILED when the server does not answer, or with something else than a result */
  run(request: RunRequest): Promise<RunResult> {
    return this.limit(() => this.attempt(request));
  }

  private async attempt(request: RunRequest): Promise<RunResult> {
    for (let retry = 0; ; retry++) {
      try {
        return readAnswer(await this.post(request), this.url);
      } catch (error) {
        if (!(error instanceof Temporary)) throw error;
        if (retry >= this.retries)
          throw failed(`${this.url}: ${error.message} (${retry + 1} attempts): is the server up?`, error);
        await sleep(this.retryDelayMs * 2 ** retry);
      }
    }
  }

  private async post({ code, stdin }: RunRequest): Promise<string> {
    const body = JSON.stringify({
      code,
      language: 'python',
      stdin,
      run_timeout: this.timeout,
      compile_timeout: this.timeout,
      memory_limit_MB: this.memoryLimitMb,
    });
    const request = {
      method: 'POST',
      headers: { accept: 'application/json' },
      body,
      signal: AbortSignal.timeout(timerMs(1000 * (2 * this.timeout + this.patience))),
    } as const;
    const { status, text } = await this.server.ask(request, MAX_ANSWER).catch((error: unknown) => {
      if (error instanceof AnswerTooLong) throw failed(`${this.url}: ${error.message}`, error);
      throw new Temporary(`no answer (${reasonOf(error)})`);
    });
    if (BUSY.has(status)) throw new Temporary(`HTTP ${status}`);
    if (status !== 200) throw failed(`${this.url}: HTTP ${status}: ${show(text)}`);
    return text;
  }
}

interface Phase {
  status?: unknown;
  return_code?: unknown;
  stdout?: unknown;
  stderr?: unknown;
}

/** From {status: Success | Failed | SandboxError, message, compile_result, run_result}. */
function readAnswer(text: string, url: string): RunResult {
  const answer = parseObject(text, url);
  // Its own trouble, not the program's.
  if (answer['status'] === 'SandboxError')
    throw new Temporary(`SandboxError: ${show(answer['message'] ?? null)}`);
  const compile = (answer['compile_result'] ?? null) as Phase | null;
  const run = (answer['run_result'] ?? null) as Phase | null;
  if (compile !== null && (compile.status !== 'Finished' || (compile.return_code ?? 0) !== 0))
    return { status: statusOf(compile, url), stdout: '', stderr: textOf(compile.stderr) };
  if (run === null) throw failed(`${url}: the answer has no run_result: ${show(answer)}`);
  return { status: statusOf(run, url), stdout: textOf(run.stdout), stderr: textOf(run.stderr) };
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');

function statusOf({ status, return_code: code }: Phase, url: string): RunStatus {
  if (status === 'TimeLimitExceeded') return 'timeout';
  if (status === 'Error') return 'error';
  if (status === 'Finished') return (code ?? 0) === 0 ? 'finished' : 'error';
  throw failed(`${url}: expected status Finished, TimeLimitExceeded or Error, got ${show(status ?? null)}`);
}

function parseObject(text: string, url: string): Record<string, unknown> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw failed(`${url}: the answer is not JSON: ${show(text)}`);
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed))
    throw failed(`${url}: expected a JSON object, got ${show(parsed)}`);
  return parsed as Record<string, unknown>;
}
