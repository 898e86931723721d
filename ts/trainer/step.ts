// One training step, phase by phase. `trainStep` is the recipe; each phase below it is one call to an engine or
// one pure function.
import { wholeTrajectories } from '../agent/trajectory/whole';
import { computeAdvantages, estimatorNeeds } from '../algorithms/advantages';
import { applyKlPenalty, type KlController } from '../algorithms/kl';
import { pfPpoResample } from '../algorithms/pf_ppo';
import { totalScores } from '../algorithms/response_totals';
import { Mt19937 } from '../base/mt19937';
import { deriveSeed } from '../base/seed';
import type { Batch } from '../batch/batch';
import type { ResolvedConfig } from '../config/config';
import { routerReplay } from '../config/derived/router_replay';
import { routerZLossCoef } from '../config/derived/router_z_loss';
import { indicesByRank } from '../engine/shards';
import type { RewardManager } from '../reward/contract/types';
import { advantageOptions, policyLossOptions, trainSampling } from '../roles/settings';
import type { AgentRollout } from './agent_rollout';
import type { Collector, Phase } from './collect';
import { bypassOldLogProbs, correctRollout } from './correction';
import type { Engines } from './engines';
import { agentMetrics, agentTimings } from './metrics/agent_metrics';
import { aggregate } from './metrics/aggregate';
import { sequenceLengthMetrics, varianceProxyMetrics } from './metrics/batch_metrics';
import {
  dataMetrics,
  type Metrics,
  type PhaseTimer,
  rewardExtraMetrics,
  rolloutDifference,
} from './metrics/metrics';
import { miniBatchSizes } from './mini_batch_sizes';
import { rewardComponents } from './reward_columns';
import { type Decoder, generateResponses, type Prompt, type Scored, scoreResponses } from './rollout';
import { withTeachers } from './teachers';

/** What a step works with. */
export interface StepContext {
  config: ResolvedConfig;
  engines: Engines;
  decoder: Decoder;
  /** null: prompts are answered once each. */
  agents: AgentRollout | null;
  reward: RewardManager;
  kl: KlController;
  timer: PhaseTimer;
  /** Called between phases up to the first update; throws when the step is to be given up. */
  pause: () => void;
}

export interface StepResult {
  /** What was generated and kept for the step. */
  batch: Batch;
  scored: Scored;
  metrics: Metrics;
  /** Seconds that the phases do not tell. */
  timings: Metrics;
  /** Of the last prompts that the step took, counted from 0. */
  epoch: number;
  /** Response tokens generated, those of prompts that were left out included. */
  generatedTokens: number;
}

/** Collect scored responses, evaluate them, estimate advantages, update critic and actor: step `step`, from 1. */
export async function trainStep(
  context: StepContext,
  collector: Collector,
  step: number,
): Promise<StepResult> {
  const { config, engines, timer, pause } = context;
  const metrics: Metrics = {};
  const phase: Phase = (name, work) => {
    engines.setPhase(`${name} of step ${step}`);
    return timer.time(name, work);
  };

  const { scored, prompts, trajectories, ...taken } = await collector.take(step, phase, pause);
  Object.assign(metrics, taken.metrics, rewardMetrics(scored));
  if (context.agents) Object.assign(metrics, agentMetrics(trajectories));
  let batch = scored.batch;
  const { adv_estimator: estimator } = config.algorithm;
  if (estimator === 'remax' || estimatorNeeds(estimator, 'rewardBaselines')) {
    batch = await phase('gen_max', () => greedyBaseline(context, batch, prompts));
    pause();
  }
  await collector.beforeLearning();
  batch = await phase('old_log_prob', () => oldLogProbs(context, batch, metrics));
  pause();
  if (engines.reference) {
    batch = await phase('ref', () => referenceLogProbs(context, batch));
    pause();
  }
  const { teachers } = engines;
  if (teachers) {
    batch = await phase('teacher', () => withTeachers(config, teachers, batch));
    pause();
  }
  if (engines.critic) {
    batch = await phase('values', () => values(context, batch));
    pause();
  }
  batch = await phase('adv', () => advantages(context, scored, batch, metrics));
  const learnt = config.algorithm.use_pf_ppo ? resample(config, batch, step, metrics) : batch;
  if (engines.critic) await phase('update_critic', () => updateCritic(context, learnt, metrics));
  if (config.trainer.critic_warmup <= step) {
    await phase('update_actor', () => updateActor(context, learnt, metrics));
    if (engines.syncRollout) await phase('update_weights', async () => engines.syncRollout?.(step));
    else await engines.rollout.updateWeights({ kind: 'in-place' }, step);
  }
  engines.setPhase(null);

  const ranks = engines.dataParallelSize ?? engines.worldSize;
  const limits = { prompt: config.data.max_prompt_length, response: config.data.max_response_length };
  Object.assign(
    metrics,
    dataMetrics(wholeTrajectories(batch), limits),
    sequenceLengthMetrics(learnt.sequenceLens, ranks, indicesByRank(learnt, ranks)),
    varianceProxyMetrics(learnt, metrics['actor/grad_norm']),
  );
  const timings = { ...taken.timings, ...(context.agents ? agentTimings(trajectories) : {}) };
  const { epoch, generatedTokens } = taken;
  return { batch, scored, metrics, timings, epoch, generatedTokens };
}

function rewardMetrics({ rewards }: Scored): Metrics {
  const metrics = rewardExtraMetrics(rewards.extras);
  if (rewards.failures > 0) metrics['reward/failures'] = rewards.failures;
  return metrics;
}

/** ReMax's baseline: the reward of the greedy answer to the same prompt, on each of its responses. */
async function greedyBaseline(
  context: StepContext,
  batch: Batch,
  prompts: readonly Prompt[],
): Promise<Batch> {
  const { config, engines, decoder, reward } = context;
  const sampling = { ...trainSampling(config), n: 1, temperature: 0 };
  const greedy = await generateResponses(engines.rollout, prompts, sampling, 'greedy');
  const { rewards } = await scoreResponses(greedy, decoder, reward, engines.rewardModel);
  greedy.recycle();
  const n = config.actor_rollout_ref.rollout.n;
  // In the precision of the rewards that it is taken from: of equal ones nothing may be left.
  const rewardBaselines = Array.from({ length: batch.size }, (_, i) =>
    Math.fround(rewards.scores[Math.floor(i / n)] as number),
  );
  return batch.with({ rewardBaselines }, { granularity: { rewardBaselines: 'sequence' } });
}

async function oldLogProbs({ config, engines }: StepContext, batch: Batch, metrics: Metrics): Promise<Batch> {
  if (config.algorithm.rollout_correction.bypass_mode) return bypassOldLogProbs(batch);
  const temperature = config.actor_rollout_ref.rollout.temperature;
  const sumPiSquared = config.actor_rollout_ref.actor.calculate_sum_pi_squared;
  const started = performance.now();
  const replay = routerReplay(config);
  const result = await engines.actor.computeLogProb(batch, {
    temperature,
    entropy: true,
    sumPiSquared,
    ...(replay === 'R2' ? { recordExperts: true } : {}),
    ...(replay === 'R3' ? { replayExperts: true } : {}),
  });
  const mfu = engines.inferenceUtilisation?.(batch, (performance.now() - started) / 1000) ?? null;
  if (mfu !== null) metrics['perf/mfu/actor_infer'] = mfu;
  const entropy = result.entropy as Float32Array;
  const { loss_agg_mode, loss_scale_factor } = config.actor_rollout_ref.actor;
  metrics['actor/entropy'] = aggregate(entropy, batch, loss_agg_mode, loss_scale_factor);
  const sums = result.sumPiSquared ? { sumPiSquared: result.sumPiSquared } : {};
  const routed = result.routedExperts ? { routedExperts: result.routedExperts } : {};
  const evaluated = batch.with(
    { oldLogProbs: result.logProbs, entropy, ...sums, ...routed },
    { adopt: true },
  );
  Object.assign(metrics, rolloutDifference(evaluated));
  return evaluated;
}

async function referenceLogProbs({ config, engines }: StepContext, batch: Batch): Promise<Batch> {
  const temperature = config.actor_rollout_ref.rollout.temperature;
  const result = await engines.reference?.computeLogProb(batch, { temperature });
  return batch.with({ refLogProbs: result?.logProbs }, { adopt: true });
}

async function values({ engines }: StepContext, batch: Batch): Promise<Batch> {
  const result = await engines.critic?.computeValues(batch);
  return batch.with({ values: result?.values }, { adopt: true });
}

/** KL in the reward (or not), rollout correction, then advantages and returns of the tokens that are left. */
function advantages({ config, kl }: StepContext, scored: Scored, batch: Batch, metrics: Metrics): Batch {
  const { algorithm } = config;
  let rewarded: Batch;
  if (algorithm.use_kl_in_reward) {
    const penalised = applyKlPenalty(batch, kl, algorithm.kl_penalty);
    Object.assign(metrics, penalised.metrics);
    rewarded = penalised.batch;
  } else {
    rewarded = batch.with({ tokenRewards: batch.get('tokenScores') }, { adopt: true });
  }
  rewarded = correctRollout(config, rewarded, metrics);
  if (algorithm.adv_estimator === 'gdpo') {
    const gdpo = rewardComponents(scored, algorithm.gdpo_reward_keys ?? [], config.reward.on_error);
    Object.assign(metrics, gdpo.metrics);
    rewarded = rewarded.with(
      { rewardComponents: gdpo.components },
      { granularity: { rewardComponents: 'sequence' } },
    );
  }
  // Estimated over trajectories: one that became several sequences counts once.
  const whole = wholeTrajectories(rewarded);
  // Group estimators give one array as both.
  const estimated = computeAdvantages(algorithm.adv_estimator, whole, advantageOptions(config));
  return rewarded.with({ ...estimated }, { adopt: true });
}

/** PF-PPO: what critic and actor are updated on. Its random numbers follow from the seed of the run and the step. */
function resample(config: ResolvedConfig, batch: Batch, step: number, metrics: Metrics): Batch {
  const { reweight_method: method, weight_pow: weightPow } = config.algorithm.pf_ppo;
  const random = new Mt19937(deriveSeed(config.trainer.seed, 'pf_ppo', step) % 2 ** 32);
  const scores = totalScores(batch);
  const rows = pfPpoResample(scores, { method, weightPow }, () => random.nextDouble());
  metrics['pf_ppo/kept_ratio'] = new Set(rows).size / batch.size;
  return batch.take(rows);
}

async function updateCritic({ config, engines }: StepContext, batch: Batch, metrics: Metrics): Promise<void> {
  const { critic, actor_rollout_ref } = config;
  const { critic: engine } = engines;
  if (engine === null) return;
  const update = await engine.updateCritic(batch, {
    miniBatchSize: miniBatchSizes(batch, critic.ppo_mini_batch_size * actor_rollout_ref.rollout.n),
    ppoEpochs: critic.ppo_epochs,
    clipRangeValue: critic.cliprange_value,
    aggregation: critic.loss_agg_mode,
    routerZLossCoef: routerZLossCoef(critic),
    ...(critic.loss_scale_factor === null ? {} : { scaleFactor: critic.loss_scale_factor }),
  });
  Object.assign(metrics, update);
}

async function updateActor({ config, engines }: StepContext, batch: Batch, metrics: Metrics): Promise<void> {
  const { actor, rollout: sampling } = config.actor_rollout_ref;
  const update = await engines.actor.updatePolicy(batch, {
    miniBatchSize: miniBatchSizes(batch, actor.ppo_mini_batch_size * sampling.n),
    ppoEpochs: actor.ppo_epochs,
    temperature: sampling.temperature,
    loss: policyLossOptions(config),
    ...(routerReplay(config) === 'disabled' ? {} : { replayExperts: true }),
  });
  // The entropy stays that of the policy that generated, which an entropy bonus would replace by a mean over mini-batches.
  const { 'actor/entropy': entropy } = metrics;
  Object.assign(metrics, update, entropy === undefined ? {} : { 'actor/entropy': entropy });
}
