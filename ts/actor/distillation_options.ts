import { DISTILLATION_LOSSES, type DistillationLoss } from '../algorithms/names';
import { badOption, checkOptionNames, choiceOption, flagOption, numberOption } from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import type { NativeDistillation } from '../native/bridge';

/** How a policy learns from a teacher; formulas: docs/algorithms.md. */
export interface DistillationOptions {
  /** k1 (kl), abs, k2 (mse), k3 (low_var_kl) of the sampled tokens, or forward_kl_topk; default k3. */
  mode?: DistillationLoss;
  /** forward_kl_topk: tokens of the teacher's at each position; default 32. */
  topK?: number;
  /** Beside the policy's own loss (false: in its place), true. */
  useTaskRewards?: boolean;
  /** Factor beside the policy's own loss; default 1. */
  coef?: number;
  /** Largest loss of a token, to either side; default null: any. */
  lossMaxClamp?: number | null;
  /** forward_kl_topk: least log-prob of either model; default null: any. */
  logProbMinClamp?: number | null;
  /** Minus the loss of a token is an advantage of the clipped policy loss, false. */
  usePolicyGradient?: boolean;
  clipRatioLow?: number; // 0.2
  clipRatioHigh?: number; // 0.2
}

const KEYS = [
  'mode',
  'topK',
  'useTaskRewards',
  'coef',
  'lossMaxClamp',
  'logProbMinClamp',
  'usePolicyGradient',
  'clipRatioLow',
  'clipRatioHigh',
];

/** @throws TroupeError INVALID_ARGUMENT naming the option */
export function resolveDistillation(where: string, o: DistillationOptions): NativeDistillation {
  checkOptionNames(where, o, KEYS);
  const mode = choiceOption(where, 'mode', o.mode, DISTILLATION_LOSSES, 'k3');
  const policyGradient = flagOption(where, 'usePolicyGradient', o.usePolicyGradient, false);
  if (!policyGradient && (mode === 'k1' || mode === 'kl'))
    throw badOption(
      where,
      `mode: the gradient of ${mode} does not depend on the teacher: use it with usePolicyGradient, or another mode`,
    );
  const taskRewards = flagOption(where, 'useTaskRewards', o.useTaskRewards, true);
  const coef = numberOption(where, 'coef', o.coef, 1);
  const bound = (name: 'lossMaxClamp' | 'logProbMinClamp', rule: { above?: number; max?: number }) =>
    (o[name] ?? null) === null ? null : numberOption(where, name, o[name], 0, rule);
  const topK = numberOption(where, 'topK', o.topK, 32, { integer: true, min: 1, max: RUN_LIMITS.tokens });
  return {
    lossMode: mode,
    topK: mode === 'forward_kl_topk' ? topK : 0,
    coef: taskRewards ? coef : 1,
    maxLoss: bound('lossMaxClamp', { above: 0 }),
    minLogProb: bound('logProbMinClamp', { max: 0 }),
    taskRewards,
    policyGradient,
    clipRatioLow: numberOption(where, 'clipRatioLow', o.clipRatioLow, 0.2, { min: 0 }),
    clipRatioHigh: numberOption(where, 'clipRatioHigh', o.clipRatioHigh, 0.2, { min: 0 }),
  };
}
