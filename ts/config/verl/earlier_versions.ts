import type { Rewriting } from './rewriting';

// What verl did before it had a key for it. Keys came with what they switch, so a configuration without one is of a version that did the
// thing always, or never.

/** Ratios beyond it do not occur: later versions of verl limit their logarithm to 20. */
const NO_DUAL_CLIP = 1e9;

const ACTOR = 'actor_rollout_ref.actor';

/** Says in keys what the version of a source does without one. */
export function earlierVersions(rewriting: Rewriting): void {
  if (rewriting.source.program.program === 'sft') {
    epochs(rewriting);
    if (rewriting.source.program.config === 'sft_trainer') {
      pairs(rewriting);
      schedule(rewriting);
    }
  } else {
    clipping(rewriting);
    penalty(rewriting);
    rejection(rewriting);
    hostWeights(rewriting);
  }
}

const lacks = (rewriting: Rewriting, key: string): boolean => rewriting.at(key) === undefined;

/** Up to v0.3.0: no dual clip, and a schedule that only warms up. */
function clipping(rewriting: Rewriting): void {
  const key = `${ACTOR}.clip_ratio_c`;
  if (!lacks(rewriting, key)) return;
  rewriting.without(key, NO_DUAL_CLIP, 'clips once: a bound that no ratio reaches is no dual clip');
  for (const role of [ACTOR, 'critic'])
    rewriting.drop(
      `${role}.optim.warmup_style`,
      'is not read by this version of verl: the learning rate stays where the warm-up ends',
    );
}

/** Up to v0.3.0 the reference is always there, and rewards are lowered by the KL wherever the loss has none. */
function penalty(rewriting: Rewriting): void {
  const key = 'algorithm.use_kl_in_reward';
  if (!lacks(rewriting, key) || rewriting.at(`${ACTOR}.use_kl_loss`) === true) return;
  const coefficient = rewriting.at('algorithm.kl_ctrl.kl_coef');
  if (coefficient !== 0)
    rewriting.without(key, true, 'lowers rewards by the KL wherever use_kl_loss is not true');
}

/** Up to v0.3.0 the SFT trainer counts epochs alone, and up to v0.4.1 it begins anew always. */
function epochs(rewriting: Rewriting): void {
  for (const [key, what] of [
    ['trainer.save_freq', 'saves'],
    ['trainer.test_freq', 'validates'],
  ] as const)
    if (lacks(rewriting, key)) rewriting.without(key, 'after_each_epoch', `${what} after each epoch`);
  if (lacks(rewriting, 'trainer.resume_mode'))
    rewriting.without('trainer.resume_mode', 'disable', 'goes on from no checkpoint');
}

/** The trainer up to v0.7.0 learns from pairs unless it is told of conversations; a prompt is a turn of the user always. */
function pairs(rewriting: Rewriting): void {
  if (rewriting.at('data.multiturn.enable') === true) return;
  rewriting.drop('data.multiturn', 'is of conversations, and data.multiturn.enable is not true');
  rewriting.without('data.apply_chat_template', true, 'renders prompts by the chat template');
}

/** It reads one of the two names that its configuration has in v0.6, and has a WSD of its own, a share of steps that are not known here. */
function schedule(rewriting: Rewriting): void {
  const key = 'optim.lr_scheduler';
  if (lacks(rewriting, key)) return;
  rewriting.drop('optim.lr_scheduler_type', `is not read: ${key} holds`);
  if (rewriting.at(key) !== 'wsd') return;
  rewriting.take(key);
  rewriting.note(
    'notMapped',
    key,
    'wsd falls by a cosine in the last tenth of the steps after the warm-up: give optim.lr_scheduler_type=WSD, ' +
      'optim.lr_wsd_decay_style=cosine, and how many steps these are as optim.lr_wsd_decay_steps',
  );
}

const CORRECTION = 'algorithm.rollout_correction';
/** Up to v0.6.1 -> the criterion with the same bounds. */
const CRITERIA: Readonly<Record<string, string>> = {
  token: 'token_k1',
  sequence: 'seq_sum_k1',
  geometric: 'seq_mean_k1',
};

/** Up to v0.6.1 bounds are of the ratio of the policy to the rollout, the lower one in a key of its own; now they are of its inverse. */
function rejection(rewriting: Rewriting): void {
  if (lacks(rewriting, CORRECTION) || !lacks(rewriting, `${CORRECTION}.loss_type`)) return;
  const [bypass, policyGradient] = ['bypass_mode', 'use_policy_gradient'].map(
    (key) => rewriting.at(`${CORRECTION}.${key}`) === true,
  );
  const type = `${CORRECTION}.use_policy_gradient`;
  const given = rewriting.givenOf(type);
  if (bypass && policyGradient) {
    const to = `${CORRECTION}.loss_type`;
    rewriting.take(type);
    rewriting.compute({ from: given, to, value: 'reinforce', why: `is now ${to}=reinforce` });
  } else if (policyGradient) rewriting.drop(type, 'is not read while bypass_mode is not true');
  if (bypass && !policyGradient)
    for (const key of ['rollout_is', 'rollout_rs'])
      rewriting.drop(`${CORRECTION}.${key}`, 'is not read beside bypass_mode without use_policy_gradient');
  const [level, upper, lower] = ['rollout_rs', 'rollout_rs_threshold', 'rollout_rs_threshold_lower'].map(
    (key) => rewriting.at(`${CORRECTION}.${key}`),
  );
  if (level === undefined || level === null) {
    rewriting.drop(`${CORRECTION}.rollout_rs_threshold_lower`, 'is not read without rollout_rs');
    return;
  }
  const criterion = typeof level === 'string' && Object.hasOwn(CRITERIA, level) ? CRITERIA[level] : undefined;
  if (criterion === undefined || typeof upper !== 'number') return;
  const bounds = `${1 / upper}_${typeof lower === 'number' ? 1 / lower : upper}`;
  const keys = ['rollout_rs', 'rollout_rs_threshold', 'rollout_rs_threshold_lower'];
  const from = keys.flatMap((key) => rewriting.givenOf(`${CORRECTION}.${key}`));
  for (const key of keys) rewriting.take(`${CORRECTION}.${key}`);
  const why = `is now rollout_rs=${criterion} with rollout_rs_threshold=${bounds}, bounds of the inverse ratio`;
  rewriting.compute({ from, to: `${CORRECTION}.rollout_rs`, value: criterion, why });
  rewriting.compute({ from: [], to: `${CORRECTION}.rollout_rs_threshold`, value: bounds, why });
}

/** Of Megatron's roles that never train, up to v0.3.0. */
function hostWeights(rewriting: Rewriting): void {
  for (const [from, to] of [
    ['actor_rollout_ref.ref.param_offload', 'actor_rollout_ref.ref.megatron.param_offload'],
    ['reward_model.param_offload', 'reward.reward_model.megatron.param_offload'],
  ] as const)
    if (rewriting.givenOf(from).length > 0) rewriting.rename(from, to);
  // v0.4 and v0.5 say so in text.
  const experts = 'actor_rollout_ref.ref.megatron.expert_tensor_parallel_size';
  if (rewriting.at(experts) === 'None') rewriting.take(experts);
}
