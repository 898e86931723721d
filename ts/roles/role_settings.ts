// What a configuration says of each of its roles: the trainer makes engines of it, and the planner counts what they take.
import type { SavedTokenizer } from '../checkpoint/save_files';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { type EngineDtype, type LearnerDtypes, learnerDtypes } from '../config/derived/master_dtype';
import { recomputesBlocks, recomputingKey } from '../config/derived/recomputation';
import { usesLora } from '../config/derived/roles';
import { generatesInTraining } from '../config/derived/rollout_place';
import { sftLayout } from '../config/derived/sft_layout';
import { ulyssesOf } from '../config/derived/ulysses';
import type { EngineOptions } from '../engine/engine_options';
import type { Head } from '../model/hf_config';
import type { Reduction } from '../native/bridge';
import type { ShardingKeys } from './fsdp_options';
import { loraOptions } from './lora';
import {
  type MegatronKeys,
  type ModelLayout,
  megatronLayout,
  megatronSharding,
  WHOLE_MODEL,
} from './megatron_options';
import { heldMtp, mtpOptions, withoutMtp } from './mtp';
import type { OptimSettings } from './optim_options';

export type RoleName = 'actor' | 'reference' | 'rollout' | 'critic' | 'reward model' | 'teacher';

export interface RoleSettings {
  name: RoleName;
  /** Hugging Face directory. */
  model: string;
  /** Of the token ids that it learns from: it is saved with the model. null: it does not learn. */
  tokenizer: SavedTokenizer | null;
  head: Head;
  /** null: by device. */
  dtype: EngineDtype | null;
  /** Of what it trains and of its moments; null: it trains nothing. */
  masterDtype: EngineDtype | null;
  fsdp: ShardingKeys;
  /** auto: as the memory allows. */
  reduction: Reduction | 'auto';
  layout: ModelLayout;
  /** Ranks that share a micro-batch. */
  ulysses: number;
  /** Packing capacity of one rank; a micro-batch has `ulysses` (or the layout's `cp`) times as many. */
  tokensPerRank: number;
  gradientCheckpointing: boolean;
  /** What is kept of blocks that are recomputed waits on the host. */
  activationOffload: boolean;
  /** In place of config.json's; null: those. */
  maxPositionEmbeddings: number | null;
  /** With the tower of a model whose language model may be read alone. */
  readsImages: boolean;
  /** What of the model is trained. */
  lora: Pick<EngineOptions, 'lora' | 'freezeVisionTower' | 'mtp'>;
  /** null: it does not learn. */
  optim: OptimSettings | null;
  /** Keys of the configuration that say so. */
  keys: {
    model: string;
    ulysses: string;
    /** Section of the keys of the layout. */
    layout: string;
    /** Section of the lora_* keys. */
    lora: string;
    capacity: string;
    dtype: string;
    /** With the value that turns it on. */
    gradientCheckpointing: string | null;
    /** The same; null: it does not learn. */
    activationOffload: string | null;
    sharding: string;
    /** Section of param_offload and what is beside it; null: there is none. */
    placement: string | null;
    /** null: its gradients are summed in one way. */
    reduction: string | null;
  };
}

const ACTOR = 'actor_rollout_ref.actor';
const REFERENCE = 'actor_rollout_ref.ref';
const ROLLOUT = 'actor_rollout_ref.rollout';
const REWARD_MODEL = 'reward.reward_model';

type Learner = ResolvedConfig['critic'];

interface MegatronRole {
  strategy: Learner['strategy'];
  megatron: MegatronKeys;
}

/** How a role is spread, by the section that its strategy names: of the layout, or of FSDP. */
function spreadOf<Fsdp extends ShardingKeys>(
  role: MegatronRole,
  layoutSection: string,
  fsdp: Fsdp,
  fsdpSection: string,
): Pick<RoleSettings, 'fsdp' | 'layout'> & { section: string } {
  const { strategy, megatron } = role;
  if (strategy !== 'megatron') return { fsdp, layout: WHOLE_MODEL, section: fsdpSection };
  return {
    fsdp: { ...megatronSharding(megatron), ...reductionOf(fsdp) },
    layout: megatronLayout(megatron),
    section: layoutSection,
  };
}

/** What holds with either strategy. */
const reductionOf = ({ mixed_precision }: ShardingKeys): Pick<ShardingKeys, 'mixed_precision'> =>
  mixed_precision === undefined ? {} : { mixed_precision };

/** Dtypes of a role that learns, by the section that its strategy names. */
const dtypesOf = (
  { strategy, megatron }: Pick<Learner, 'strategy' | 'megatron'>,
  fsdp: { dtype: EngineDtype | null; model_dtype: EngineDtype },
): LearnerDtypes =>
  strategy === 'megatron'
    ? learnerDtypes(megatron.dtype, 'float32')
    : learnerDtypes(fsdp.dtype, fsdp.model_dtype);

interface PolicyModel {
  readonly path: string;
  readonly tokenizer_path: string | null;
  readonly custom_chat_template: string | null;
}

const tokenizerOf = (model: PolicyModel): SavedTokenizer => ({
  directory: model.tokenizer_path ?? model.path,
  chatTemplate: model.custom_chat_template,
});

export function actorSettings(config: ResolvedConfig): RoleSettings {
  const { actor, model } = config.actor_rollout_ref;
  const spread = spreadOf(actor, `${ACTOR}.megatron`, actor.fsdp_config, `${ACTOR}.fsdp_config`);
  return {
    name: 'actor',
    model: model.path,
    tokenizer: tokenizerOf(model),
    head: 'lm',
    ...dtypesOf(actor, actor.fsdp_config),
    fsdp: spread.fsdp,
    layout: spread.layout,
    reduction: actor.fsdp_config.gradient_reduction,
    ulysses: ulyssesOf(actor, actor.fsdp_config),
    tokensPerRank: actor.ppo_max_token_len_per_gpu,
    gradientCheckpointing: recomputesBlocks(actor, model),
    activationOffload: model.enable_activation_offload,
    maxPositionEmbeddings: model.override_config.max_position_embeddings,
    readsImages: model.read_images === true,
    lora: {
      ...loraOptions(model),
      ...(generatesInTraining(config) ? heldMtp(config) : {}),
      ...mtpOptions(model),
      ...(actor.freeze_vision_tower ? { freezeVisionTower: true } : {}),
    },
    optim: { section: actor.optim, key: `${ACTOR}.optim`, gradClip: actor.grad_clip },
    keys: {
      model: 'actor_rollout_ref.model.path',
      ulysses: `${ACTOR}.ulysses_sequence_parallel_size`,
      layout: `${ACTOR}.megatron`,
      lora: 'actor_rollout_ref.model',
      capacity: `${ACTOR}.ppo_max_token_len_per_gpu`,
      dtype: `${spread.section}.dtype`,
      gradientCheckpointing: recomputingKey(actor, {
        layout: `${ACTOR}.megatron`,
        model: 'actor_rollout_ref.model',
      }),
      activationOffload: 'actor_rollout_ref.model.enable_activation_offload=true',
      sharding: spread.section,
      placement: spread.section,
      reduction: `${ACTOR}.fsdp_config.gradient_reduction`,
    },
  };
}

/** null: with LoRA the reference is the actor without its adapter. */
export function referenceSettings(config: ResolvedConfig): RoleSettings | null {
  const { ref, model, actor: learner } = config.actor_rollout_ref;
  if (usesLora(model)) return null;
  const actor = actorSettings(config);
  const fsdp = { ...actor.fsdp, optimizer_offload: false, grad_offload: false, ...ref.fsdp_config };
  const role = { strategy: learner.strategy, megatron: ref.megatron };
  const spread = spreadOf(role, `${REFERENCE}.megatron`, fsdp, `${REFERENCE}.fsdp_config`);
  const megatron = learner.strategy === 'megatron';
  return {
    ...actor,
    name: 'reference',
    tokenizer: null,
    fsdp: spread.fsdp,
    layout: spread.layout,
    reduction: 'micro_batch',
    ulysses: ref.ulysses_sequence_parallel_size,
    tokensPerRank: ref.log_prob_max_token_len_per_gpu,
    gradientCheckpointing: false,
    activationOffload: false,
    lora: withoutMtp(actor.lora),
    optim: null,
    keys: {
      ...actor.keys,
      ulysses: `${REFERENCE}.ulysses_sequence_parallel_size`,
      capacity: `${REFERENCE}.log_prob_max_token_len_per_gpu`,
      gradientCheckpointing: null,
      activationOffload: null,
      placement: spread.section,
      reduction: null,
      ...(megatron ? { layout: spread.section, sharding: spread.section } : {}),
    },
  };
}

/** Of generation in workers of its own: the actor's model, sharded over them, and gathered, or cut by what decodes together, to generate. */
export function rolloutSettings(config: ResolvedConfig): RoleSettings {
  const actor = actorSettings(config);
  return {
    ...actor,
    name: 'rollout',
    tokenizer: null,
    fsdp: { fsdp_size: -1, reshard_after_forward: true, forward_prefetch: false, param_offload: false },
    reduction: 'micro_batch',
    layout: WHOLE_MODEL,
    ulysses: 1,
    tokensPerRank: actor.tokensPerRank * actor.ulysses * (actor.layout.cp ?? 1),
    gradientCheckpointing: false,
    activationOffload: false,
    lora: { ...withoutMtp(actor.lora), ...heldMtp(config) },
    optim: null,
    keys: {
      ...actor.keys,
      layout: ROLLOUT,
      gradientCheckpointing: null,
      activationOffload: null,
      sharding: ROLLOUT,
      placement: null,
      reduction: null,
    },
  };
}

export function criticSettings({ critic, actor_rollout_ref: policy }: ResolvedConfig): RoleSettings {
  const { model } = critic;
  const spread = spreadOf(critic, 'critic.megatron', model.fsdp_config, 'critic.model.fsdp_config');
  return {
    name: 'critic',
    model: model.path,
    tokenizer: tokenizerOf(policy.model),
    head: 'value',
    ...dtypesOf(critic, model.fsdp_config),
    fsdp: spread.fsdp,
    layout: spread.layout,
    reduction: model.fsdp_config.gradient_reduction,
    ulysses: ulyssesOf(critic, model.fsdp_config),
    tokensPerRank: critic.ppo_max_token_len_per_gpu,
    gradientCheckpointing: recomputesBlocks(critic, model),
    activationOffload: model.enable_activation_offload,
    maxPositionEmbeddings: model.override_config.max_position_embeddings,
    readsImages: false,
    lora: loraOptions(model),
    optim: { section: critic.optim, key: 'critic.optim', gradClip: critic.grad_clip },
    keys: {
      model: 'critic.model.path',
      ulysses: 'critic.ulysses_sequence_parallel_size',
      layout: 'critic.megatron',
      lora: 'critic.model',
      capacity: 'critic.ppo_max_token_len_per_gpu',
      dtype: `${spread.section}.dtype`,
      gradientCheckpointing: recomputingKey(critic, { layout: 'critic.megatron', model: 'critic.model' }),
      activationOffload: 'critic.model.enable_activation_offload=true',
      sharding: spread.section,
      placement: spread.section,
      reduction: 'critic.model.fsdp_config.gradient_reduction',
    },
  };
}

/** Of a configuration that names one. */
export function rewardModelSettings({ reward }: ResolvedConfig): RoleSettings {
  const keys = reward.reward_model;
  const spread = spreadOf(
    keys,
    `${REWARD_MODEL}.megatron`,
    keys.model.fsdp_config,
    `${REWARD_MODEL}.model.fsdp_config`,
  );
  const megatron = keys.strategy === 'megatron';
  return {
    name: 'reward model',
    model: keys.model_path as string,
    tokenizer: null,
    head: 'value',
    dtype: (megatron ? keys.megatron.dtype : null) ?? keys.dtype,
    masterDtype: null,
    fsdp: spread.fsdp,
    reduction: 'micro_batch',
    layout: spread.layout,
    ulysses: keys.ulysses_sequence_parallel_size,
    tokensPerRank: keys.forward_max_token_len_per_gpu,
    gradientCheckpointing: false,
    activationOffload: false,
    maxPositionEmbeddings: null,
    readsImages: false,
    lora: {},
    optim: null,
    keys: {
      model: `${REWARD_MODEL}.model_path`,
      ulysses: `${REWARD_MODEL}.ulysses_sequence_parallel_size`,
      layout: megatron ? spread.section : REWARD_MODEL,
      lora: REWARD_MODEL,
      capacity: `${REWARD_MODEL}.forward_max_token_len_per_gpu`,
      dtype: `${megatron && keys.megatron.dtype !== null ? spread.section : REWARD_MODEL}.dtype`,
      gradientCheckpointing: null,
      activationOffload: null,
      sharding: spread.section,
      placement: spread.section,
      reduction: null,
    },
  };
}

/** The model of `troupe sft`. */
export function sftSettings(config: ResolvedSftConfig): RoleSettings {
  const { data, model, optim, ulysses_sequence_parallel_size: ulysses } = config;
  const role = sftLayout(config);
  const spread = spreadOf(role, 'engine', model.fsdp_config, 'model.fsdp_config');
  return {
    name: 'actor',
    model: model.path,
    tokenizer: tokenizerOf(model),
    head: 'lm',
    ...learnerDtypes(model.dtype, role.strategy === 'megatron' ? 'float32' : model.fsdp_config.model_dtype),
    fsdp: spread.fsdp,
    reduction: model.fsdp_config.gradient_reduction,
    layout: spread.layout,
    ulysses,
    tokensPerRank: data.max_token_len_per_gpu,
    gradientCheckpointing: recomputesBlocks(role, model),
    activationOffload: model.enable_activation_offload,
    maxPositionEmbeddings: model.override_config.max_position_embeddings,
    readsImages: model.read_images === true,
    lora: { ...loraOptions(model), ...mtpOptions(model) },
    optim: { section: optim, key: 'optim', gradClip: optim.clip_grad },
    keys: {
      model: 'model.path',
      ulysses: 'ulysses_sequence_parallel_size',
      layout: role.strategy === 'megatron' ? 'engine' : 'model',
      lora: 'model',
      capacity: 'data.max_token_len_per_gpu',
      dtype: 'model.dtype',
      gradientCheckpointing: recomputingKey(role, { layout: 'engine', model: 'model' }),
      activationOffload: 'model.enable_activation_offload=true',
      sharding: spread.section,
      placement: 'model.fsdp_config',
      reduction: 'model.fsdp_config.gradient_reduction',
    },
  };
}
