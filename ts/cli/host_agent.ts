// `troupe host-agent`: this process serves the controller of a run as the agent of its host.
import type { Argv } from 'yargs';
import { isHostPort } from '../host/addresses';
import type { AddressSource } from '../host/run_agent';
import { UsageError } from './report';

export const withHostAgent = (y: Argv) =>
  y
    .option('controller', { type: 'string', requiresArg: true, describe: 'host:port of the controller' })
    .option('token-file', {
      type: 'string',
      requiresArg: true,
      describe: 'With --controller: file with the token of the run',
    })
    .option('rendezvous', {
      type: 'string',
      requiresArg: true,
      describe: 'File in which the controller of a run says where it is; waited for',
    })
    .option('stdin', { type: 'boolean', default: false, describe: 'The same as one line on stdin' })
    .option('network', {
      type: 'string',
      requiresArg: true,
      describe:
        'Interface, subnet or address that other hosts reach this one at; default: what reaches the controller',
    })
    .option('index', {
      type: 'number',
      requiresArg: true,
      describe: 'Which of the hosts this is, from 0; default: JOB_COMPLETION_INDEX, or any',
    })
    .option('wait', {
      type: 'number',
      requiresArg: true,
      default: 300,
      describe: 'Seconds to look for the controller',
    })
    .option('orphan-wait', {
      type: 'number',
      requiresArg: true,
      default: 0,
      describe: 'Seconds to look for another controller when this one is gone without a word; 0: end with it',
    });

type Arguments = Awaited<ReturnType<typeof withHostAgent>['argv']>;

/** @throws UsageError for options that do not say where the controller is */
export function hostAgentTask(a: Arguments): () => Promise<number> {
  const source = sourceOf(a);
  const { network = null, wait, orphanWait } = a;
  // An indexed job of Kubernetes numbers its pods.
  const given = process.env['JOB_COMPLETION_INDEX'] || null;
  const index = a.index ?? (given === null ? null : Number(given));
  if (index !== null && !(Number.isInteger(index) && index >= 0)) {
    const [name, value] = a.index === undefined ? ['JOB_COMPLETION_INDEX', given] : ['--index', index];
    throw new UsageError(`host-agent: ${name}: expected an integer >= 0, got ${value}`);
  }
  if (!(wait > 0 && wait <= 2_147_483))
    throw new UsageError(`host-agent: --wait: expected seconds, got ${wait}`);
  if (!(orphanWait >= 0 && orphanWait <= 2_147_483))
    throw new UsageError(`host-agent: --orphan-wait: expected seconds, got ${orphanWait}`);
  const say = (line: string): void => void process.stderr.write(`troupe host-agent: ${line}\n`);
  return async () => {
    const { runHostAgent } = require('../host/run_agent') as typeof import('../host/run_agent');
    return await runHostAgent({
      source,
      network,
      index,
      waitMs: 1000 * wait,
      orphanMs: 1000 * orphanWait,
      say,
    });
  };
}

function sourceOf({ controller, tokenFile, rendezvous, stdin }: Arguments): AddressSource {
  const given = [controller !== undefined, rendezvous !== undefined, stdin].filter(Boolean).length;
  if (given !== 1 || (controller === undefined) !== (tokenFile === undefined))
    throw new UsageError('host-agent: expected one of --controller with --token-file, --rendezvous, --stdin');
  if (controller !== undefined && !isHostPort(controller))
    throw new UsageError(`host-agent: --controller: expected host:port, got ${controller}`);
  if (controller !== undefined) return { controller, tokenFile: tokenFile as string };
  return rendezvous === undefined ? { stdin: true } : { file: rendezvous };
}
