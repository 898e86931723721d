// What trajectories tell besides their rewards: failures, tools, times.

import type { Trajectory } from '../../agent/trajectory/trajectory';
import { addSummary, type Metrics } from './metrics';

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

const sum = (values: readonly { seconds: number }[]): number =>
  values.reduce((total, { seconds }) => total + seconds, 0);

/** agent_loop/slowest/*: of the trajectory whose model and tools took longest, seconds and tokens (of its longest sequence). */
function slowestTrajectory(trajectories: readonly Trajectory[]): Metrics {
  const time = ({ calls, toolUses }: Trajectory): number => sum(calls) + sum(toolUses);
  const [first, ...others] = trajectories;
  if (first === undefined) return {};
  const slowest = others.reduce((most, one) => (time(one) > time(most) ? one : most), first);
  const { calls, toolUses } = slowest;
  const prompt = calls[0]?.promptIds.length ?? 0;
  const longest = Math.max(prompt, ...calls.map(({ promptIds, tokens }) => promptIds.length + tokens.length));
  return {
    'agent_loop/slowest/generate_sequences': sum(calls),
    'agent_loop/slowest/tool_calls': sum(toolUses),
    'agent_loop/slowest/prompt_length': prompt,
    'agent_loop/slowest/response_length': longest - prompt,
  };
}

/** Seconds: agent_loop/{generate_sequences,tool_calls,slowest}/*, as verl has them, agent_loop/total/*, and tool/{name}/seconds/*. */
export function agentTimings(trajectories: readonly Trajectory[]): Metrics {
  const metrics = slowestTrajectory(trajectories);
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
