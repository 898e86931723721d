// Random histories of agents: linear ones, rewritten ones, branches from any earlier call, repeated prompts.
import type { ModelCall } from '../../../ts/agent/trajectory/model_call';
import type { Trajectory } from '../../../ts/agent/trajectory/trajectory';
import { Mt19937 } from '../../../ts/base/mt19937';

export const callOf = (promptIds: number[], tokens: number[], version = 0): ModelCall => ({
  promptIds: Int32Array.from(promptIds),
  images: [],
  tokens: Int32Array.from(tokens),
  logProbs: Float32Array.from(tokens, (token, i) => -(token + 1) / (i + 2)),
  versions: tokens.length > 0 ? [{ version, start: 0, end: tokens.length }] : [],
  finishReason: 'stop',
  seconds: 0,
});

export const trajectoryOf = (calls: readonly ModelCall[], more: Partial<Trajectory> = {}): Trajectory => ({
  calls,
  toolUses: [],
  record: [],
  reward: null,
  turnRewards: new Map(),
  extra: {},
  metrics: {},
  answer: null,
  error: null,
  seconds: 0,
  ...more,
});

/** Few different tokens, so that histories meet by chance, too. */
export function randomCalls(seed: number): ModelCall[] {
  const random = new Mt19937(seed);
  const below = (n: number): number => Math.floor(random.nextDouble() * n);
  const ids = (n: number): number[] => Array.from({ length: n }, () => below(3));
  const root = ids(1 + below(4));
  const calls: ModelCall[] = [];
  const count = 1 + below(8);
  for (let i = 0; i < count; i++) {
    const earlier = calls[below(Math.max(calls.length, 1))];
    const last = calls.at(-1);
    const whole = (call: ModelCall): number[] => [...call.promptIds, ...call.tokens];
    const kind = below(6);
    let prompt: number[];
    if (last === undefined || kind === 0) prompt = root;
    else if (kind <= 2) prompt = [...whole(last), ...ids(below(3))];
    else if (kind === 3) prompt = [...whole(earlier as ModelCall), ...ids(below(3))];
    else if (kind === 4) prompt = [...whole(last).slice(0, -1), ...ids(2)];
    else prompt = [...root, ...ids(below(5))];
    calls.push(callOf(prompt, ids(below(4)), below(3)));
  }
  return calls;
}
