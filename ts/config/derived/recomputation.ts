// What a role that learns keeps of its blocks for the backward pass, and where.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import type { ResolvedSftConfig } from '../schema/sft_schema';
import { needsCritic } from './roles';
import { sftLayout } from './sft_layout';

type Learner = ResolvedConfig['critic'];

interface Role {
  strategy: Learner['strategy'];
  megatron: {
    override_transformer_config: Pick<
      Learner['megatron']['override_transformer_config'],
      'recompute_granularity'
    >;
  };
}

interface Model {
  enable_gradient_checkpointing: boolean;
  enable_activation_offload: boolean;
}

/** Where a role's keys are. */
export interface RecomputationSections {
  /** Of its layout. */
  layout: string;
  model: string;
}

/** What Megatron's section says of recomputation; null: nothing, or it is not read. */
const granularityOf = ({ strategy, megatron }: Role): 'full' | 'selective' | null =>
  strategy === 'megatron' ? megatron.override_transformer_config.recompute_granularity : null;

/** Whether a block's input alone is kept. */
export function recomputesBlocks(role: Role, model: Pick<Model, 'enable_gradient_checkpointing'>): boolean {
  const granularity = granularityOf(role);
  return granularity === null ? model.enable_gradient_checkpointing : granularity === 'full';
}

/** The key that makes it so, with its value. */
export const recomputingKey = (role: Role, { layout, model }: RecomputationSections): string =>
  granularityOf(role) === null
    ? `${model}.enable_gradient_checkpointing=true`
    : `${layout}.override_transformer_config.recompute_granularity=full`;

/** @throws ConfigError where inputs of blocks that are not recomputed are to wait on the host */
export function checkActivationOffload(config: ResolvedConfig): void {
  const { actor, model } = config.actor_rollout_ref;
  checkRole(actor, model, { layout: 'actor_rollout_ref.actor.megatron', model: 'actor_rollout_ref.model' });
  const { critic } = config;
  if (needsCritic(config))
    checkRole(critic, critic.model, { layout: 'critic.megatron', model: 'critic.model' });
}

/** @throws ConfigError as {@link checkActivationOffload} */
export const checkSftActivationOffload = (config: ResolvedSftConfig): void =>
  checkRole(sftLayout(config), config.model, { layout: 'engine', model: 'model' });

function checkRole(role: Role, model: Model, sections: RecomputationSections): void {
  if (!model.enable_activation_offload || recomputesBlocks(role, model)) return;
  const key = `${sections.model}.enable_activation_offload`;
  throw new ConfigError(
    `${key}: what waits on the host are the inputs of blocks that are recomputed: expected ${recomputingKey(role, sections)} beside it`,
    key,
  );
}
