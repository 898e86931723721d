import { AGGREGATIONS, type Aggregation, KL_KINDS } from '../algorithms/names';
import {
  BYPASS_MODE,
  policyLossNames,
  registeredPolicyLoss,
  unknownPolicyLoss,
} from '../algorithms/policy_losses/registry';
import {
  type RolloutCorrectionOptions,
  resolveCorrection,
  takesAllAlike,
} from '../algorithms/rollout_correction/options';
import { badOption, checkOptionNames, choiceOption, flagOption, numberOption } from '../base/check_options';
import { show } from '../base/text';
import type {
  NativeDistillation,
  NativePolicyLossOptions,
  NativeSftLossOptions,
  NativeValueLossOptions,
} from '../native/bridge';
import { type DistillationOptions, resolveDistillation } from './distillation_options';

export interface PolicyLossOptions {
  /** vanilla (PPO with dual clip), gspo, cispo, ..., bypass_mode, or a name from registerPolicyLoss; default vanilla. */
  mode?: string;
  clipRatioLow?: number; // 0.2
  clipRatioHigh?: number; // 0.2
  clipRatioC?: number; // 3
  /** How per-token losses become one number, over the counts of the whole mini-batch; default token-mean. */
  aggregation?: Aggregation;
  /** Divisor of seq-mean-token-sum-norm; default: the longest response of the batch, in tokens. */
  scaleFactor?: number;
  entropyCoeff?: number; // 0
  useKlLoss?: boolean; // false
  klLossCoef?: number; // 0.001
  klLossType?: string; // low_var_kl
  /** Of a mixture of experts: weight of the load-balancing loss (docs/algorithms.md), at the cost of one more forward pass; default 0. */
  routerAuxLossCoef?: number;
  /** Of a mixture of experts: weight of the z-loss of the routers (docs/algorithms.md); default 0. */
  routerZLossCoef?: number;
  /** bypass_mode: how the current policy is corrected for the rollout's, and its `lossType`. */
  rolloutCorrection?: RolloutCorrectionOptions;
  /** Learn from a teacher, too: the batch has teacherLogProbs, or with forward_kl_topk teacherTopLogProbs and teacherTopIds. */
  distillation?: DistillationOptions | null;
  /** Options of a loss from registerPolicyLoss, which gets them as `options.kwargs`. */
  kwargs?: Readonly<Record<string, unknown>>;
  /** The other options of a mode under verl's names, camelCased: tauPos, klCovRatio, droBeta, ... */
  [extra: string]: unknown;
}

export interface ValueLossOptions {
  clipRangeValue?: number; // 0.5
  aggregation?: Aggregation;
  scaleFactor?: number;
  routerZLossCoef?: number; // 0; as in PolicyLossOptions
}

const POLICY_KEYS = [
  'mode',
  'clipRatioLow',
  'clipRatioHigh',
  'clipRatioC',
  'aggregation',
  'scaleFactor',
  'entropyCoeff',
].concat([
  'useKlLoss',
  'klLossCoef',
  'klLossType',
  'routerAuxLossCoef',
  'routerZLossCoef',
  'rolloutCorrection',
  'kwargs',
  'distillation',
]);

/** Options of single modes: their names in the core, and the numbers they may be. */
const EXTRA: Readonly<Record<string, [string, { min?: number; above?: number; max?: number }]>> = {
  tauPos: ['tau_pos', { above: 0 }],
  tauNeg: ['tau_neg', { above: 0 }],
  clipCovRatio: ['clip_cov_ratio', { min: 0, max: 1 }],
  clipCovLb: ['clip_cov_lb', {}],
  clipCovUb: ['clip_cov_ub', {}],
  klCovRatio: ['kl_cov_ratio', { min: 0, max: 1 }],
  ppoKlCoef: ['ppo_kl_coef', { min: 0 }],
  droBeta: ['dro_beta', { above: 0 }],
};

/** `longest`: response tokens of the longest sequence, the default divisor of seq-mean-token-sum-norm. */
export function resolvePolicyLoss(
  where: string,
  o: PolicyLossOptions,
  longest: number,
): NativePolicyLossOptions {
  checkOptionNames(where, o, [...POLICY_KEYS, ...Object.keys(EXTRA)]);
  const extra: Record<string, number> = {};
  for (const [key, [native, rule]] of Object.entries(EXTRA)) {
    if (o[key] !== undefined) extra[native] = numberOption(where, key, o[key], 0, rule);
  }
  const klLossType = choiceOption(where, 'klLossType', o.klLossType, KL_KINDS, 'low_var_kl');
  const mode = o.mode ?? 'vanilla';
  if (!policyLossNames().includes(mode))
    throw badOption(where, `mode: ${unknownPolicyLoss(typeof mode === 'string' ? mode : show(mode))}`);
  if (o.kwargs !== undefined) checkKwargs(where, mode, o.kwargs);
  if (o.rolloutCorrection !== undefined) {
    if (mode !== BYPASS_MODE)
      throw badOption(where, `rolloutCorrection: only mode ${BYPASS_MODE} uses it, and the mode is ${mode}`);
    resolveCorrection(o.rolloutCorrection);
  }
  const aggregation = choiceOption(where, 'aggregation', o.aggregation, AGGREGATIONS, 'token-mean');
  return {
    mode,
    clipRatioLow: numberOption(where, 'clipRatioLow', o.clipRatioLow, 0.2, { min: 0 }),
    clipRatioHigh: numberOption(where, 'clipRatioHigh', o.clipRatioHigh, 0.2, { min: 0 }),
    clipRatioC: numberOption(where, 'clipRatioC', o.clipRatioC, 3, { above: 1 }),
    aggregation,
    scaleFactor: scaleFactor(where, aggregation, o.scaleFactor, longest),
    entropyCoeff: numberOption(where, 'entropyCoeff', o.entropyCoeff, 0),
    useKlLoss: flagOption(where, 'useKlLoss', o.useKlLoss, false),
    klLossCoef: numberOption(where, 'klLossCoef', o.klLossCoef, 0.001),
    klLossType,
    routerAuxLossCoef: numberOption(where, 'routerAuxLossCoef', o.routerAuxLossCoef, 0, { min: 0 }),
    routerZLossCoef: zLossCoef(where, o),
    extra,
    distillation: distillationOf(where, mode, o),
  };
}

function distillationOf(
  where: string,
  mode: string,
  { distillation: given = null, rolloutCorrection = {} }: PolicyLossOptions,
): NativeDistillation | null {
  if (given === null) return null;
  const resolved = resolveDistillation(`${where} distillation`, given);
  // What is rejected or weighed for the policy is not for the teacher, and the core takes one mask and one set of weights.
  if (mode === BYPASS_MODE && !takesAllAlike(resolveCorrection(rolloutCorrection)))
    throw badOption(
      where,
      `distillation: with mode ${BYPASS_MODE} expected a rolloutCorrection without rejection, and without weights in lossType reinforce`,
    );
  if (registeredPolicyLoss(mode) !== null && resolved.policyGradient)
    throw badOption(
      where,
      `distillation: usePolicyGradient is not there with '${mode}', a loss from registerPolicyLoss`,
    );
  return resolved;
}

function checkKwargs(where: string, mode: string, kwargs: unknown): void {
  if (typeof kwargs !== 'object' || kwargs === null || Array.isArray(kwargs))
    throw badOption(where, `kwargs: expected an object but got ${show(kwargs)}`);
  if (registeredPolicyLoss(mode) === null && Object.keys(kwargs).length > 0)
    throw badOption(where, `kwargs: only a loss from registerPolicyLoss reads them, and the mode is ${mode}`);
}

export function resolveValueLoss(
  where: string,
  o: ValueLossOptions,
  longest: number,
): NativeValueLossOptions {
  const aggregation = choiceOption(where, 'aggregation', o.aggregation, AGGREGATIONS, 'token-mean');
  return {
    clipRange: numberOption(where, 'clipRangeValue', o.clipRangeValue, 0.5, { min: 0 }),
    aggregation,
    scaleFactor: scaleFactor(where, aggregation, o.scaleFactor, longest),
    routerZLossCoef: zLossCoef(where, o),
  };
}

export function resolveSftLoss(where: string, o: { routerZLossCoef?: number }): NativeSftLossOptions {
  return { routerZLossCoef: zLossCoef(where, o) };
}

const zLossCoef = (where: string, { routerZLossCoef }: { routerZLossCoef?: number }): number =>
  numberOption(where, 'routerZLossCoef', routerZLossCoef, 0, { min: 0 });

function scaleFactor(where: string, aggregation: Aggregation, given: unknown, longest: number): number {
  const value = numberOption(where, 'scaleFactor', given, Math.max(longest, 1), { above: 0 });
  return aggregation === 'seq-mean-token-sum-norm' ? value : 0;
}
