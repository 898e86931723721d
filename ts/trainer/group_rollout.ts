// One prompt and its responses, whatever else is being worked on.

import { roomFor } from '../base/response_room';
import { deriveSeed } from '../base/seed';
import type { StoppableTimers } from '../base/stoppable_timers';
import type { Batch } from '../batch/batch';
import { trainSampling } from '../roles/settings';
import type { BatchRequest, RolloutEngine } from '../rollout/engine';
import type { RolloutResult } from '../rollout/request';
import { promptSeeds, promptsBatch, resolveSampling, sampledBatch } from '../rollout/sampling';
import { type Collected, collectResponses } from './agent_rollout';
import type { CollectContext } from './collect';
import type { StreamedPrompt } from './prompt_stream';
import { imagesOf, withPrompts } from './rollout';

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
  // Older prompts go first, however many calls their trajectories have had; what a step or a validation waits for goes before all of them.
  const priority = -batch * MOST_CALLS;
  const seed = deriveSeed(config.trainer.seed, 'rollout', batch);
  const sampling = { ...trainSampling(config), seed };
  if (agents) {
    const part = { first: index, signal, timers, priority };
    return await collectResponses(agents, engines.rollout, [prompt], sampling, `${batch}`, false, part);
  }
  const { n, sampling: shared, maxTokens } = resolveSampling('rollout', sampling);
  const siblings = streamed.siblings.map(({ tokens }) => tokens);
  const seeds = promptSeeds(siblings, index, n, seed);
  const sampled = await sampleGroup(
    engines.rollout,
    {
      prompts: promptsBatch('rollout', [prompt.tokens], n, await imagesOf([prompt])),
      n,
      sampling: shared,
      seeds,
      priority,
      versions: true,
      maxTokens,
    },
    signal,
  );
  // Of what was cut short nobody should learn, or be asked for a reward.
  signal.throwIfAborted();
  return { batch: withPrompts(sampled, [prompt], () => `${batch}-${index}`), trajectories: null };
}

/** Of one prompt. */
async function sampleGroup(
  engine: RolloutEngine,
  request: BatchRequest,
  signal: AbortSignal,
): Promise<Batch> {
  if (engine.submitBatch !== undefined) return await unlessAborted(engine.submitBatch(request), signal);
  const { prompts, n, seeds, priority, maxTokens = Number.POSITIVE_INFINITY } = request;
  const promptIds = prompts.prompt(0);
  const { maxNewTokens } = request.sampling;
  const sampling = {
    ...request.sampling,
    maxNewTokens: roomFor(promptIds.length, { maxNewTokens, maxTokens }),
  };
  const images = prompts.has('images') ? { images: prompts.get('images')[0] ?? [] } : {};
  const handles = Array.from(seeds, (seed) =>
    engine.submit({ promptIds, sampling: { ...sampling, seed }, priority, ...images }),
  );
  const end = (): void => {
    for (const handle of handles) handle.abort();
  };
  signal.addEventListener('abort', end, { once: true });
  const results = handles.map(({ result }) => result);
  try {
    const all = await Promise.all(results);
    const version = versionsOf(all);
    return sampledBatch(prompts, n, all).with(
      { version },
      { granularity: { version: 'response' }, adopt: true },
    );
  } catch (error) {
    end();
    await Promise.allSettled(results);
    throw error;
  } finally {
    signal.removeEventListener('abort', end);
  }
}

/** The engine goes on with it until it is closed, which may be in a pause. */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  let give: () => void = () => undefined;
  const aborted = new Promise<never>((_, reject) => {
    give = () => reject(signal.reason);
    signal.addEventListener('abort', give, { once: true });
  });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener('abort', give);
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
