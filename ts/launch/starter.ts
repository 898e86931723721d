// Ways to get an agent onto a host: one command per host, which reads on its stdin where the controller is.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { ControllerAddress } from '../host/run_agent';

/** An agent that was started from here. */
export interface StartedAgent {
  /** Settles with how it ended; never rejects. */
  readonly exited: Promise<string>;
  kill(): void;
}

export interface HostStarter {
  /** The hosts that agents can be started on, by index. */
  readonly names: readonly string[];
  start(index: number, address: ControllerAddress): StartedAgent;
}

const TAIL_LINES = 10;

/** `command`: program and arguments for a host. What it writes goes to `say`, and its last lines into how it ended. */
export function commandStarter(
  names: readonly string[],
  command: (name: string, index: number) => readonly string[],
  say: (line: string) => void,
): HostStarter {
  return {
    names,
    start(index, address) {
      const name = names[index] as string;
      const [program, ...args] = command(name, index) as [string, ...string[]];
      // A Ctrl-C at the terminal is for the controller, which ends the agents in order.
      const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'], detached: true });
      const tail: string[] = [];
      for (const stream of [child.stdout, child.stderr])
        createInterface({ input: stream }).on('line', (line) => {
          tail.push(line);
          if (tail.length > TAIL_LINES) tail.shift();
          say(`[host ${name}] ${line}`);
        });
      child.stdin.on('error', () => {}); // it may have ended before it has read
      child.stdin.end(`${JSON.stringify(address)}\n`);
      const exited = new Promise<string>((resolve) => {
        const ended = (how: string): void => resolve([how, ...tail.map((line) => `  ${line}`)].join('\n'));
        child.once('error', (error) => ended(`cannot start ${program}: ${error.message}`));
        child.once('close', (code, signal) =>
          ended(`${program} ended with ${signal === null ? `exit code ${code}` : signal}`),
        );
      });
      return { exited, kill: () => void child.kill('SIGKILL') };
    },
  };
}
