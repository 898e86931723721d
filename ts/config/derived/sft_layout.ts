import type { ResolvedConfig } from '../schema/ppo_schema';
import type { ResolvedSftConfig } from '../schema/sft_schema';

type Learner = ResolvedConfig['critic'];
type Ends = ResolvedSftConfig['engine']['override_transformer_config'];

/** How a role of either program is laid out: where `strategy` is megatron, by `megatron`. */
export interface LaidOut {
  strategy: Learner['strategy'];
  megatron: Omit<Learner['megatron'], 'dtype' | 'router_replay' | 'override_transformer_config'> & {
    override_transformer_config: Ends;
  };
}

/** The model of `troupe sft`, with its keys as those of a role of `troupe train`. Offloads are those of both strategies. */
export function sftLayout({ engine, model: { fsdp_config: fsdp } }: ResolvedSftConfig): LaidOut {
  const { strategy, ...keys } = engine;
  const { param_offload, grad_offload, optimizer_offload } = fsdp;
  return { strategy, megatron: { ...keys, param_offload, grad_offload, optimizer_offload } };
}
