// From the keys of the configuration to the options of engines, estimators and rewards.

import { availableParallelism } from 'node:os';
import type { DistillationOptions } from '../actor/distillation_options';
import type { PolicyLossOptions } from '../actor/update_options';
import type { AdvantageConfig } from '../algorithms/advantage_types';
import type { ResolvedConfig } from '../config/config';
import { correctionOptions } from '../config/derived/correction';
import { draftsOf } from '../config/derived/drafts';
import { hasRolloutPool } from '../config/derived/pools';
import { decodingRanks } from '../config/derived/rollout_place';
import { routerZLossCoef } from '../config/derived/router_z_loss';
import type { RewardManagerOptions } from '../reward/contract/types';
import type { NativeRolloutConfig } from '../rollout/native/native_options';
import type { SamplingOptions } from '../rollout/sampling';

interface SamplingKeys {
  readonly n: number;
  readonly do_sample: boolean;
  readonly temperature: number;
  readonly top_k: number;
  readonly top_p: number;
}

function sampling(keys: SamplingKeys, config: ResolvedConfig): SamplingOptions {
  const { ignore_eos, repetition_penalty, max_model_len } = config.actor_rollout_ref.rollout;
  const maxNewTokens = config.data.max_response_length;
  return {
    maxNewTokens,
    n: keys.n,
    temperature: keys.do_sample ? keys.temperature : 0,
    topK: keys.top_k,
    topP: keys.top_p,
    repetitionPenalty: repetition_penalty,
    ...(ignore_eos ? { stopTokenIds: [] } : {}),
    ...(max_model_len === null ? {} : { maxTokens: max_model_len }),
  };
}

export function trainSampling(config: ResolvedConfig): SamplingOptions {
  return sampling(config.actor_rollout_ref.rollout, config);
}

export function validationSampling(config: ResolvedConfig): SamplingOptions {
  return sampling(config.actor_rollout_ref.rollout.val_kwargs, config);
}

/** How much of the workers that generate the rollout may take. */
export function rolloutOptions(config: ResolvedConfig): NativeRolloutConfig {
  const { rollout } = config.actor_rollout_ref;
  // Nobody else wants the memory of workers that do nothing else.
  const shared = !hasRolloutPool(config);
  return {
    maxNumSeqs: rollout.max_num_seqs,
    maxNumBatchedTokens: rollout.max_num_batched_tokens,
    ...(rollout.max_model_len === null ? {} : { maxModelLen: rollout.max_model_len }),
    gpuMemoryUtilization: rollout.gpu_memory_utilization,
    enableChunkedPrefill: rollout.enable_chunked_prefill,
    enablePrefixCaching: rollout.enable_prefix_caching,
    freeCacheEngine: shared && rollout.free_cache_engine,
    tensorParallel: decodingRanks(config),
    routedExperts: rollout.enable_rollout_routing_replay,
    latentCache: rollout.latent_cache,
    ...(rollout.quantization === null ? {} : { quantization: rollout.quantization }),
    ...speculative(config),
  };
}

function speculative(config: ResolvedConfig): Pick<NativeRolloutConfig, 'speculative'> {
  const drafts = draftsOf(config);
  if (drafts === null) return {};
  const own = config.actor_rollout_ref.rollout.speculative_config;
  return {
    speculative: {
      method: drafts.method,
      numSpeculativeTokens: drafts.tokens,
      promptLookupMin: own.prompt_lookup_min,
      promptLookupMax: own.prompt_lookup_max,
      disableByBatchSize: own.disable_by_batch_size,
      historyTokens: own.history_tokens,
    },
  };
}

export function policyLossOptions(config: ResolvedConfig): PolicyLossOptions {
  const { actor } = config.actor_rollout_ref;
  const loss = actor.policy_loss;
  return {
    ...(config.algorithm.rollout_correction.bypass_mode
      ? { mode: 'bypass_mode', rolloutCorrection: correctionOptions(config) }
      : { mode: loss.loss_mode }),
    clipRatioLow: actor.clip_ratio_low,
    clipRatioHigh: actor.clip_ratio_high,
    clipRatioC: actor.clip_ratio_c,
    aggregation: actor.loss_agg_mode,
    ...(actor.loss_scale_factor === null ? {} : { scaleFactor: actor.loss_scale_factor }),
    entropyCoeff: actor.entropy_coeff,
    useKlLoss: actor.use_kl_loss,
    klLossCoef: actor.kl_loss_coef,
    klLossType: actor.kl_loss_type,
    routerAuxLossCoef: actor.router_aux_loss_coef,
    routerZLossCoef: routerZLossCoef(actor),
    distillation: distillationOptions(config),
    tauPos: actor.tau_pos,
    tauNeg: actor.tau_neg,
    clipCovRatio: loss.clip_cov_ratio,
    clipCovLb: loss.clip_cov_lb,
    clipCovUb: loss.clip_cov_ub,
    klCovRatio: loss.kl_cov_ratio,
    ppoKlCoef: loss.ppo_kl_coef,
    ...(Object.keys(loss.kwargs).length === 0 ? {} : { kwargs: loss.kwargs }),
    ...(loss.dro_beta === null ? {} : { droBeta: loss.dro_beta }),
  };
}

/** How the policy learns from a teacher; null: from none. */
function distillationOptions({ distillation }: ResolvedConfig): DistillationOptions | null {
  if (!distillation.enabled) return null;
  const { distillation_loss: loss } = distillation;
  return {
    mode: loss.loss_mode,
    topK: loss.topk,
    useTaskRewards: loss.use_task_rewards,
    coef: loss.distillation_loss_coef,
    lossMaxClamp: loss.loss_max_clamp,
    logProbMinClamp: loss.log_prob_min_clamp,
    usePolicyGradient: loss.use_policy_gradient,
    clipRatioLow: loss.clip_ratio_low,
    clipRatioHigh: loss.clip_ratio_high,
  };
}

/** Of a run with a teacher: tokens that it is asked for at each position; 0: the log-prob of the sampled one. */
export function teacherTokens({ distillation: { distillation_loss: loss } }: ResolvedConfig): number {
  return loss.loss_mode === 'forward_kl_topk' ? loss.topk : 0;
}

export function advantageOptions(config: ResolvedConfig): AdvantageConfig {
  const { algorithm } = config;
  return {
    gamma: algorithm.gamma,
    lam: algorithm.lam,
    normAdvByStdInGrpo: algorithm.norm_adv_by_std_in_grpo,
    egpoLambda: algorithm.egpo_lambda,
    egpoAlpha: algorithm.egpo_alpha,
    ...(Object.keys(algorithm.estimator_kwargs).length === 0 ? {} : { kwargs: algorithm.estimator_kwargs }),
    ...(algorithm.gdpo_reward_keys === null ? {} : { gdpoRewardKeys: [...algorithm.gdpo_reward_keys] }),
    ...(algorithm.gdpo_reward_weights === null
      ? {}
      : { gdpoRewardWeights: [...algorithm.gdpo_reward_weights] }),
  };
}

const USUAL_CONCURRENCY = 64;

/** As many responses at once as can be in a sandbox at once, where that is more than usual. */
function atOnce({ sandbox, sandbox_fusion: fusion }: ResolvedConfig['reward']): number {
  const places =
    fusion.url === null ? (sandbox.max_concurrent ?? availableParallelism()) : fusion.max_concurrent;
  return Math.max(USUAL_CONCURRENCY, places);
}

/** `own`: the function is the user's, who knows of no keys but the keyword arguments. */
export function rewardOptions(config: ResolvedConfig, own: boolean): RewardManagerOptions {
  const { reward } = config;
  const { reward_kwargs: kwargs } = reward.custom_reward_function;
  const { overlong_buffer_cfg: overlong, max_resp_len } = reward.reward_kwargs;
  return {
    timeoutMs: 1000 * reward.timeout,
    onError: reward.on_error,
    kwargs: own ? kwargs : { ...reward.qa_em, ...kwargs },
    libraries: config.actor_rollout_ref.model.external_lib ?? [],
    concurrency: atOnce(reward),
    numWorkers: reward.num_workers,
    overlong: {
      enable: overlong.enable,
      len: overlong.len,
      penaltyFactor: overlong.penalty_factor,
      log: overlong.log,
      maxRespLen: max_resp_len,
    },
    limits: {
      maxConcurrent: reward.max_concurrent,
      maxRpm: reward.max_rpm,
      maxTpm: reward.max_tpm,
      estimatedTokensPerRequest: reward.estimated_tokens_per_request,
    },
  };
}
