import type { Rewriting } from './rewriting';

// What verl did before it had a key for it. Keys came with what they switch, so a configuration without one is of a version that did the
// thing always, or never.

/** Ratios beyond it do not occur: later versions of verl limit their logarithm to 20. */
const NO_DUAL_CLIP = 1e9;

const ACTOR = 'actor_rollout_ref.actor';

/** Says in keys what the version of a source does without one. */
export function earlierVersions(rewriting: Rewriting): void {
  if (rewriting.source.program.program === 'sft') epochs(rewriting);
  else {
    clipping(rewriting);
    penalty(rewriting);
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
