// How long sequences of a managed server may be, and how much it may take.
import type { ResolvedConfig } from '../config/config';
import type { LaunchOptions } from '../rollout/remote/server_protocol';

/** What the keys of the rollout say of it. On a CPU the server's own share of the memory holds: of what it counts there weights are a part. */
export function serverLimits(
  { data, actor_rollout_ref: { rollout } }: ResolvedConfig,
  device: 'cpu' | 'cuda',
): Pick<LaunchOptions, 'maxTokens' | 'limits'> {
  return {
    maxTokens: rollout.max_model_len ?? data.max_prompt_length + data.max_response_length,
    limits: {
      sequences: rollout.max_num_seqs,
      stepTokens: rollout.max_num_batched_tokens,
      memoryShare: device === 'cuda' ? rollout.gpu_memory_utilization : null,
      chunkedPrefill: rollout.enable_chunked_prefill,
      prefixCaching: rollout.enable_prefix_caching,
    },
  };
}
