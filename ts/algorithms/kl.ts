import {
  badOption,
  checkOptionNames,
  choiceOption,
  numberOption,
  requireNumbers,
} from '../base/check_options';
import { show } from '../base/text';
import type { Batch } from '../batch/batch';
import { requireBatch } from '../batch/require_batch';
import { TroupeError } from '../errors';
import type { KlBase } from './names';
import type { NumberArray } from './ragged';

const clamp = (value: number, low: number, high: number): number => Math.max(low, Math.min(high, value));

/** Of one token, in double. */
type Estimator = (logProb: number, refLogProb: number) => number;

const k1: Estimator = (lp, ref) => lp - ref;
const k2: Estimator = (lp, ref) => 0.5 * (lp - ref) ** 2;
const k3: Estimator = (lp, ref) => {
  const delta = clamp(ref - lp, -20, 20);
  return clamp(Math.exp(delta) - delta - 1, -10, 10);
};

/** Estimators of KL(π ‖ π_ref) from log-probs of sampled tokens (Schulman, "Approximating KL divergence", 2020). */
const estimators: Readonly<Record<KlBase, Estimator>> = {
  kl: k1,
  k1,
  abs: (lp, ref) => Math.abs(lp - ref),
  mse: k2,
  k2,
  low_var_kl: k3,
  k3,
};

/** The per-token penalty of a type: (logProb, refLogProb) -> number, in double. */
export function klEstimator(type: string): Estimator {
  // A "+" type has the value of its base and, in a loss, the gradient of k2.
  const base = typeof type === 'string' ? type.replace(/\+$/, '') : '';
  if (Object.hasOwn(estimators, base)) return estimators[base as KlBase];
  throw new TroupeError(
    'INVALID_ARGUMENT',
    `[kl] unknown KL penalty ${show(type)}: expected kl (k1), abs, mse (k2) or low_var_kl (k3), each with an optional "+"`,
  );
}

/**
 * Per-token KL penalty [ΣR]. Types: kl = k1: lp - ref; abs: |lp - ref|; mse = k2: (lp - ref)²/2;
 * low_var_kl = k3: e^d - d - 1 with d = ref - lp clamped to ±20, the result to ±10.
 */
export function klPenalty(type: string, logProbs: NumberArray, refLogProbs: NumberArray): Float32Array {
  requireNumbers('kl', 'logProbs', logProbs);
  requireNumbers('kl', 'refLogProbs', refLogProbs);
  if (logProbs.length !== refLogProbs.length) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[kl] expected as many reference log-probs as log-probs (${logProbs.length}) but got ${refLogProbs.length}`,
    );
  }
  const estimator = klEstimator(type);
  const out = new Float32Array(logProbs.length);
  for (let t = 0; t < out.length; t++) out[t] = estimator(logProbs[t] as number, refLogProbs[t] as number);
  return out;
}

/** The coefficient β of the KL penalty in the reward, and how it moves. */
export interface KlController {
  readonly value: number;
  /** `currentKl`: mean KL of the batch; `steps`: its number of sequences. */
  update(currentKl: number, steps: number): void;
  /** What a checkpoint keeps. */
  state(): { value: number };
  restore(state: { value: number }): void;
}

export interface KlControllerOptions {
  type?: 'fixed' | 'adaptive';
  /** β, or its first value. 0.001 */
  klCoef?: number;
  /** adaptive: the KL to steer to. 0.1 */
  targetKl?: number;
  /** adaptive: sequences over which β may move by its full factor. 10000 */
  horizon?: number;
}

/** Fixed β, or the adaptive controller of Ziegler et al. 2019 (arXiv 1909.08593, §2.2). @throws TroupeError INVALID_ARGUMENT */
export function createKlController(options: KlControllerOptions = {}): KlController {
  checkOptionNames('createKlController', options, ['type', 'klCoef', 'targetKl', 'horizon']);
  const where = 'kl';
  const type = choiceOption(where, 'type', options.type, ['fixed', 'adaptive'], 'fixed');
  const klCoef = numberOption(where, 'klCoef', options.klCoef, 0.001);
  const targetKl = numberOption(where, 'targetKl', options.targetKl, 0.1);
  const horizon = numberOption(where, 'horizon', options.horizon, 10000);
  if (type === 'adaptive' && !(horizon > 0 && targetKl > 0)) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[kl] an adaptive controller expects horizon > 0 and target_kl > 0 but got ${horizon} and ${targetKl}`,
    );
  }
  let value = klCoef;
  return {
    get value() {
      return value;
    },
    update(currentKl, steps) {
      if (type === 'fixed') return;
      // β would be NaN for ever.
      for (const [name, given] of Object.entries({ currentKl, steps }))
        if (!Number.isFinite(given))
          throw badOption(where, `update: ${name}: expected a finite number but got ${show(given)}`);
      value *= 1 + (clamp(currentKl / targetKl - 1, -0.2, 0.2) * steps) / horizon;
    },
    state: () => ({ value }),
    restore(state) {
      if (!Number.isFinite(state?.value)) {
        throw new TroupeError(
          'INVALID_ARGUMENT',
          `[kl] expected a saved coefficient { value } with a finite number but got ${show(state)}`,
        );
      }
      value = state.value;
    },
  };
}

function requireController(given: KlController): void {
  if (typeof given?.value === 'number' && typeof given.update === 'function') return;
  throw badOption(
    'applyKlPenalty',
    `expected a controller (createKlController makes one) but got ${show(given)}`,
  );
}

/**
 * KL in the reward: adds the column tokenRewards = tokenScores - β·kl·responseMask from oldLogProbs and
 * refLogProbs, then updates the controller with the batch's KL (mean over sequences of the mean over tokens).
 * Metrics: actor/reward_kl_penalty, actor/reward_kl_penalty_coeff (β before the update).
 */
export function applyKlPenalty(
  batch: Batch,
  controller: KlController,
  type: string,
): { batch: Batch; metrics: Record<string, number> } {
  requireBatch('applyKlPenalty', batch);
  requireController(controller);
  const scores = batch.get('tokenScores');
  const mask = batch.get('responseMask');
  const logProbs = batch.get('oldLogProbs');
  const refLogProbs = batch.get('refLogProbs');
  const offsets = batch.responseOffsets;
  const estimator = klEstimator(type);
  const beta = controller.value;
  const rewards = new Float32Array(scores.length);
  let klOfSequences = 0;
  for (let i = 0; i < batch.size; i++) {
    let sum = 0;
    let count = 0;
    for (let t = offsets[i] as number; t < (offsets[i + 1] as number); t++) {
      let penalty = 0;
      if (mask[t]) {
        penalty = estimator(logProbs[t] as number, refLogProbs[t] as number);
        sum += penalty;
        count++;
      }
      rewards[t] = (scores[t] as number) - beta * penalty;
    }
    klOfSequences += sum / (count + 1e-8);
  }
  const currentKl = batch.size === 0 ? 0 : klOfSequences / batch.size;
  controller.update(currentKl, batch.size);
  return {
    batch: batch.with({ tokenRewards: rewards }, { adopt: true }),
    metrics: { 'actor/reward_kl_penalty': currentKl, 'actor/reward_kl_penalty_coeff': beta },
  };
}
