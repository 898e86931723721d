// What a run works on while it learns, and how old that may become.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { hasRolloutPool } from './pools';
import { usesServers } from './rollout_place';

const V1 = 'trainer.v1';

export interface Asynchrony {
  /** Whether the workers that learn also generate: one of the two at a time. */
  colocated: boolean;
  /** Prompts that are worked on beside those that the next step takes. */
  ahead: number;
  /** Steps from the one in which work on a prompt begins to the one that learns from it, both counted, at most. */
  maxSpan: number;
  /** What becomes of a prompt that would be older: it is left out, or steps wait for it before it is. */
  strategy: 'drop' | 'wait';
}

/** null: a step generates what it learns from. */
export function asynchrony({ trainer, data }: ResolvedConfig): Asynchrony | null {
  const { trainer_mode: mode, sampler } = trainer.v1;
  if (mode === 'sync') return null;
  return {
    colocated: mode === 'colocate_async',
    ahead: Math.ceil(trainer.v1[mode].num_warmup_batches * data.train_batch_size),
    maxSpan: sampler.max_off_policy_threshold,
    strategy: sampler.max_off_policy_strategy,
  };
}

/** @throws ConfigError for a mode that does not fit the place of the rollout, and for numbers that exclude each other */
export function checkAsynchrony(config: ResolvedConfig): void {
  const { trainer, actor_rollout_ref: roles } = config;
  const { trainer_mode: mode, sampler } = trainer.v1;
  if (mode === 'sync') return;
  const refuse = (key: string, message: string): never => {
    throw new ConfigError(`${key}: ${message}`, key);
  };
  if (config.skip.rollout.enable)
    refuse(
      'skip.rollout.enable',
      `steps whose responses are kept need trainer.v1.trainer_mode sync, got ${mode}: prompts that are worked on ahead belong to no step`,
    );
  const servers = usesServers(config);
  const pool = hasRolloutPool(config);
  if (mode === 'colocate_async' && (servers || pool))
    refuse(
      `${V1}.trainer_mode`,
      `colocate_async is for responses from the training workers, but ${servers ? `rollout.mode is ${roles.rollout.mode}` : `rollout.nnodes ${roles.rollout.nnodes} asks for workers of their own`}: use separate_async`,
    );
  if (mode === 'separate_async' && !servers && !pool)
    refuse(
      `${V1}.trainer_mode`,
      'separate_async needs responses from elsewhere than the training workers: give them workers of their own (actor_rollout_ref.rollout.nnodes and n_gpus_per_node) or servers (rollout.mode server or managed), or use colocate_async',
    );
  const { num_warmup_batches: warmup } = trainer.v1[mode];
  const span = 1 + Math.ceil(warmup);
  if (sampler.max_off_policy_threshold < span)
    refuse(
      `${V1}.sampler.max_off_policy_threshold`,
      `expected at least ${span}, since num_warmup_batches ${warmup} begins work on prompts ${span === 2 ? 'a step' : `${span - 1} steps`} ahead, got ${sampler.max_off_policy_threshold}`,
    );
}
