// What trajectories tell besides their rewards: failures, tools, times.

import type { Trajectory } from '../../agent/trajectory/trajectory';
import { summary } from '../../algorithms/masked';
import type { Metrics } from './metrics';

function addSummary(metrics: Metrics, name: string, values: readonly number[]): void {
  const stats = summary(values);
  if (!stats) return;
  metrics[`${name}/mean`] = stats.mean;
  metrics[`${name}/max`] = stats.max;
  metrics[`${name}/min`] = stats.min;
}

function byTool(trajectories: readonly Trajectory[]): Map<string, Trajectory['toolUses'][number][]> {
  const uses = new Map<string, Trajectory['toolUses'][number][]>();
  for (const use of trajectories.flatMap(({ toolUses }) => toolUses)) {
    const same = uses.get(use.name);
    if (same) same.push(use);
    else uses.set(use.name, [use]);
  }
  return uses;
}

/** Letters that a metric may have: models make names of tools up. */
const known = (name: string): string => (/^[\w.-]{1,64}$/.test(name) ? name : 'unknown');

/**
 * agent/failed (trajectories), agent/calls/* (of the model), agent/sequences/* (that a trajectory became is in the batch);
 * tool/{name}/calls and errors; and the agents' own, mean, max and min over trajectories.
 */
export function agentMetrics(trajectories: readonly Trajectory[]): Metrics {
  const metrics: Metrics = {};
  metrics['agent/failed'] = trajectories.filter(({ error }) => error !== null).length;
  addSummary(
    metrics,
    'agent/model_calls',
    trajectories.map(({ calls }) => calls.length),
  );
  for (const [name, uses] of byTool(trajectories)) {
    metrics[`tool/${known(name)}/calls`] = (metrics[`tool/${known(name)}/calls`] ?? 0) + uses.length;
    metrics[`tool/${known(name)}/errors`] =
      (metrics[`tool/${known(name)}/errors`] ?? 0) + uses.filter(({ error }) => error !== null).length;
  }
  const names = new Set(trajectories.flatMap((one) => Object.keys(one.metrics)));
  for (const name of names)
    addSummary(
      metrics,
      name,
      trajectories.flatMap((one) => (Object.hasOwn(one.metrics, name) ? [one.metrics[name] as number] : [])),
    );
  return metrics;
}

/** Seconds: agent_loop/{generate_sequences,tool_calls}/*, as verl has them, agent_loop/total/*, and tool/{name}/seconds/*. */
export function agentTimings(trajectories: readonly Trajectory[]): Metrics {
  const metrics: Metrics = {};
  const sum = (values: readonly { seconds: number }[]): number =>
    values.reduce((total, { seconds }) => total + seconds, 0);
  addSummary(
    metrics,
    'agent_loop/generate_sequences',
    trajectories.map(({ calls }) => sum(calls)),
  );
  addSummary(
    metrics,
    'agent_loop/tool_calls',
    trajectories.map(({ toolUses }) => sum(toolUses)),
  );
  addSummary(
    metrics,
    'agent_loop/total',
    trajectories.map(({ seconds }) => seconds),
  );
  for (const [name, uses] of byTool(trajectories))
    addSummary(
      metrics,
      `tool/${known(name)}/seconds`,
      uses.map(({ seconds }) => seconds),
    );
  return metrics;
}
