import { badOption, requireNamed } from '../base/check_options';
import { show } from '../base/text';
import { TroupeError } from '../errors';
import { CODE_SOURCES, codeReward } from './code/code_reward';
import { PythonSandbox } from './code/python_sandbox';
import { once } from './code/runner';
import type { RewardFunction } from './contract/types';
import { exactMatch } from './graders/exact_match';
import { functionCalling } from './graders/function_calling';
import { gsm8k } from './graders/gsm8k';
import { math } from './graders/math';
import { mathDapo } from './graders/math_dapo';
import { primeMath } from './graders/prime_math';
import { QA_SOURCES, qaEm } from './graders/qa_em';
import { rlla } from './graders/rlla';
import { searchR1, searchR1Substring } from './graders/search_r1';

const defaultCodeReward = codeReward(
  once(() => PythonSandbox.create()),
  { unfenced: true },
);

/** By data source, as verl's default_compute_score, and by name. */
const registry = new Map<string, RewardFunction>([
  ['exact_match', exactMatch],
  ['gsm8k', gsm8k],
  ['openai/gsm8k', gsm8k],
  // A training run has its own settings; here the sandbox is the default one.
  ...CODE_SOURCES.map((source) => [source, defaultCodeReward] as const),
  ['lighteval/MATH', math],
  ['DigitalLearningGmbH/MATH-lighteval', math],
  ['HuggingFaceH4/MATH-500', math],
  ['math_dapo', mathDapo],
  ['math', mathDapo],
  ['math_dapo_reasoning', mathDapo],
  ['prime_math', primeMath],
  ['search_r1', searchR1],
  ['search_r1_subem', searchR1Substring],
  ...QA_SOURCES.map((source) => [source, qaEm] as const),
  ['qa_em', qaEm],
  ['function_calling', functionCalling],
  ['rlla', rlla],
]);

/** Families of data sources, by how their names begin; a name of its own in the registry goes first. */
const families: readonly (readonly [string, RewardFunction])[] = [
  ['aime', mathDapo],
  ['numina_', primeMath],
  ['searchR1_', searchR1],
];

/**
 * Makes a reward function available to rows whose `data_source` is that name, where neither `Trainer` nor
 * `reward.custom_reward_function` gives one for all rows.
 * @throws TroupeError INVALID_ARGUMENT when another function already has the name, or this is none.
 */
export function registerRewardFunction(name: string, fn: RewardFunction): void {
  requireNamed('registerRewardFunction', name, fn);
  if ((registry.get(name) ?? fn) !== fn) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[reward] another reward function is already registered as '${name}': choose another name`,
    );
  }
  registry.set(name, fn);
}

/** The function registered under a name or for its family. */
export function rewardFunction(name: string): RewardFunction {
  const fn = registry.get(name) ?? families.find(([prefix]) => name.startsWith(prefix))?.[1];
  if (!fn) {
    const known = [...registry.keys(), ...families.map(([prefix]) => `${prefix}*`)];
    throw new TroupeError(
      'INVALID_CONFIG',
      `[reward] no reward function is registered as '${name}'; registered: ${known.join(', ')}. ` +
        'Set reward.custom_reward_function.path and name, pass `reward` to Trainer, or call registerRewardFunction',
    );
  }
  return fn;
}

/** Scores each sample with the function registered under its data source: verl's default_compute_score. */
export const rewardByDataSource: RewardFunction = (sample, kwargs) => {
  const source: unknown = sample?.dataSource;
  if (typeof source !== 'string')
    throw badOption(
      'rewardByDataSource',
      `expected a sample with dataSource, a text, but got ${show(sample)}`,
    );
  return rewardFunction(source)(sample, kwargs);
};
