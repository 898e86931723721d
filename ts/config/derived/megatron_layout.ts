// Layouts of the roles that learn under the strategy megatron: what must divide what, and keys that nothing reads.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { fsdpConfig } from '../schema/role_parts';
import { policyRanks } from './pools';
import { needsCritic } from './roles';
import { ulyssesOf } from './ulysses';

type Role = Pick<ResolvedConfig['critic'], 'strategy' | 'megatron'>;
type FsdpConfig = ResolvedConfig['actor_rollout_ref']['actor']['fsdp_config'];

/** Of fsdp_config, what the section megatron says in its place. */
const IN_MEGATRON = ['param_offload', 'grad_offload', 'optimizer_offload', 'dtype'] as const;
/** Of fsdp_config, what use_distributed_optimizer and the offloads say, or nothing does. */
const NOT_IN_MEGATRON = ['offload_policy', 'reshard_after_forward', 'fsdp_size', 'forward_prefetch'] as const;

/** @throws ConfigError for groups that do not divide the workers, and for keys that the strategy does not read */
export function checkMegatronLayouts(config: ResolvedConfig): void {
  const { actor_rollout_ref: roles, critic } = config;
  const workers = policyRanks(config);
  const { actor } = roles;
  checkRole(
    'actor_rollout_ref.actor',
    actor,
    'actor_rollout_ref.actor.fsdp_config',
    actor.fsdp_config,
    ulyssesOf(actor, actor.fsdp_config),
    workers,
  );
  const { fsdp_config: fsdp } = critic.model;
  if (needsCritic(config))
    checkRole('critic', critic, 'critic.model.fsdp_config', fsdp, ulyssesOf(critic, fsdp), workers);
}

function checkRole(
  section: string,
  role: Role,
  fsdpSection: string,
  fsdp: FsdpConfig,
  ulysses: number,
  workers: number,
): void {
  const { megatron, strategy } = role;
  const refuse = (path: string, message: string): never => {
    throw new ConfigError(`${path}: ${message}`, path);
  };
  const key = (name: string): string => `${section}.megatron.${name}`;
  const tp = megatron.tensor_model_parallel_size;
  const pp = megatron.pipeline_model_parallel_size;
  const cp = megatron.context_parallel_size;
  const ep = megatron.expert_model_parallel_size;
  const vpp = megatron.virtual_pipeline_model_parallel_size ?? 1;
  for (const [name, size] of [
    ['tensor_model_parallel_size', tp],
    ['pipeline_model_parallel_size', pp],
    ['context_parallel_size', cp],
    ['expert_model_parallel_size', ep],
  ] as const) {
    if (size === 1) continue;
    if (strategy !== 'megatron')
      refuse(key(name), `expected ${section}.strategy megatron beside ${size}, got ${strategy}`);
    if (workers % size !== 0)
      refuse(
        key(name),
        `expected a divisor of the number of workers (${workers}, trainer.nnodes x trainer.n_gpus_per_node), got ${size}`,
      );
  }
  if (workers % (tp * pp) !== 0)
    refuse(
      key('pipeline_model_parallel_size'),
      `expected tensor_model_parallel_size (${tp}) x pipeline_model_parallel_size (${pp}) to divide the number of workers (${workers}, ` +
        'trainer.nnodes x trainer.n_gpus_per_node)',
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
      `expected 1 beside ${section}.ulysses_sequence_parallel_size ${ulysses}, got ${cp}: both share the tokens of every sequence`,
    );
  if ((workers / (tp * pp)) % ep !== 0)
    refuse(
      key('expert_model_parallel_size'),
      `expected a divisor of the ${workers / (tp * pp)} workers that share the data (${workers} / tensor_model_parallel_size ${tp} / ` +
        `pipeline_model_parallel_size ${pp}), got ${ep}`,
    );
  if (tp > 1 && ulysses > 1)
    refuse(
      key('tensor_model_parallel_size'),
      `expected 1 beside ${section}.ulysses_sequence_parallel_size ${ulysses}, got ${tp}: both share the attention heads`,
    );
  if (vpp > 1 && pp === 1)
    refuse(
      key('virtual_pipeline_model_parallel_size'),
      `expected pipeline_model_parallel_size of at least 2 beside ${vpp}, got 1`,
    );
  checkEnds(key('override_transformer_config'), megatron.override_transformer_config, pp, vpp, refuse);
  if (strategy !== 'megatron') return;
  const given = (name: keyof FsdpConfig): boolean => {
    const { value } = fsdpConfig[name as (typeof IN_MEGATRON)[number]];
    return fsdp[name] !== value;
  };
  for (const name of IN_MEGATRON)
    if (given(name)) refuse(`${fsdpSection}.${name}`, `not read beside strategy megatron: give ${key(name)}`);
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
