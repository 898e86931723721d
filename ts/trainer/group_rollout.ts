// One prompt and its responses, whatever else is being worked on.
import { deriveSeed } from '../base/seed';
import type { StoppableTimers } from '../base/stoppable_timers';
import { trainSampling } from '../roles/settings';
import type { RolloutResult } from '../rollout/request';
import { promptSeeds, promptsBatch, resolveSampling, sampledBatch } from '../rollout/sampling';
import { type Collected, collectResponses } from './agent_rollout';
import type { CollectContext } from './collect';
import type { StreamedPrompt } from './prompt_stream';
import { withPrompts } from './rollout';

/** Of one trajectory: more than there ever are. */
const MOST_CALLS = 2 ** 20;

export interface GroupOptions {
  /** Ends what is under way, with its reason. */
  signal: AbortSignal;
  /** What the time of trajectories is measured by. */
  timers: StoppableTimers;
}

/**
 * The responses to one prompt, with the columns that those of a batch have, and `version` [ΣR], the weights that made each token. Their seeds are those that they would
 * have in the batch of the data which the prompt is from.
 */
export async function collectGroup(
  context: CollectContext,
  streamed: StreamedPrompt,
  { signal, timers }: GroupOptions,
): Promise<Collected> {
  const { config, engines, agents } = context;
  signal.throwIfAborted();
  const { prompt, batch, index } = streamed;
  const seed = deriveSeed(config.trainer.seed, 'rollout', batch);
  const sampling = { ...trainSampling(config), seed };
  if (agents) {
    // Calls of older prompts go first, however many their trajectories have had.
    const part = { first: index, signal, timers, priority: -batch * MOST_CALLS };
    return await collectResponses(agents, engines.rollout, [prompt], sampling, `${batch}`, false, part);
  }
  const { n, sampling: shared } = resolveSampling('rollout', sampling);
  const prompts = streamed.siblings.map(({ tokens }) => tokens);
  const seeds = promptSeeds(prompts, index, n, seed);
  const promptIds = Int32Array.from(prompt.tokens);
  const handles = Array.from(seeds, (own) =>
    engines.rollout.submit({ promptIds, sampling: { ...shared, seed: own } }),
  );
  const end = (): void => {
    for (const handle of handles) handle.abort();
  };
  signal.addEventListener('abort', end, { once: true });
  const results = handles.map(({ result }) => result);
  try {
    const samples = await Promise.all(results);
    // Of what was cut short nobody should learn, or be asked for a reward.
    signal.throwIfAborted();
    const sampled = sampledBatch(promptsBatch('rollout', [promptIds], n), n, samples);
    const version = versionsOf(samples);
    const whole = sampled.with({ version }, { granularity: { version: 'response' }, adopt: true });
    return { batch: withPrompts(whole, [prompt], () => `${batch}-${index}`), trajectories: null };
  } catch (error) {
    end();
    await Promise.allSettled(results);
    throw error;
  } finally {
    signal.removeEventListener('abort', end);
  }
}

/** [ΣR] */
function versionsOf(results: readonly RolloutResult[]): Int32Array {
  const out = new Int32Array(results.reduce((sum, { tokens }) => sum + tokens.length, 0));
  let at = 0;
  for (const { tokens, versions } of results) {
    for (const { version, start, end } of versions) out.fill(version, at + start, at + end);
    at += tokens.length;
  }
  return out;
}
