// Generation: what it asks of a rank, whether of one that trains or of one that does nothing else.
import type { ResolvedConfig } from '../config/config';
import { draftsByModel } from '../config/derived/drafts';
import { decodingRanks } from '../config/derived/rollout_place';
import { routerReplay } from '../config/derived/router_replay';
import { sequenceBounds } from '../config/derived/sequence_bounds';
import { checkDecoding } from '../roles/check_decoding';
import { type RoleSettings, rolloutSettings } from '../roles/role_settings';
import type { RoleSpec, RolloutShape } from './plan';
import { roleSpec, type Target } from './role_parts';

/** Sequences in a validation batch that is not limited: as many as decode at the same time. */
const ALL_PROMPTS = 256;
/** Of a CPU's memory, for keys and values: native/rollout/cache_budget.cc. */
const HOST_SHARE = 0.25;
/** The cache takes more where there is room, and never what others hold: so much makes no run too large. */
const ENOUGH_CACHE = 4 * 2 ** 30;

/** Generations of a role of `target`: in training, in validation. */
export function rolloutShapes(
  config: ResolvedConfig,
  { layout }: Pick<RoleSettings, 'layout'>,
  target: Target,
  memory: number | null,
): RolloutShape[] {
  const { data, actor_rollout_ref: roles } = config;
  const { rollout } = roles;
  const { prompt, response, sequence } = sequenceBounds(config);
  const share = rollout.gpu_memory_utilization * (target.device === 'cpu' ? HOST_SHARE : 1);
  const shape = {
    longest: sequence,
    promptLength: prompt,
    responseLength: response,
    maxSequences: rollout.max_num_seqs,
    maxStepTokens: rollout.max_num_batched_tokens,
    tensorParallel: decodingRanks(config),
    quantization: rollout.quantization,
    latentCache: rollout.latent_cache,
    predicts: draftsByModel(config),
    kvCacheBytes: Math.min(ENOUGH_CACHE, memory === null ? ENOUGH_CACHE : Math.floor(share * memory)),
  };
  // Ranks that share the model, or its experts, generate together.
  const together = layout.tp * layout.pp * (layout.ep ?? 1) * decodingRanks(config);
  const prompts = (count: number): number => Math.ceil((count * together) / target.worldSize);
  return [
    { verb: 'generate', prompts: prompts(data.gen_batch_size), n: rollout.n, ...shape },
    ...(data.val_files === null
      ? []
      : [
          {
            verb: 'validate' as const,
            prompts: prompts(data.val_batch_size ?? ALL_PROMPTS * target.worldSize),
            ...(data.val_batch_size === null ? { fixed: true as const } : {}),
            n: rollout.val_kwargs.n,
            ...shape,
          },
        ]),
  ];
}

/** Of workers that do nothing else. @throws ConfigError where what decodes together does not divide the model */
export function rolloutRole(config: ResolvedConfig, target: Target, memory: number | null): RoleSpec {
  const settings = rolloutSettings(config);
  const spec = roleSpec(settings, target);
  checkDecoding(config, spec.model);
  return {
    ...spec,
    routing: routerReplay(config) === 'R3' ? 'given' : 'none',
    rollouts: rolloutShapes(config, settings, target, memory),
  };
}
