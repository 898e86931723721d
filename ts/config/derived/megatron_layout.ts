// Layouts of the roles that learn under the strategy megatron: what must divide what, and keys that nothing reads.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { fsdpConfig } from '../schema/role_parts';
import type { ResolvedSftConfig } from '../schema/sft_schema';
import { expertRanks } from './expert_ranks';
import { POLICY_KEYS, policyRanks, rewardRanks, rewardRanksKeys } from './pools';
import { needsCritic, needsReference, needsRewardModel, usesLora } from './roles';
import { sftLayout } from './sft_layout';
import { ulyssesOf } from './ulysses';

type Learner = ResolvedConfig['critic'];
interface Role {
  /** Section of the keys of its layout. */
  layout: string;
  /** Key that decides whether that section is read. */
  strategyKey: string;
  strategy: Learner['strategy'];
  /** What is about layouts. */
  megatron: Pick<RefMegatron, 'override_transformer_config'> &
    Omit<
      Learner['megatron'],
      'dtype' | 'grad_offload' | 'optimizer_offload' | 'router_replay' | 'override_transformer_config'
    >;
  fsdpSection: string;
  fsdp: Readonly<Record<string, unknown>>;
  /** Of `fsdp`, what the section of the layout says in its place. */
  replaced: readonly (typeof IN_MEGATRON)[number][];
  ulyssesKey: string;
  ulysses: number;
  workers: number;
  /** Keys whose product the workers are. */
  workersKeys: string;
}

/** Of fsdp_config, what the section megatron says in its place. */
const IN_MEGATRON = ['param_offload', 'grad_offload', 'optimizer_offload', 'dtype'] as const;
/** Of fsdp_config, what use_distributed_optimizer and the offloads say, or nothing does. */
const NOT_IN_MEGATRON = ['offload_policy', 'reshard_after_forward', 'fsdp_size', 'forward_prefetch'] as const;

/** @throws ConfigError for groups that do not divide the workers, and for keys that the strategy does not read */
export function checkMegatronLayouts(config: ResolvedConfig): void {
  const { actor_rollout_ref: roles, critic, reward } = config;
  const policy = { workers: policyRanks(config), workersKeys: POLICY_KEYS };
  const { actor, ref } = roles;
  const actorKey = 'actor_rollout_ref.actor.strategy';
  checkRole({
    ...ofSection('actor_rollout_ref.actor'),
    strategyKey: actorKey,
    strategy: actor.strategy,
    megatron: actor.megatron,
    fsdpSection: 'actor_rollout_ref.actor.fsdp_config',
    fsdp: actor.fsdp_config,
    ulysses: ulyssesOf(actor, actor.fsdp_config),
    ...policy,
  });
  if (needsReference(config) && !usesLora(roles.model))
    checkRole({
      ...ofSection('actor_rollout_ref.ref'),
      strategyKey: actorKey,
      strategy: actor.strategy,
      megatron: ownEnds(ref.megatron, actor.megatron),
      fsdpSection: 'actor_rollout_ref.ref.fsdp_config',
      fsdp: ref.fsdp_config,
      ulysses: ref.ulysses_sequence_parallel_size,
      ...policy,
    });
  if (needsCritic(config))
    checkRole({
      ...ofSection('critic'),
      strategyKey: 'critic.strategy',
      strategy: critic.strategy,
      megatron: critic.megatron,
      fsdpSection: 'critic.model.fsdp_config',
      fsdp: critic.model.fsdp_config,
      ulysses: ulyssesOf(critic, critic.model.fsdp_config),
      ...policy,
    });
  if (!needsRewardModel(config)) return;
  const { reward_model: model } = reward;
  checkRole({
    ...ofSection('reward.reward_model'),
    strategyKey: 'reward.reward_model.strategy',
    strategy: model.strategy,
    megatron: model.megatron,
    fsdpSection: 'reward.reward_model.model.fsdp_config',
    fsdp: model.model.fsdp_config,
    ulysses: model.ulysses_sequence_parallel_size,
    workers: rewardRanks(config),
    workersKeys: rewardRanksKeys(config),
  });
}

/** @throws ConfigError as {@link checkMegatronLayouts} */
export function checkSftLayout(config: ResolvedSftConfig): void {
  checkRole({
    ...sftLayout(config),
    layout: 'engine',
    strategyKey: 'engine.strategy',
    fsdpSection: 'model.fsdp_config',
    fsdp: config.model.fsdp_config,
    replaced: [],
    ulyssesKey: 'ulysses_sequence_parallel_size',
    ulysses: config.ulysses_sequence_parallel_size,
    workers: policyRanks(config),
    workersKeys: POLICY_KEYS,
  });
}

const ofSection = (section: string): Pick<Role, 'layout' | 'ulyssesKey' | 'replaced'> => ({
  layout: `${section}.megatron`,
  ulyssesKey: `${section}.ulysses_sequence_parallel_size`,
  replaced: IN_MEGATRON,
});

type RefMegatron = ResolvedConfig['actor_rollout_ref']['ref']['megatron'];

/** Of a reference that is no pipeline, what it says itself: what it follows the actor in is about a pipeline. */
function ownEnds(ref: RefMegatron, actor: Learner['megatron']): RefMegatron {
  if (ref.pipeline_model_parallel_size > 1) return ref;
  const { override_transformer_config: ends, virtual_pipeline_model_parallel_size: vpp } = ref;
  const {
    recompute_granularity: _recomputed,
    moe_z_loss_coeff: _learnt,
    ...actorEnds
  } = actor.override_transformer_config;
  const follows = JSON.stringify(ends) === JSON.stringify(actorEnds);
  return {
    ...ref,
    virtual_pipeline_model_parallel_size: vpp === actor.virtual_pipeline_model_parallel_size ? null : vpp,
    override_transformer_config: follows ? NO_ENDS : ends,
  };
}

const NO_ENDS: RefMegatron['override_transformer_config'] = {
  num_layers_in_first_pipeline_stage: null,
  num_layers_in_last_pipeline_stage: null,
  account_for_embedding_in_pipeline_split: false,
  account_for_loss_in_pipeline_split: false,
};

function checkRole(role: Role): void {
  const { layout, megatron, strategy, fsdp, fsdpSection, ulyssesKey, ulysses, workers, workersKeys } = role;
  const refuse = (path: string, message: string): never => {
    throw new ConfigError(`${path}: ${message}`, path);
  };
  const key = (name: string): string => `${layout}.${name}`;
  const tp = megatron.tensor_model_parallel_size;
  const pp = megatron.pipeline_model_parallel_size;
  const cp = megatron.context_parallel_size;
  const { expert_model_parallel_size: experts, expert_tensor_parallel_size: cut } = megatron;
  const ep = expertRanks(megatron);
  const vpp = megatron.virtual_pipeline_model_parallel_size ?? 1;
  for (const [name, size] of [
    ['tensor_model_parallel_size', tp],
    ['pipeline_model_parallel_size', pp],
    ['context_parallel_size', cp],
    ['expert_model_parallel_size', experts],
  ] as const) {
    if (size === 1) continue;
    if (strategy !== 'megatron')
      refuse(key(name), `expected ${role.strategyKey} megatron beside ${size}, got ${strategy}`);
    if (workers % size !== 0)
      refuse(
        key(name),
        `expected a divisor of the number of workers (${workers}, ${workersKeys}), got ${size}`,
      );
  }
  if (workers % (tp * pp) !== 0)
    refuse(
      key('pipeline_model_parallel_size'),
      `expected tensor_model_parallel_size (${tp}) x pipeline_model_parallel_size (${pp}) to divide the number of workers (${workers}, ` +
        `${workersKeys})`,
    );
  if ((workers / (tp * pp)) % cp !== 0)
    refuse(
      key('context_parallel_size'),
      `expected a divisor of the ${workers / (tp * pp)} workers that have the same part of the model (${workers} / tensor_model_parallel_size ${tp} / ` +
        `pipeline_model_parallel_size ${pp}), got ${cp}`,
    );
  if (cp > 1 && ulysses > 1)
    refuse(
      key('context_parallel_size'),
      `expected 1 beside ${ulyssesKey} ${ulysses}, got ${cp}: both share the tokens of every sequence`,
    );
  if (!Number.isInteger(ep))
    refuse(
      key('expert_tensor_parallel_size'),
      `expected expert_model_parallel_size (${experts}) x expert_tensor_parallel_size to be a divisor or a multiple of tensor_model_parallel_size (${tp}), ` +
        `over which experts are cut, got ${experts} x ${cut} = ${experts * (cut ?? tp)}`,
    );
  if ((workers / (tp * pp)) % ep !== 0)
    refuse(
      key('expert_model_parallel_size'),
      `expected a divisor of the ${workers / (tp * pp)} workers that share the data (${workers} / tensor_model_parallel_size ${tp} / ` +
        `pipeline_model_parallel_size ${pp}), got ${experts}${cut === null ? '' : ` x expert_tensor_parallel_size ${cut} / ${tp} = ${ep}`}`,
    );
  if (tp > 1 && ulysses > 1)
    refuse(
      key('tensor_model_parallel_size'),
      `expected 1 beside ${ulyssesKey} ${ulysses}, got ${tp}: both share the attention heads`,
    );
  if (vpp > 1 && pp === 1)
    refuse(
      key('virtual_pipeline_model_parallel_size'),
      `expected pipeline_model_parallel_size of at least 2 beside ${vpp}, got 1`,
    );
  checkEnds(key('override_transformer_config'), megatron.override_transformer_config, pp, vpp, refuse);
  if (strategy !== 'megatron') return;
  if (megatron.use_megatron_fsdp && !megatron.use_distributed_optimizer)
    refuse(key('use_megatron_fsdp'), 'expected use_distributed_optimizer true beside it, got false');
  const given = (name: keyof typeof fsdpConfig): boolean => {
    const { value } = fsdpConfig[name as (typeof IN_MEGATRON)[number]];
    return name in fsdp && fsdp[name] !== value;
  };
  for (const name of role.replaced)
    if (given(name)) refuse(`${fsdpSection}.${name}`, `not read beside strategy megatron: give ${key(name)}`);
  if (given('model_dtype'))
    refuse(
      `${fsdpSection}.model_dtype`,
      'not read beside strategy megatron, whose master weights are float32',
    );
  for (const name of NOT_IN_MEGATRON)
    if (given(name))
      refuse(
        `${fsdpSection}.${name}`,
        `not read beside strategy megatron: ${key('use_distributed_optimizer')} and the offloads beside it say how the state lies`,
      );
}

type Ends = Role['megatron']['override_transformer_config'];

/** Layers of the first and of the last stage. */
function checkEnds(
  section: string,
  ends: Ends,
  pp: number,
  vpp: number,
  refuse: (path: string, message: string) => never,
): void {
  const layers = ['num_layers_in_first_pipeline_stage', 'num_layers_in_last_pipeline_stage'] as const;
  const counted = ['account_for_embedding_in_pipeline_split', 'account_for_loss_in_pipeline_split'] as const;
  const first = layers.find((name) => ends[name] !== null);
  const also = counted.find((name) => ends[name]);
  const any = first ?? also;
  if (any === undefined) return;
  if (pp === 1)
    refuse(`${section}.${any}`, 'expected pipeline_model_parallel_size of at least 2 beside it, got 1');
  if (first === undefined) return;
  if (also !== undefined)
    refuse(`${section}.${also}`, `expected false beside ${first}, which says how many layers there are`);
  if (vpp > 1)
    refuse(
      `${section}.${first}`,
      `expected virtual_pipeline_model_parallel_size of 1 beside it, got ${vpp}: give how layers lie by account_for_embedding_in_pipeline_split`,
    );
}
