// verl's keys of its Megatron engine for roles that do not learn: the reference, which follows the actor where nothing else is said, and the reward model.
import { bool, count, derived, type Field, field, ignored, isLeaf, moved, type Section } from './field';
import { engine, megatronSection, transformer } from './megatron_section';

const ACTOR = 'actor_rollout_ref.actor.megatron';
const OF_REFERENCE = 'As the actor’s, for the reference.';
const REFERENCE = ignored('the reference does not learn');
const REWARD_MODEL = ignored('the reward model does not learn');

const SHARDED =
  'Weights are sharded over data parallelism and gathered for each call (shard_grad_op); false: every group holds all of its part (no_shard).';

const { override_transformer_config: ends, ...own } = megatronSection;

/** A key that follows the actor's of the same name. */
const size = (name: string) => derived(count('ranks'), `${ACTOR}.${name}`, OF_REFERENCE);
const orNone = (name: string, { type }: Field<number | null>) =>
  derived(type, `${ACTOR}.${name}`, OF_REFERENCE);
const flag = (name: string) => derived(bool, `${ACTOR}.${name}`, OF_REFERENCE);

/** `actor_rollout_ref.ref.megatron`: read where the strategy of the actor is megatron. */
export const referenceMegatronSection = {
  tensor_model_parallel_size: size('tensor_model_parallel_size'),
  pipeline_model_parallel_size: size('pipeline_model_parallel_size'),
  virtual_pipeline_model_parallel_size: orNone(
    'virtual_pipeline_model_parallel_size',
    own.virtual_pipeline_model_parallel_size,
  ),
  context_parallel_size: size('context_parallel_size'),
  expert_model_parallel_size: size('expert_model_parallel_size'),
  expert_tensor_parallel_size: orNone('expert_tensor_parallel_size', own.expert_tensor_parallel_size),
  sequence_parallel: flag('sequence_parallel'),
  use_distributed_optimizer: field(bool, true, SHARDED),
  use_megatron_fsdp: own.use_megatron_fsdp,
  param_offload: field(bool, false, 'Weights of the reference on the host.'),
  grad_offload: REFERENCE,
  optimizer_offload: REFERENCE,
  dtype: ignored('the settings of the actor hold'),
  override_transformer_config: {
    ...transformer,
    num_layers_in_first_pipeline_stage: orNone(
      'override_transformer_config.num_layers_in_first_pipeline_stage',
      ends.num_layers_in_first_pipeline_stage,
    ),
    num_layers_in_last_pipeline_stage: orNone(
      'override_transformer_config.num_layers_in_last_pipeline_stage',
      ends.num_layers_in_last_pipeline_stage,
    ),
    account_for_embedding_in_pipeline_split: flag(
      'override_transformer_config.account_for_embedding_in_pipeline_split',
    ),
    account_for_loss_in_pipeline_split: flag(
      'override_transformer_config.account_for_loss_in_pipeline_split',
    ),
  },
  router_replay: ignored('actor_rollout_ref.ref.router_replay says it'),
  ...engine,
};

/** `reward.reward_model.megatron`: read where its strategy is megatron. */
export const rewardModelMegatronSection = {
  ...own,
  override_transformer_config: {
    ...ends,
    moe_z_loss_coeff: transformer.moe_z_loss_coeff,
    recompute_granularity: transformer.recompute_granularity,
  },
  use_distributed_optimizer: field(bool, false, SHARDED),
  param_offload: field(bool, false, 'Weights of the reward model on the host.'),
  grad_offload: REWARD_MODEL,
  optimizer_offload: REWARD_MODEL,
  router_replay: ignored('the choices recorded are the actor’s'),
};

/** The same keys at an older place: those with a meaning lead to `to`. */
const movedBelow = (section: Section, to: string): Section =>
  Object.fromEntries(
    Object.entries(section).map(([key, node]) => {
      const path = `${to}.${key}`;
      if (!isLeaf(node)) return [key, movedBelow(node, path)];
      return [key, node.kind === 'field' ? moved(path) : node];
    }),
  );

/** verl's `reward_model.megatron`, up to v0.7.0. */
export const olderRewardModelMegatron = movedBelow(
  rewardModelMegatronSection,
  'reward.reward_model.megatron',
);
