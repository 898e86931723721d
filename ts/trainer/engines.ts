import { Actor } from '../actor/actor';
import type { Batch } from '../batch/batch';
import type { ResolvedConfig } from '../config/config';
import { checkGpus, hasRewardPool, policyRanks, rewardRanks } from '../config/derived/pools';
import { ulyssesOf } from '../config/derived/ulysses';
import { type Device, machineOf } from '../controller/default_device';
import type { Launcher, LauncherOptions } from '../controller/launcher';
import { ResourcePools } from '../controller/resource_pools';
import type { WorkerGroup } from '../controller/worker_group';
import { Critic } from '../critic/critic';
import type { EngineOptions, OptimOptions } from '../engine/engine_options';
import type { Reduction } from '../native/bridge';
import { RewardModel, type RewardModelEngine } from '../reward_model/reward_model';
import { checkSameTokenizer } from '../reward_model/same_tokenizer';
import { parallelOptions, type ShardingKeys } from '../roles/fsdp_options';
import { loraOptions, usesLora } from '../roles/lora';
import { gradientReductions } from './gradient_reduction';

/** The policy being trained, as the trainer uses it. */
export type PolicyEngine = Pick<
  Actor,
  | 'computeLogProb'
  | 'updatePolicy'
  | 'generate'
  | 'saveModel'
  | 'saveAdapter'
  | 'saveCheckpoint'
  | 'loadCheckpoint'
>;
/** The frozen policy that KL terms refer to. */
export type ReferenceEngine = Pick<Actor, 'computeLogProb'>;
export type ValueEngine = Pick<
  Critic,
  'computeValues' | 'updateCritic' | 'saveModel' | 'saveCheckpoint' | 'loadCheckpoint'
>;

/** The engines of a run. The trainer needs no more than this, so tests run it with fakes. */
export interface Engines {
  /** Workers of all pools. */
  readonly worldSize: number;
  /** Parts that the actor's batches are split into; absent: one per rank. */
  readonly dataParallelSize?: number;
  readonly actor: PolicyEngine;
  readonly reference: ReferenceEngine | null;
  readonly critic: ValueEngine | null;
  /** Model FLOP utilisation of log-probs of `batch` in `seconds`; null (or absent) when the device's peak is not known. */
  inferenceUtilisation?(batch: Batch, seconds: number): number | null;
  readonly rewardModel: RewardModelEngine | null;
  /** Named in the error when a worker dies. */
  setPhase(phase: string | null): void;
  /** Resolves with the cause when a worker dies, whatever the trainer is doing then. */
  readonly failed?: Promise<Error>;
  close(): Promise<void>;
}

/** What a configuration asks for. */
export interface EngineNeeds {
  reference: boolean;
  critic: boolean;
  rewardModel: boolean;
  /** Steps of the whole run: the end of learning-rate schedules, which move once per step. */
  totalSteps: number;
  /** Where all of them run. */
  device: Device;
  launcher?: LauncherOptions | Launcher;
}

export type CreateEngines = (config: ResolvedConfig, needs: EngineNeeds) => Promise<Engines>;

/** The keys of an `optim` section that both trainers share. */
type OptimConfig = Omit<ResolvedConfig['actor_rollout_ref']['actor']['optim'], 'num_cycles'>;

/** `totalSteps`: of the run, when the section does not say where its schedule ends. `gradClip` 0: no clipping. */
export function optimOptions(optim: OptimConfig, gradClip: number, totalSteps: number): OptimOptions {
  const total = optim.total_training_steps > 0 ? optim.total_training_steps : totalSteps;
  const warmup =
    optim.lr_warmup_steps >= 0 ? optim.lr_warmup_steps : Math.floor(optim.lr_warmup_steps_ratio * total);
  return {
    lr: optim.lr,
    betas: [...optim.betas],
    weightDecay: optim.weight_decay,
    gradClip: gradClip === 0 ? Number.MAX_VALUE : gradClip,
    schedule: optim.lr_scheduler_type,
    warmupSteps: warmup,
    totalSteps: total,
    minLrRatio: optim.min_lr_ratio,
  };
}

type FsdpConfig = ResolvedConfig['actor_rollout_ref']['actor']['fsdp_config'];
type Dtype = FsdpConfig['dtype'];

/** The base model below an actor's adapter, as verl's ref_in_actor: no second copy of the weights. */
function withoutAdapter(actor: Actor): ReferenceEngine {
  return { computeLogProb: (batch, o) => actor.computeLogProb(batch, { ...o, disableAdapter: true }) };
}

/** Of actor, reference and critic; of the reward model, where it does not share theirs. */
type PoolName = 'policy' | 'reward';

function launchPools(
  config: ResolvedConfig,
  { device, launcher }: EngineNeeds,
): Promise<ResourcePools<PoolName>> {
  const { trainer, actor_rollout_ref: roles } = config;
  if (device === 'cuda') checkGpus(config, machineOf(launcher)?.gpus() ?? null);
  const reward = hasRewardPool(config) ? { reward: rewardRanks(config) } : {};
  return ResourcePools.launch<PoolName>({
    pools: { policy: policyRanks(config), ...reward },
    device,
    numThreads: trainer.num_threads ?? undefined,
    launcher,
    collectiveTimeoutMs: roles.nccl_timeout * 1000,
  });
}

/**
 * Actor, reference and critic in the same processes; the reward model beside them, or in a pool of its own. The reference starts
 * from the configured model, whatever checkpoint the actor resumes from; with LoRA it is the actor without its adapter.
 */
export const createEngines: CreateEngines = async (config, needs) => {
  const { actor: a, model, ref } = config.actor_rollout_ref;
  const c = config.critic;
  const r = config.reward.reward_model;
  if (needs.rewardModel && r.input_tokenizer === null)
    checkSameTokenizer(model.tokenizer_path ?? model.path, r.tokenizer_path ?? (r.model_path as string));
  const reductions = gradientReductions(config, needs.device);
  const pools = await launchPools(config, needs);
  try {
    const policy = pools.group('policy');
    const shared = (
      group: WorkerGroup,
      path: string,
      fsdp: ShardingKeys,
      dtype: Dtype,
      tokensPerRank: number,
      ulysses: number,
      reduce: Reduction = 'micro_batch',
    ): EngineOptions => ({
      model: path,
      group,
      ...parallelOptions(fsdp, ulysses, reduce),
      ...(dtype ? { dtype } : {}),
      maxTokensPerMicroBatch: tokensPerRank * ulysses,
      ...(config.trainer.peak_tflops === null ? {} : { peakTflops: config.trainer.peak_tflops }),
      seed: config.trainer.seed,
    });
    const actor = await Actor.create({
      ...shared(
        policy,
        model.path,
        a.fsdp_config,
        a.fsdp_config.dtype,
        a.ppo_max_token_len_per_gpu,
        ulyssesOf(a, a.fsdp_config),
        reductions.actor,
      ),
      name: 'actor',
      gradientCheckpointing: model.enable_gradient_checkpointing,
      optim: optimOptions(a.optim, a.grad_clip, needs.totalSteps),
      ...loraOptions(model),
    });
    const reference = !needs.reference
      ? null
      : usesLora(model)
        ? withoutAdapter(actor)
        : await Actor.create({
            ...shared(
              policy,
              model.path,
              { ...a.fsdp_config, ...ref.fsdp_config },
              a.fsdp_config.dtype,
              ref.log_prob_max_token_len_per_gpu,
              ref.ulysses_sequence_parallel_size,
            ),
            name: 'ref',
            optim: null,
          });
    const critic = needs.critic
      ? await Critic.create({
          ...shared(
            policy,
            c.model.path,
            c.model.fsdp_config,
            c.model.fsdp_config.dtype,
            c.ppo_max_token_len_per_gpu,
            ulyssesOf(c, c.model.fsdp_config),
            reductions.critic,
          ),
          name: 'critic',
          gradientCheckpointing: c.model.enable_gradient_checkpointing,
          optim: optimOptions(c.optim, c.grad_clip, needs.totalSteps),
          ...loraOptions(c.model),
        })
      : null;
    const rewardModel = needs.rewardModel
      ? await RewardModel.create({
          ...shared(
            hasRewardPool(config) ? pools.group('reward') : policy,
            r.model_path as string,
            r.model.fsdp_config,
            r.dtype,
            r.forward_max_token_len_per_gpu,
            r.ulysses_sequence_parallel_size,
          ),
          name: 'reward_model',
          inputTokenizer: r.input_tokenizer,
          tokenizer: r.tokenizer_path,
          maxLength: r.max_length,
          truncation: r.truncation,
        })
      : null;
    return {
      worldSize: pools.worldSize,
      dataParallelSize: actor.engine.dataParallelSize,
      actor,
      reference,
      critic,
      inferenceUtilisation: (batch, seconds) =>
        actor.engine.utilisation(batch, seconds, { forwardOnly: true }),
      rewardModel,
      setPhase: (phase) => pools.setPhase(phase),
      failed: pools.failed,
      close: () => pools.close(),
    };
  } catch (error) {
    // What went wrong first is what the caller must see, whatever closing says.
    await pools.close().catch(() => undefined);
    throw error;
  }
};
