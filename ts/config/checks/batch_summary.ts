import { counted } from '../../base/text';
import { asynchrony } from '../derived/asynchrony';
import { hasRewardPool, policyRanks, poolSizes, rewardRanks } from '../derived/pools';
import { needsCritic, needsRewardModel } from '../derived/roles';
import { MOST_TOKENS, sequenceBounds } from '../derived/sequence_bounds';
import { sftLayout } from '../derived/sft_layout';
import { teachersOf } from '../derived/teachers';
import { contextOf, sharingRanks } from '../derived/ulysses';
import type { ResolvedConfig } from '../schema/ppo_schema';
import type { ResolvedSftConfig } from '../schema/sft_schema';
import { requireConfig } from './require_config';

/** The mean over ranks, which share unevenly where it is no whole number. */
const perRank = (n: number, ranks: number): string =>
  n % ranks === 0 ? `${n / ranks} per rank` : `about ${(n / ranks).toFixed(1)} per rank`;

const microBatches = (perRank: number, sharing: number): string =>
  sharing === 1
    ? `micro-batches of up to ${perRank} tokens`
    : `micro-batches of up to ${perRank} x ${sharing} = ${perRank * sharing} tokens, shared by ${sharing} ranks`;

/** Every batch size of a run in its unit, one line each. */
export function batchArithmetic(config: ResolvedConfig | ResolvedSftConfig): string[] {
  requireConfig('batchArithmetic', config, null);
  return 'actor_rollout_ref' in config ? rlArithmetic(config) : sftArithmetic(config);
}

function rlArithmetic(config: ResolvedConfig): string[] {
  const { data, actor_rollout_ref: roles, critic, reward, trainer, algorithm } = config;
  const { n, val_kwargs } = roles.rollout;
  const ranks = policyRanks(config);
  const sequences = data.train_batch_size * n;
  const lines = [
    ...pools(config),
    `step: ${counted(data.train_batch_size, 'prompt')} x ${counted(n, 'response')} = ${counted(sequences, 'sequence')}, ` +
      `${perRank(sequences, ranks)} (${counted(ranks, 'rank')})`,
    longestSequence(config),
    role('actor', roles.actor, sharingRanks(roles.actor, roles.actor.fsdp_config)),
  ];
  const further = asynchrony(config);
  if (further !== null) {
    const { ahead, maxSpan, strategy } = further;
    lines.push(
      `ahead: ${counted(ahead, 'prompt')} = ${counted(ahead * n, 'sequence')} worked on beside the ${data.train_batch_size} of a step; a step learns from ` +
        `prompts begun at most ${counted(maxSpan - 1, 'step')} before it, ${strategy === 'drop' ? 'leaves older ones out' : 'and waits for those that would be older'}`,
    );
  }
  if (algorithm.filter_groups.enable) {
    const { metric, max_num_gen_batches: limit } = algorithm.filter_groups;
    lines.push(
      `dynamic sampling: generation batches of ${counted(data.gen_batch_size, 'prompt')} until ${data.train_batch_size} have responses ` +
        `that differ in ${metric}, ${limit === 0 ? 'without a limit' : `at most ${limit}`}`,
    );
  }
  if (needsCritic(config)) lines.push(role('critic', critic, sharingRanks(critic, critic.model.fsdp_config)));
  if (needsRewardModel(config)) {
    const { forward_max_token_len_per_gpu: tokens, ulysses_sequence_parallel_size: sharing } =
      reward.reward_model;
    const generated = data.gen_batch_size * n;
    const own = hasRewardPool(config)
      ? `${counted(generated, 'sequence')} per generation batch, ${perRank(generated, rewardRanks(config))}; `
      : '';
    lines.push(`reward model: ${own}${microBatches(tokens, sharing)}`);
  }
  const teachers = teachersOf(config);
  for (const { section, keys } of teachers) {
    const { forward_max_token_len_per_gpu: tokens, ulysses_sequence_parallel_size: each } = keys;
    const name = teachers.length === 1 ? '' : ` ${section.slice(section.lastIndexOf('.') + 1)}`;
    lines.push(`teacher${name}: ${microBatches(tokens, each)}`);
  }
  if (data.val_files !== null) {
    const batch = data.val_batch_size === null ? 'all prompts' : counted(data.val_batch_size, 'prompt');
    lines.push(`validation: ${batch} per batch x ${counted(val_kwargs.n, 'response')}`);
  }
  return [...lines, duration(trainer, 'prompt', data.gen_batch_size)];

  function role(
    name: string,
    keys: { ppo_mini_batch_size: number; ppo_epochs: number; ppo_max_token_len_per_gpu: number },
    sharing: number,
  ): string {
    const miniBatches = data.train_batch_size / keys.ppo_mini_batch_size;
    const sequencesPerMini = keys.ppo_mini_batch_size * n;
    return (
      `${name}: mini-batch of ${counted(keys.ppo_mini_batch_size, 'prompt')} = ${counted(sequencesPerMini, 'sequence')}, ` +
      `${perRank(sequencesPerMini, ranks)}; ${miniBatches} mini-batch${miniBatches === 1 ? '' : 'es'} x ` +
      `${counted(keys.ppo_epochs, 'epoch')} = ${counted(miniBatches * keys.ppo_epochs, 'optimiser step')} per step; ` +
      microBatches(keys.ppo_max_token_len_per_gpu, sharing)
    );
  }
}

function longestSequence(config: ResolvedConfig): string {
  const { max_prompt_length: prompt, max_response_length: response } = config.data;
  const { sequence } = sequenceBounds(config);
  return sequence < prompt + response
    ? `sequence: at most ${sequence} tokens (prompt + response, ${MOST_TOKENS})`
    : `sequence: at most ${prompt} + ${response} = ${sequence} tokens (prompt + response)`;
}

function pools(config: ResolvedConfig): string[] {
  const { policy, rollout = 0, reward = 0 } = poolSizes(config);
  if (rollout + reward === 0) return [];
  const parts = [
    `policy, ${counted(policy, 'rank')}`,
    ...(rollout === 0 ? [] : [`rollout, ${counted(rollout, 'rank')} for generation alone`]),
    ...(reward === 0 ? [] : [`reward, ${counted(reward, 'rank')} for the reward model alone`]),
  ];
  return [`pools: ${parts.join('; ')}; ${policy + rollout + reward} worker processes`];
}

function sftArithmetic(config: ResolvedSftConfig): string[] {
  const { data, trainer, ulysses_sequence_parallel_size: ulysses } = config;
  const ranks = policyRanks(config);
  const sharing = ulysses * contextOf(sftLayout(config));
  return [
    `step: ${counted(data.train_batch_size, 'example')} = 1 optimiser step, ${perRank(data.train_batch_size, ranks)} ` +
      `(${counted(ranks, 'rank')}); ${microBatches(data.max_token_len_per_gpu, sharing)}`,
    `example: at most ${data.max_length} tokens (prompt + response)`,
    duration(trainer, 'example', data.train_batch_size),
  ];
}

function duration(
  trainer: { total_training_steps: number | null; total_epochs: number },
  unit: string,
  batch: number,
): string {
  const epoch = `one epoch is floor(${unit}s of the training set / ${batch}) steps`;
  if (trainer.total_training_steps !== null)
    return `run: ${counted(trainer.total_training_steps, 'step')}; ${epoch}`;
  return `run: ${counted(trainer.total_epochs, 'epoch')}; ${epoch}`;
}
