import { estimatorNeeds } from '../../algorithms/advantages';
import {
  type RolloutCorrectionOptions,
  resolveCorrection,
} from '../../algorithms/rollout_correction/options';
import { PRESET_NAMES, rolloutCorrectionPreset } from '../../algorithms/rollout_correction/presets';
import { reasonOf } from '../../base/text';
import { ConfigError } from '../../errors';
import { getPath, isTree, type Tree } from '../reading/tree';
import type { ResolvedConfig } from '../schema/ppo_schema';

// The section algorithm.rollout_correction: its presets, what it means, and what it contradicts.

const SECTION = 'algorithm.rollout_correction';

const QUANTIZATION = 'actor_rollout_ref.rollout.quantization';
const TRAINER_MODE = 'trainer.v1.trainer_mode';
/** Where responses come from weights of 8 bits, or from those of earlier steps, and the section says nothing. */
const PRESET_OF_OTHER_WEIGHTS = 'decoupled_token_is';

const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

/** The preset that holds where the section says nothing; null: none, or it says something. */
export function defaultPreset(tree: Tree): string | null {
  const given = getPath(tree, SECTION);
  if (given !== undefined && given !== null && !(isTree(given) && Object.keys(given).length === 0))
    return null;
  const mode = getPath(tree, TRAINER_MODE);
  const otherWeights =
    typeof getPath(tree, QUANTIZATION) === 'string' || (typeof mode === 'string' && mode !== 'sync');
  return otherWeights ? PRESET_OF_OTHER_WEIGHTS : null;
}

/**
 * The tree with the keys of `preset`, where there is one (or quantised or older weights want one), put under those that are given. Other trees, also wrong ones,
 * come back as they are: the schema judges them.
 */
export function expandPreset(tree: Tree): Tree {
  const unsaid = defaultPreset(tree);
  const section = unsaid === null ? getPath(tree, SECTION) : { preset: unsaid };
  const preset = isTree(section) ? section['preset'] : undefined;
  if (typeof preset !== 'string' || !PRESET_NAMES.includes(preset)) return tree;
  const keys = Object.entries(rolloutCorrectionPreset(preset)).map(([name, value]) => [snake(name), value]);
  const expanded = { ...Object.fromEntries(keys), ...(section as Tree) };
  return { ...tree, algorithm: { ...(tree['algorithm'] as Tree), rollout_correction: expanded } };
}

/** What the section asks of rolloutCorrection and of updates in bypass mode. */
export function correctionOptions({ algorithm }: ResolvedConfig): RolloutCorrectionOptions {
  const section = algorithm.rollout_correction;
  return {
    rolloutIs: section.rollout_is,
    rolloutIsThreshold: section.rollout_is_threshold,
    rolloutIsBatchNormalize: section.rollout_is_batch_normalize,
    rolloutRs: section.rollout_rs,
    rolloutRsThreshold: section.rollout_rs_threshold,
    bypassMode: section.bypass_mode,
    lossType: section.loss_type,
  };
}

/** @throws ConfigError for thresholds that do not fit, and for what bypass mode excludes */
export function checkCorrection(config: ResolvedConfig): void {
  try {
    resolveCorrection(correctionOptions(config));
  } catch (error) {
    const text = reasonOf(error)
      .replace('[rollout correction] ', '')
      .replace(/\brollout[A-Z]\w*/g, snake);
    throw new ConfigError(`${SECTION}.${text}`, `${SECTION}.${text.split(':')[0]}`);
  }
  const mode = config.actor_rollout_ref.actor.policy_loss.loss_mode;
  const path = 'actor_rollout_ref.actor.policy_loss.loss_mode';
  if (!config.algorithm.rollout_correction.bypass_mode) {
    if (mode === 'bypass_mode')
      throw new ConfigError(`${path}: bypass_mode needs ${SECTION}.bypass_mode=true, but it is false`, path);
    return;
  }
  if (mode !== 'vanilla' && mode !== 'bypass_mode') {
    throw new ConfigError(
      `${path}: ${SECTION}.bypass_mode=true has its own loss (${SECTION}.loss_type): leave loss_mode out, got "${mode}"`,
      path,
    );
  }
  const estimator = config.algorithm.adv_estimator;
  const needs = ['entropy', 'sumPiSquared'].some((column) => estimatorNeeds(estimator, column));
  if (estimator === 'egpo' || estimator.endsWith('optimal_token_baseline') || needs) {
    throw new ConfigError(
      `${SECTION}.bypass_mode: algorithm.adv_estimator ${estimator} needs the pass over the model that bypass mode leaves out`,
      `${SECTION}.bypass_mode`,
    );
  }
}
