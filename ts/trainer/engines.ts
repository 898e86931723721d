import { Actor } from '../actor/actor';
import type { Batch } from '../batch/batch';
import { unusedScalesNote } from '../checkpoint/fp8';
import { readEosTokenIds } from '../checkpoint/model_dir';
import type { ResolvedConfig } from '../config/config';
import {
  checkGpus,
  hasRewardPool,
  hasRolloutPool,
  type PoolName,
  poolHosts,
  poolSizes,
} from '../config/derived/pools';
import { profilePlan } from '../config/derived/profile';
import { generatesInTraining, usesServers } from '../config/derived/rollout_place';
import { CallLog, type EngineCall } from '../controller/call';
import { type Device, machineOf } from '../controller/default_device';
import type { Launcher, LauncherOptions } from '../controller/launcher';
import { type MemberMemory, ResourcePools } from '../controller/resource_pools';
import { Critic } from '../critic/critic';
import { endlessNote, endTokenIds } from '../data/end_tokens';
import type { Tokenizer } from '../data/tokenizer';
import { RewardModel, type RewardModelEngine } from '../reward_model/reward_model';
import { checkModels } from '../roles/check_models';
import type { RunRoles } from '../roles/model_roles';
import { engineOptions, trainedOptions } from '../roles/role_options';
import {
  actorSettings,
  criticSettings,
  referenceSettings,
  rewardModelSettings,
} from '../roles/role_settings';
import { rolloutOptions } from '../roles/settings';
import { workerLogs, workerTimeouts } from '../roles/worker_options';
import type { RolloutEngine } from '../rollout/engine';
import { gradientReductions } from './gradient_reduction';
import type { Metrics } from './metrics/metrics';
import { RankTimes } from './metrics/stragglers';
import { PoolRollout } from './pool_rollout';
import { ProfiledPools, type Recorder } from './profiled_pools';
import { ServerRollout } from './server_rollout';
import { createTeachers, type Teachers } from './teachers';

/** The policy being trained, as the trainer uses it. */
export type PolicyEngine = Pick<
  Actor,
  'computeLogProb' | 'updatePolicy' | 'saveModel' | 'saveAdapter' | 'saveCheckpoint' | 'loadCheckpoint'
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
  /** Where responses come from; the version of its weights is the step that made them. */
  readonly rollout: RolloutEngine;
  /** Hands the weights of now to a rollout that is not generating from them; `version`: the step that made them, 0: none. */
  syncRollout?(version: number): Promise<void>;
  /** Tells a rollout in processes of its own that training comes next, for which it may give memory back until it is asked for something. */
  releaseRollout?(): Promise<void>;
  readonly reference: ReferenceEngine | null;
  /** What the policy learns from beside its rewards, or in their place; absent: nothing. */
  readonly teachers?: Teachers | null;
  readonly critic: ValueEngine | null;
  /** Model FLOP utilisation of log-probs of `batch` in `seconds`; null (or absent) when the device's peak is not known. */
  inferenceUtilisation?(batch: Batch, seconds: number): number | null;
  readonly rewardModel: RewardModelEngine | null;
  /** Named in the error when a worker dies. */
  setPhase(phase: string | null): void;
  /** What the ranks have done since this was last called, and the memory that they have now; absent: not known. */
  observe?(): Promise<{ calls: EngineCall[]; memory: MemberMemory[] }>;
  /** Records the workers that the configuration profiles; absent: it profiles none. */
  readonly recorder?: Recorder;
  /** straggler/* of what the ranks have done since this was last called; absent: not known. */
  stragglers?(): Metrics;
  /** Resolves with the cause when a worker dies, whatever the trainer is doing then. */
  readonly failed?: Promise<Error>;
  close(): Promise<void>;
}

/** What a configuration asks for. */
export interface EngineNeeds extends RunRoles {
  /** Steps of the whole run: the end of learning-rate schedules, which move once per step. */
  totalSteps: number;
  /** Where all of them run. */
  device: Device;
  launcher?: LauncherOptions | Launcher;
  /** Of the data: its end token ends responses, too. */
  tokenizer?: Pick<Tokenizer, 'eosId' | 'addedTokens'>;
  /** Says what becomes of servers. */
  say?(line: string): void;
}

export type CreateEngines = (config: ResolvedConfig, needs: EngineNeeds) => Promise<Engines>;

/** The base model below an actor's adapter, as verl's ref_in_actor: no second copy of the weights. */
function withoutAdapter(actor: Actor): ReferenceEngine {
  return { computeLogProb: (batch, o) => actor.computeLogProb(batch, { ...o, disableAdapter: true }) };
}

function launchPools(
  config: ResolvedConfig,
  { device, launcher }: EngineNeeds,
  onCall: (call: EngineCall) => void,
): Promise<ResourcePools<PoolName>> {
  const { trainer } = config;
  if (device === 'cuda') checkGpus(config, machineOf(launcher)?.gpus() ?? null);
  return ResourcePools.launch<PoolName>({
    pools: poolSizes(config),
    hosts: poolHosts(config),
    device,
    numThreads: trainer.num_threads ?? undefined,
    launcher,
    onCall,
    ...workerTimeouts(config),
    ...workerLogs(config),
  });
}

/**
 * Actor, reference and critic in the same processes; generation and the reward model beside them, or in pools of their own. The reference starts
 * from the configured model, whatever checkpoint the actor resumes from; with LoRA it is the actor without its adapter.
 */
export const createEngines: CreateEngines = async (config, needs) => {
  const { model } = config.actor_rollout_ref;
  const r = config.reward.reward_model;
  checkModels(config, needs);
  const reductions = await gradientReductions(config, needs.device);
  const calls = config.logging.trace ? new CallLog() : null;
  const times = new RankTimes();
  const pools = await launchPools(config, needs, (call) => {
    times.add(call);
    calls?.add(call);
  });
  try {
    const plan = profilePlan(config);
    const recorder = plan === null ? {} : { recorder: new ProfiledPools(plan, pools) };
    const policy = pools.group('policy');
    const ofActor = actorSettings(config);
    const ends = needs.tokenizer
      ? { eosTokenIds: endTokenIds(readEosTokenIds(model.path), needs.tokenizer) }
      : {};
    const rollout = { ...rolloutOptions(config), ...ends };
    const actor = await Actor.create({
      ...engineOptions(ofActor, policy, config, reductions.actor),
      ...trainedOptions(ofActor, needs.totalSteps),
      rollout: generatesInTraining(config) ? rollout : ends,
    });
    const endless = needs.tokenizer && endlessNote(actor.eosTokenIds, model.path);
    if (endless) needs.say?.(endless);
    const unused = unusedScalesNote(actor.engine.model.unusedScales);
    if (unused) needs.say?.(`${model.path}: ${unused}`);
    const ofReference = referenceSettings(config);
    const reference = !needs.reference
      ? null
      : ofReference === null
        ? withoutAdapter(actor)
        : await Actor.create({ ...engineOptions(ofReference, policy, config), optim: null });
    const teachers = await createTeachers(config, policy);
    const ofCritic = criticSettings(config);
    const critic = needs.critic
      ? await Critic.create({
          ...engineOptions(ofCritic, policy, config, reductions.critic),
          ...trainedOptions(ofCritic, needs.totalSteps),
        })
      : null;
    const rewardGroup = hasRewardPool(config) ? pools.group('reward') : policy;
    const rewardModel = needs.rewardModel
      ? await RewardModel.create({
          ...engineOptions(rewardModelSettings(config), rewardGroup, config),
          inputTokenizer: r.input_tokenizer,
          tokenizer: r.tokenizer_path,
          maxLength: r.max_length,
          truncation: r.truncation,
        })
      : null;
    const pool = hasRolloutPool(config)
      ? await PoolRollout.create(config, actor, pools.group('rollout'), rollout)
      : null;
    const servers = usesServers(config)
      ? await ServerRollout.start(
          config,
          actor,
          {
            dtype: ofActor.dtype ?? (needs.device === 'cuda' ? 'bfloat16' : 'float32'),
            device: needs.device,
          },
          needs.say ?? (() => undefined),
        )
      : null;
    return {
      worldSize: pools.worldSize,
      dataParallelSize: actor.engine.dataParallelSize,
      actor,
      rollout: servers?.engine ?? pool?.engine ?? actor.rollout,
      ...(pool ? { syncRollout: (version: number) => pool.sync(version) } : {}),
      ...(servers
        ? { syncRollout: (version: number) => servers.sync(version), releaseRollout: () => servers.release() }
        : {}),
      reference,
      teachers,
      critic,
      inferenceUtilisation: (batch, seconds) =>
        actor.engine.utilisation(batch, seconds, { forwardOnly: true }),
      rewardModel,
      ...recorder,
      setPhase: (phase) => pools.setPhase(phase),
      ...(calls ? { observe: async () => ({ memory: await pools.memoryInfo(), calls: calls.take() }) } : {}),
      stragglers: () => times.take(),
      failed: pools.failed,
      close: async () => {
        try {
          await servers?.close();
        } finally {
          await pools.close();
        }
      },
    };
  } catch (error) {
    // What went wrong first is what the caller must see, whatever closing says.
    await pools.close().catch(() => undefined);
    throw error;
  }
};
