// Agents by Ray: one actor on each of as many nodes, through a small Python process beside the controller.
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { agentCommand, carriedEnvironment } from './agent_command';
import { RAY_PROGRAM } from './ray_program';
import type { HostStarter, StartedAgent } from './starter';

export interface RayOptions {
  /** The interpreter that has Ray. */
  python: string;
  /** Of the cluster; 'auto': the one of this machine. */
  address: string;
  hosts: number;
  /** What an agent gets of its node, in Ray's words. */
  bundle: Readonly<Record<string, number>>;
  /** Seconds until all hosts must have a place. */
  wait: number;
  network: string | null;
  say: (line: string) => void;
}

type Answer = { failed: string } | { ended: number; how: string };

/** The Python process begins with the first agent, and ends with the last one, or with this process. */
export function rayStarter(options: RayOptions): HostStarter {
  const names = Array.from({ length: options.hosts }, (_, index) => `${index} of Ray`);
  let bridge: Bridge | null = null;
  return {
    names,
    start(index, address) {
      if (bridge?.leaving !== false) bridge = new Bridge(options, bridge !== null);
      return bridge.start(index, `${JSON.stringify(address)}\n`);
    },
  };
}

/** What the last line of a traceback says of a module that is not there; else an empty text. */
function missingModule(line: string, python: string): string {
  const [said] = /ModuleNotFoundError.*/.exec(line) ?? [];
  if (said === undefined) return '';
  return `${said}: expected trainer.launcher.python to be an interpreter that has Ray, got ${python}`;
}

class Bridge {
  /** It starts nothing any more. */
  leaving = false;
  readonly #options: RayOptions;
  readonly #child: ChildProcess;
  readonly #agents = new Map<number, (how: string) => void>();
  #why = '';

  /** `again`: there was one before, which has ended. */
  constructor(options: RayOptions, again: boolean) {
    this.#options = options;
    this.#child = spawn(options.python, ['-c', RAY_PROGRAM], {
      stdio: ['pipe', 'pipe', 'pipe'],
      detached: true,
      env: { ...process.env, PYTHONUNBUFFERED: '1', RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO: '0' },
    });
    const { stdin, stdout, stderr } = this.#child;
    stdin?.on('error', () => {}); // it may have ended
    if (stdout !== null) createInterface({ input: stdout }).on('line', (line) => this.#receive(line));
    if (stderr !== null)
      createInterface({ input: stderr }).on('line', (line) => {
        this.#why ||= missingModule(line, options.python);
        options.say(`[ray] ${line}`);
      });
    this.#child.once('error', (error) => this.#end(`cannot start ${options.python}: ${error.message}`));
    this.#child.once('close', (code, signal) =>
      this.#end(this.#why || `${options.python} ended with ${signal ?? `exit code ${code}`}`),
    );
    const { address, hosts, bundle, wait } = options;
    this.#send({ address, hosts, bundle, wait, again });
  }

  start(index: number, line: string): StartedAgent {
    const exited = new Promise<string>((resolve) => {
      this.#agents.set(index, resolve);
    });
    this.#send({
      start: index,
      argv: agentCommand({ index, network: this.#options.network, from: 'stdin' }),
      cwd: process.cwd(),
      env: Object.fromEntries(carriedEnvironment()),
      line,
    });
    return { exited, kill: () => this.#send({ kill: index }) };
  }

  #send(message: unknown): void {
    if (!this.leaving) this.#child.stdin?.write(`${JSON.stringify(message)}\n`);
  }

  #receive(line: string): void {
    const answer = JSON.parse(line) as Answer;
    if ('failed' in answer) this.#why = answer.failed;
    else {
      this.#agents.get(answer.ended)?.(answer.how);
      this.#agents.delete(answer.ended);
      // Without agents there is nothing to keep a place for; a restart begins anew.
      if (this.#agents.size > 0) return;
      this.leaving = true;
      this.#child.stdin?.end();
    }
  }

  #end(how: string): void {
    this.leaving = true;
    for (const resolve of this.#agents.values()) resolve(how);
    this.#agents.clear();
  }
}
