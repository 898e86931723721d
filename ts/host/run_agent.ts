// The life of an agent as a process: finds the controller, serves it, and ends with it.
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { reasonOf } from '../base/text';
import { ConfigError, TroupeError } from '../errors';
import { isHostPort, namedAddress } from './addresses';
import { type AgentEnd, HostAgent } from './agent';

/** Where the controller is, and what it takes to be let in. */
const addressSchema = z.object({
  controllers: z.array(z.string().refine(isHostPort)).min(1),
  token: z.string().min(1),
});
export type ControllerAddress = z.infer<typeof addressSchema>;

/** Where an agent learns it from. */
export type AddressSource = { stdin: true } | { file: string } | { controller: string; tokenFile: string };

export interface AgentProcessOptions {
  source: AddressSource;
  network: string | null;
  index: number | null;
  /** How long to look for the controller, in milliseconds. */
  waitMs: number;
  /** The same for another one when the controller has gone without a word; its workers end at once. 0: this process ends. Default 0. */
  orphanMs?: number;
  say: (line: string) => void;
}

const RETRY_MS = 250;
/** Of a program that another one has ended by a signal. */
const SIGNAL_EXIT = 128;
const SIGNAL_NUMBERS = { SIGTERM: 15, SIGUSR2: 12, SIGINT: 2, SIGHUP: 1 } as const;

/**
 * @returns the exit code
 * @throws TroupeError INVALID_ARGUMENT for a network that this host has not; COMM when no controller is found in time, or it does not let this host in
 */
export async function runHostAgent(options: AgentProcessOptions): Promise<number> {
  // Before it is waited for somebody.
  if (options.network !== null) namedAddress(options.network);
  let agent: HostAgent | null = null;
  let ending: number | null = null;
  const onSignal = (signal: NodeJS.Signals): void => {
    const first = ending === null;
    ending = SIGNAL_EXIT + SIGNAL_NUMBERS[signal as keyof typeof SIGNAL_NUMBERS];
    // The controller gets the time that the signal leaves; where there is none, or the second time, this process goes.
    if (first && agent?.welcomed === true) agent.notice(signal);
    else process.exit(ending);
  };
  for (const signal of ['SIGTERM', 'SIGUSR2', 'SIGINT'] as const) process.on(signal, onSignal);
  process.on('SIGHUP', () => {});
  // Without a space: Slurm's proctrack/linuxproc cannot read such names in /proc, and would signal no such process.
  process.title = 'troupe-host-agent';
  const { orphanMs = 0 } = options;
  let patienceMs = options.waitMs;
  let deadline = performance.now() + patienceMs;
  const fixed = 'file' in options.source ? null : await readAddress(options.source);
  for (let last = 'nothing was tried'; ; await sleep(RETRY_MS)) {
    if (performance.now() > deadline) {
      throw new TroupeError('COMM', `no controller was found within ${patienceMs / 1000} s: ${last}`);
    }
    let address: ControllerAddress;
    try {
      address = fixed ?? (await readAddress(options.source));
    } catch (error) {
      last = reasonOf(error);
      continue;
    }
    for (const controller of address.controllers) {
      agent = new HostAgent({ ...options, controller, token: address.token });
      const end: AgentEnd = await agent.ended;
      if (end.exitCode !== null) return end.exitCode;
      last = `${controller}: ${end.reason}`;
      if (end.reason.startsWith('refused: ') && !end.reason.includes('token'))
        throw new TroupeError('COMM', `the controller ${last}`);
      if (end.welcomed) {
        options.say(`the connection to the controller ended (${end.reason}): its workers here are ended`);
        // Of one that was told by stdin nobody says where the next one is.
        if (ending !== null || orphanMs === 0 || 'stdin' in options.source) return ending ?? 1;
        options.say(`waiting ${orphanMs / 1000} s for another controller`);
        agent = null;
        patienceMs = orphanMs;
        deadline = performance.now() + patienceMs;
      }
    }
  }
}

async function readAddress(source: AddressSource): Promise<ControllerAddress> {
  if ('controller' in source) return { controllers: [source.controller], token: readToken(source.tokenFile) };
  const [where, text] =
    'stdin' in source ? ['stdin', await firstLine()] : [source.file, readFileSync(source.file, 'utf8')];
  const parsed = addressSchema.safeParse(parseJson(text));
  if (parsed.success) return parsed.data;
  throw new TroupeError(
    'INVALID_ARGUMENT',
    `${where}: expected one line {"controllers": ["host:port"], "token": "..."}, as the controller of a run writes it`,
  );
}

/** @throws ConfigError */
function readToken(file: string): string {
  const wrong = (why: string): never => {
    throw new ConfigError(
      `host-agent: --token-file: ${why}: expected the file with the token of the run, which its controller has as trainer.launcher.token_file`,
    );
  };
  let token = '';
  try {
    token = readFileSync(file, 'utf8').trim();
  } catch (cause) {
    wrong(`cannot read ${file} (${reasonOf(cause)})`);
  }
  return token === '' ? wrong(`${file} is empty`) : token;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

async function firstLine(): Promise<string> {
  for await (const line of createInterface({ input: process.stdin })) {
    process.stdin.destroy();
    return line;
  }
  return '';
}
