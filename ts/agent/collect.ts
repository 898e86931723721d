// Trajectories of many tasks at once: each its own async task, so that slow ones do not hold fast ones.
import { setMaxListeners } from 'node:events';
import pLimit, { type LimitFunction } from 'p-limit';
import { TroupeError } from '../errors';
import type { Agent, AgentTask } from './define';
import { type AgentRunOptions, runAgent } from './run_agent';
import type { Trajectory } from './trajectory/trajectory';

export interface CollectOptions extends Omit<AgentRunOptions, 'seed' | 'session'> {
  /** All randomness, with the number of the task and of the sample. */
  seed: number;
  /** Trajectories at once; a limit is one that calls share. */
  concurrency: number | LimitFunction;
  /** A trajectory that fails: end the run (fail), or give it a reward of 0 (zero). */
  onError: 'fail' | 'zero';
  /** Number of the first task, 0. */
  first?: number;
}

/**
 * One trajectory per task, in their order.
 * @throws TroupeError AGENT_FAILED with onError fail; the signal's reason
 */
export async function collectTrajectories(
  agent: Agent,
  tasks: readonly AgentTask[],
  options: CollectOptions,
): Promise<Trajectory[]> {
  const { concurrency, first = 0 } = options;
  const limit = typeof concurrency === 'number' ? pLimit(concurrency) : concurrency;
  options.signal?.throwIfAborted();
  const stop = new AbortController();
  // One for each trajectory.
  setMaxListeners(0, stop.signal);
  const end = (): void => stop.abort(options.signal?.reason);
  options.signal?.addEventListener('abort', end, { once: true });
  try {
    return await Promise.all(
      tasks.map((task, i) =>
        limit(async () => {
          const index = first + i;
          try {
            const trajectory = await runAgent(agent, task, {
              ...options,
              seed: `${options.seed}:${index}`,
              session: `${options.seed}-${index}`,
              signal: stop.signal,
            });
            if (trajectory.error !== null && options.onError === 'fail')
              throw failed(agent, trajectory.error, `task ${index} of the batch`, ONE_FAILED);
            return trajectory;
          } catch (error) {
            stop.abort(error);
            throw error;
          }
        }),
      ),
    );
  } finally {
    options.signal?.removeEventListener('abort', end);
  }
}

/** @throws TroupeError AGENT_FAILED where every one of at least two trajectories failed: the agent is wrong, not a task */
export function checkSomeWorked(agent: Agent, trajectories: readonly Trajectory[]): void {
  const errors = trajectories.flatMap(({ error }) => (error === null ? [] : [error]));
  if (errors.length > 1 && errors.length === trajectories.length)
    throw failed(agent, errors[0] as string, `every one of ${trajectories.length} tasks`, ALL_FAILED);
}

const ONE_FAILED =
  'Correct the agent, give it more time (rollout.agent.timeout), or set rollout.agent.on_error=zero to give such trajectories a reward of 0';
const ALL_FAILED =
  'Correct the agent, or what its tools need, or give it more time (rollout.agent.timeout): rollout.agent.on_error=zero is for some that fail among others';

const failed = ({ name = 'agent' }: Agent, error: string, where: string, remedy: string): TroupeError =>
  new TroupeError('AGENT_FAILED', `[agent] ${name} failed on ${where}: ${error}. ${remedy}`);
