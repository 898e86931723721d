// Agents by Slurm: inside of an allocation, one step of one task per node.
import { execFileSync } from 'node:child_process';
import { TroupeError } from '../errors';
import { agentCommand } from './agent_command';
import { REQUEUE } from './sbatch';
import { commandStarter, type HostStarter } from './starter';

/** See sbatchScript. */
const TIME_LIMIT_SIGNAL = 'SIGUSR2';
/** Of a command of Slurm. */
const ANSWER_MS = 30_000;

type Environment = Readonly<Record<string, string | undefined>>;

/** Whether this process is in an allocation that it can start steps in. */
export const inAllocation = (env: Environment): boolean =>
  Boolean(env['SLURM_JOB_ID'] && env['SLURM_JOB_NODELIST']);

/** @throws TroupeError INVALID_ARGUMENT outside of an allocation, or in one of too few nodes */
export function slurmStarter(
  hosts: number,
  network: string | null,
  say: (line: string) => void,
  env: Environment = process.env,
): HostStarter {
  if (!inAllocation(env))
    throw new TroupeError(
      'INVALID_ARGUMENT',
      'trainer.launcher.type is slurm, but this process is in no allocation of Slurm: start it by troupe submit --launcher slurm, or inside of sbatch or salloc',
    );
  const names = hostnames(env['SLURM_JOB_NODELIST'] as string);
  if (names.length < hosts)
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `trainer.nnodes is ${hosts}, but the allocation has ${names.length} nodes: ${names.join(', ')}`,
    );
  const cpus = perNode(env['SLURM_JOB_CPUS_PER_NODE'] ?? '', names.length);
  return commandStarter(
    names,
    (name, index) => stepCommand(name, index, cpus[index] ?? 1, network, env),
    say,
  );
}

/**
 * One task on one node with all that the job has there. Said in full, because a step takes what it is not told from the job; and with
 * --overlap, because the controller has its part of the first node.
 */
export function stepCommand(
  name: string,
  index: number,
  cpus: number,
  network: string | null,
  env: Environment,
): string[] {
  const gpus = env['SLURM_GPUS_ON_NODE'] ?? env['SLURM_GPUS_PER_NODE'];
  return [
    'srun',
    ...['--exact', '--overlap', '--nodes=1', '--ntasks=1', `--cpus-per-task=${cpus}`, `--nodelist=${name}`],
    ...(gpus === undefined ? [] : [`--gpus-per-node=${gpus}`]),
    // One host that goes is not the end of the others, nor of the job.
    ...['--kill-on-bad-exit=0', '--unbuffered', '--cpu-bind=none'],
    ...agentCommand({ index, network, from: 'stdin' }),
  ];
}

function hostnames(list: string): string[] {
  try {
    return execFileSync('scontrol', ['show', 'hostnames', list], { encoding: 'utf8' }).trim().split('\n');
  } catch (error) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `cannot ask scontrol for the hosts of ${list}: ${(error as Error).message}`,
    );
  }
}

/** "4(x2),8" -> [4, 4, 8] */
export function perNode(text: string, nodes: number): number[] {
  const all = text.split(',').flatMap((part) => {
    const match = /^(\d+)(?:\(x(\d+)\))?$/.exec(part);
    return match === null ? [] : new Array<number>(Number(match[2] ?? 1)).fill(Number(match[1]));
  });
  return all.length === nodes ? all : [];
}

/**
 * Sends the job of this process back to the queue, if the batch script has asked for that and it was stopped by the notice of its time limit,
 * or because another job takes its nodes. Slurm then ends the processes of the job. @returns what was done, for people; null: nothing
 */
export function requeueAfter(stopReason: string | null, env: Environment = process.env): string | null {
  const job = env['SLURM_JOB_ID'];
  if (stopReason === null || !env[REQUEUE] || job === undefined) return null;
  const scontrol = (...args: string[]): string =>
    execFileSync('scontrol', args, { encoding: 'utf8', stdio: 'pipe', timeout: ANSWER_MS, env: { ...env } });
  try {
    if (stopReason !== TIME_LIMIT_SIGNAL && !isPreempted(scontrol('show', 'job', job))) return null;
    scontrol('requeue', job);
    return `job ${job} goes back to the queue, and on from there`;
  } catch (error) {
    return `job ${job} could not be sent back to the queue: ${(error as Error).message}`;
  }
}

/**
 * Whether a job, as scontrol shows it, is in the grace time that it has since another job takes its nodes: it still runs, which one that was
 * cancelled does not.
 */
function isPreempted(shown: string): boolean {
  const field = (name: string): string => new RegExp(`\\b${name}=(\\S+)`).exec(shown)?.[1] ?? '';
  const preempted = field('PreemptTime');
  // Times are "2026-11-23T12:30:33"; that of an earlier start may still be there.
  return field('JobState') === 'RUNNING' && /^\d/.test(preempted) && preempted >= field('StartTime');
}
