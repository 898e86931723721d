// Any program as the agent: it finds the policy where clients of the OpenAI and Anthropic APIs look, and prints its result.
import type { ChildProcess } from 'node:child_process';
import { GroupGuard, signalGroup } from '../../base/group_guard';
import { printable } from '../../base/printable';
import { toJson } from '../../base/text';
import { dataAddress } from '../../data/images/data_address';
import { type Agent, type AgentContext, type AgentResult, type AgentTask, defineAgent } from '../define';
import type { SessionAddress } from '../endpoint/session_server';

/** What a program may print; more is dropped, and what is kept is its end. */
const MAX_OUTPUT = 2 ** 20;
/** Milliseconds between the request to end and the end. */
const GRACE_MS = 2000;
/** Milliseconds that what a program has left behind has to write what it still holds of the output. */
const DRAIN_MS = 250;

/** Bytes of a task that its variable takes. Linux starts no program with a variable of 128 KiB. */
const MAX_VARIABLE = 100 * 2 ** 10;

/** One word is a line for the shell; several are a program and its arguments. */
export function commandAgent(command: readonly string[]): Agent {
  const words = command.length === 1 ? ['/bin/sh', '-c', ...command] : command;
  const programs = new Programs(words);
  return defineAgent({
    name: command.join(' ').slice(0, 60),
    run: async (task, context) => {
      const address = await context.endpoint();
      const text = await taskJson(task);
      return resultOf(await programs.run(environment(text, address), text, context.signal), context);
    },
  });
}

/** Images as data: addresses, which clients send as they are. */
async function taskJson({ promptIds: _, images, ...task }: AgentTask): Promise<string> {
  if (images === undefined) return toJson(task);
  return toJson({ ...task, images: await Promise.all(images.map(dataAddress)) });
}

function environment(task: string, address: SessionAddress): NodeJS.ProcessEnv {
  const { openaiBaseUrl, anthropicBaseUrl, apiKey } = address;
  return {
    ...process.env,
    OPENAI_BASE_URL: openaiBaseUrl,
    OPENAI_API_BASE: openaiBaseUrl,
    OPENAI_API_KEY: apiKey,
    ANTHROPIC_BASE_URL: anthropicBaseUrl,
    ANTHROPIC_API_KEY: apiKey,
    TROUPE_TASK: Buffer.byteLength(task) > MAX_VARIABLE ? undefined : task,
  };
}

/** Runs one command again and again, and leaves nothing of it when this process ends. */
class Programs {
  private readonly guard = new GroupGuard();

  constructor(private readonly command: readonly string[]) {}

  /** Its standard output. @throws Error with its status and the end of its standard error; the signal's reason */
  run(env: NodeJS.ProcessEnv, stdin: string, signal: AbortSignal): Promise<string> {
    return new Promise((resolve, reject) => {
      // It may have been over before the session was open: nothing would end the program.
      signal.throwIfAborted();
      const child = this.start(env);
      child.on('error', reject);
      const [out, err] = [new Tail(), new Tail()];
      // Without a file descriptor left there are no pipes, and the error is still to come.
      child.stdout?.on('data', (part: Buffer) => out.push(part));
      child.stderr?.on('data', (part: Buffer) => err.push(part));
      // Programs need not read their task.
      child.stdin?.on('error', () => undefined);
      child.stdin?.end(stdin);
      let ending: NodeJS.Timeout | undefined;
      const end = (): void => {
        signalGroup(child.pid, 'SIGKILL');
        // What has left the group may hold the pipes for good. What is in them is read before an immediate comes.
        setImmediate(() => {
          child.stdout?.destroy();
          child.stderr?.destroy();
        });
      };
      const abort = (): void => {
        signalGroup(child.pid, 'SIGTERM');
        clearTimeout(ending);
        ending = setTimeout(end, GRACE_MS);
        reject(signal.reason);
      };
      signal.addEventListener('abort', abort, { once: true });
      child.on('exit', () => {
        ending ??= setTimeout(end, DRAIN_MS);
      });
      child.on('close', (status, by) => {
        clearTimeout(ending);
        signal.removeEventListener('abort', abort);
        // What it has left behind.
        signalGroup(child.pid, 'SIGKILL');
        this.guard.drop(child.pid);
        if (status === 0) return resolve(out.text);
        const said = err.text.trim().slice(-1000) || 'it wrote nothing to standard error';
        reject(
          new Error(`the program ended with ${by ?? `status ${status}`}: ${printable(said, { max: 1000 })}`),
        );
      });
    });
  }

  private start(env: NodeJS.ProcessEnv): ChildProcess {
    const [program = '', ...args] = this.command;
    return this.guard.spawn(program, args, { env, stdio: ['pipe', 'pipe', 'pipe'] });
  }
}

/** The end of a stream. */
class Tail {
  private parts: Buffer[] = [];
  private size = 0;

  push(part: Buffer): void {
    this.parts.push(part);
    this.size += part.length;
    if (this.size > 2 * MAX_OUTPUT) {
      this.parts = [Buffer.concat(this.parts).subarray(-MAX_OUTPUT)];
      this.size = MAX_OUTPUT;
    }
  }

  get text(): string {
    return Buffer.concat(this.parts).subarray(-MAX_OUTPUT).toString();
  }
}

/** The last line: an object or a number is the result of the agent, anything else its answer. */
function resultOf(output: string, { note }: AgentContext): AgentResult {
  const line = output.trimEnd().split('\n').at(-1)?.trim() ?? '';
  note({ role: 'result', content: line });
  try {
    const value: unknown = JSON.parse(line);
    if (typeof value === 'number') return value;
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as AgentResult;
  } catch {
    // A text.
  }
  return { answer: line };
}
