// One training step, phase by phase. `trainStep` is the recipe; each phase below it is one call to an engine or
// one pure function.
import { computeAdvantages } from '../algorithms/advantages';
import { applyKlPenalty, type KlController } from '../algorithms/kl';
import { maskedMean } from '../algorithms/masked';
import type { Batch } from '../batch/batch';
import type { ResolvedConfig } from '../config/config';
import type { RewardManagerOptions } from '../reward/manager';
import type { RewardFunction } from '../reward/types';
import type { Engines } from './engines';
import { dataMetrics, type Metrics, type PhaseTimer, rewardExtraMetrics, rolloutDifference } from './metrics';
import { type Decoder, generateResponses, type Prompt, type Scored, scoreResponses } from './rollout';
import { deriveSeed } from './seed';
import { advantageOptions, policyLossOptions, rewardOptions, trainSampling } from './settings';

/** What a step works with. */
export interface StepContext {
  config: ResolvedConfig;
  engines: Engines;
  decoder: Decoder;
  reward: RewardFunction;
  kl: KlController;
  timer: PhaseTimer;
  /** Called between phases up to the first update; throws when the step is to be given up. */
  pause: () => void;
}

export interface StepResult {
  batch: Batch;
  scored: Scored;
  metrics: Metrics;
}

/** Generate, score, evaluate, estimate advantages, update critic and actor: step `step` (from 1) on these prompts. */
export async function trainStep(
  context: StepContext,
  prompts: readonly Prompt[],
  step: number,
): Promise<StepResult> {
  const { config, engines, timer, pause } = context;
  const metrics: Metrics = {};
  const phase = <T>(name: string, work: () => Promise<T> | T): Promise<T> => {
    engines.setPhase(`${name} of step ${step}`);
    return timer.time(name, work);
  };

  let batch = await phase('gen', () => rollout(context, prompts, step));
  pause();
  const scored = await phase('reward', () => score(context, batch, metrics));
  batch = scored.batch;
  pause();
  if (config.algorithm.adv_estimator === 'remax') {
    batch = await phase('gen_max', () => greedyBaseline(context, batch, prompts));
    pause();
  }
  batch = await phase('old_log_prob', () => oldLogProbs(context, batch, metrics));
  pause();
  if (engines.reference) {
    batch = await phase('ref', () => referenceLogProbs(context, batch));
    pause();
  }
  if (engines.critic) {
    batch = await phase('values', () => values(context, batch));
    pause();
  }
  batch = await phase('adv', () => advantages(context, batch, metrics));
  if (engines.critic) await phase('update_critic', () => updateCritic(context, batch, metrics));
  if (config.trainer.critic_warmup <= step) {
    await phase('update_actor', () => updateActor(context, batch, metrics));
  }
  engines.setPhase(null);

  const limits = { prompt: config.data.max_prompt_length, response: config.data.max_response_length };
  Object.assign(metrics, dataMetrics(batch, limits));
  return { batch, scored, metrics };
}

function rollout({ config, engines }: StepContext, prompts: readonly Prompt[], step: number): Promise<Batch> {
  const seed = deriveSeed(config.trainer.seed, 'rollout', step);
  return generateResponses(engines.actor, prompts, { ...trainSampling(config), seed }, String(step));
}

async function score(context: StepContext, batch: Batch, metrics: Metrics): Promise<Scored> {
  const options: RewardManagerOptions = rewardOptions(context.config);
  const scored = await scoreResponses(
    batch,
    context.decoder,
    context.reward,
    options,
    context.engines.rewardModel,
  );
  Object.assign(metrics, rewardExtraMetrics(scored.rewards.extras));
  if (scored.rewards.failures > 0) metrics['reward/failures'] = scored.rewards.failures;
  return scored;
}

/** ReMax's baseline: the reward of the greedy answer to the same prompt, on each of its responses. */
async function greedyBaseline(
  context: StepContext,
  batch: Batch,
  prompts: readonly Prompt[],
): Promise<Batch> {
  const { config, engines, decoder, reward } = context;
  const sampling = { maxNewTokens: config.data.max_response_length, temperature: 0 };
  const greedy = await generateResponses(engines.actor, prompts, sampling, 'greedy');
  const { rewards } = await scoreResponses(
    greedy,
    decoder,
    reward,
    rewardOptions(config),
    engines.rewardModel,
  );
  const n = config.actor_rollout_ref.rollout.n;
  const rewardBaselines = Array.from({ length: batch.size }, (_, i) => rewards.scores[Math.floor(i / n)]);
  return batch.with({ rewardBaselines }, { granularity: { rewardBaselines: 'sequence' } });
}

async function oldLogProbs({ config, engines }: StepContext, batch: Batch, metrics: Metrics): Promise<Batch> {
  const temperature = config.actor_rollout_ref.rollout.temperature;
  const sumPiSquared = config.actor_rollout_ref.actor.calculate_sum_pi_squared;
  const result = await engines.actor.computeLogProb(batch, { temperature, entropy: true, sumPiSquared });
  const entropy = result.entropy as Float32Array;
  metrics['actor/entropy'] = maskedMean(entropy, batch.get('responseMask'));
  const evaluated = batch.with({
    oldLogProbs: result.logProbs,
    entropy,
    ...(result.sumPiSquared ? { sumPiSquared: result.sumPiSquared } : {}),
  });
  Object.assign(metrics, rolloutDifference(evaluated));
  return evaluated;
}

async function referenceLogProbs({ config, engines }: StepContext, batch: Batch): Promise<Batch> {
  const temperature = config.actor_rollout_ref.rollout.temperature;
  const result = await engines.reference?.computeLogProb(batch, { temperature });
  return batch.with({ refLogProbs: result?.logProbs });
}

async function values({ engines }: StepContext, batch: Batch): Promise<Batch> {
  return batch.with({ values: (await engines.critic?.computeValues(batch))?.values });
}

/** KL in the reward (or not), then advantages and returns. */
function advantages({ config, kl }: StepContext, batch: Batch, metrics: Metrics): Batch {
  const { algorithm } = config;
  let rewarded: Batch;
  if (algorithm.use_kl_in_reward) {
    const penalised = applyKlPenalty(batch, kl, algorithm.kl_penalty);
    Object.assign(metrics, penalised.metrics);
    rewarded = penalised.batch;
  } else {
    rewarded = batch.with({ tokenRewards: batch.get('tokenScores') });
  }
  return rewarded.with(computeAdvantages(algorithm.adv_estimator, rewarded, advantageOptions(config)));
}

async function updateCritic({ config, engines }: StepContext, batch: Batch, metrics: Metrics): Promise<void> {
  const { critic, actor_rollout_ref } = config;
  const update = await engines.critic?.updateCritic(batch, {
    miniBatchSize: critic.ppo_mini_batch_size * actor_rollout_ref.rollout.n,
    ppoEpochs: critic.ppo_epochs,
    clipRangeValue: critic.cliprange_value,
    aggregation: critic.loss_agg_mode,
    ...(critic.loss_scale_factor === null ? {} : { scaleFactor: critic.loss_scale_factor }),
  });
  Object.assign(metrics, update);
}

async function updateActor({ config, engines }: StepContext, batch: Batch, metrics: Metrics): Promise<void> {
  const { actor, rollout: sampling } = config.actor_rollout_ref;
  const update = await engines.actor.updatePolicy(batch, {
    miniBatchSize: actor.ppo_mini_batch_size * sampling.n,
    ppoEpochs: actor.ppo_epochs,
    temperature: sampling.temperature,
    loss: policyLossOptions(config),
  });
  Object.assign(metrics, update);
}
