import type { Batch } from '../batch/batch';
import { TroupeError } from '../errors';
import type { NumberArray } from './ragged';

/**
 * What an advantage estimator sees: B sequences, ragged. Response-token columns have length ΣR and are cut by
 * `offsets` [B+1]; sequence columns have length B.
 */
export interface AdvantageInputs {
  offsets: NumberArray;
  /** [ΣR] 1 = token of the policy, 0 = tool or user token. */
  responseMask: NumberArray;
  /** [ΣR] rewards after any KL penalty. */
  tokenRewards: NumberArray;
  /** [B] sequences of one prompt share a uid. */
  uid: ArrayLike<unknown>;
  /** [B] read of responses without any token, which count in the statistics of their groups all the same. */
  score?: NumberArray;
  /** [ΣR] critic values; gae. */
  values?: NumberArray;
  /** [B] reward of the greedy answer to the same prompt; remax. */
  rewardBaselines?: NumberArray;
  /** [ΣR] optimal-token baselines. */
  oldLogProbs?: NumberArray;
  /** [ΣR] Σ_v π(v)² of each token's distribution; optimal-token baselines. */
  sumPiSquared?: NumberArray;
  /** [ΣR] optimal-token baselines, when rollout correction made them. */
  rolloutIsWeights?: NumberArray;
  /** [ΣR] token entropies; egpo. */
  entropy?: NumberArray;
  /** [B] per reward name; gdpo. */
  rewardComponents?: Record<string, NumberArray>;
  /**
   * The batch itself, for estimators of registerAdvantageEstimator: tokens, dataSource, extraInfo, groundTruth and what else it has.
   * Not there where plain arrays were given.
   */
  batch?: Batch;
}

/** Options of the estimators; every one has verl's default. */
export interface AdvantageConfig {
  /** Discount per policy token; gae and reinforce_plus_plus. 1 */
  gamma?: number;
  /** GAE's λ. 1 */
  lam?: number;
  /** Divide by the group's standard deviation; false is Dr.GRPO. true */
  normAdvByStdInGrpo?: boolean;
  /** egpo's λ: weight of the entropy bonus. 0.4 */
  egpoLambda?: number;
  /** egpo's α: the bonus never exceeds |A|/α. 2 */
  egpoAlpha?: number;
  /** Divisor of gpg. 1 */
  gpgFNorm?: number;
  /** No baseline where only the longest response of a group has tokens; optimal_token_baseline. true */
  handleZeroTail?: boolean;
  /** Names in `rewardComponents` gdpo combines; default: all of them. */
  gdpoRewardKeys?: string[];
  /** One weight per key of `gdpoRewardKeys`. 1 each */
  gdpoRewardWeights?: number[];
  /** Options of an estimator of registerAdvantageEstimator, `algorithm.estimator_kwargs`. {} */
  kwargs?: Readonly<Record<string, unknown>>;
}

/** Per response token, length ΣR each. */
export interface AdvantageResult {
  advantages: NumberArray;
  returns: NumberArray;
}

/** An advantage estimator: a pure function. Never write to the inputs. */
export type AdvantageEstimator = (inputs: AdvantageInputs, config: AdvantageConfig) => AdvantageResult;

export interface EstimatorOptions {
  /**
   * Columns that the batch must have. A run makes the critic for `values`, the reference model for `refLogProbs` and greedy answers for
   * `rewardBaselines`, and refuses a configuration without what `sumPiSquared`, `entropy` or `oldLogProbs` need. []
   */
  needs?: readonly string[];
}

/** A response-token column [ΣR] to write to, zeros at first. */
export type TokenColumn = Float32Array | Float64Array;

/** A built-in estimator of one number per token; it fills in `out` and computes in double whatever `out` holds. */
export type TokenEstimator = (
  inputs: AdvantageInputs,
  config: AdvantageConfig,
  out: { advantages: TokenColumn; returns: TokenColumn },
) => void;

/** The named column of the inputs, or an error that says which estimator needs it. */
export function requireColumn<K extends keyof AdvantageInputs>(
  inputs: AdvantageInputs,
  column: K,
  estimator: string,
): NonNullable<AdvantageInputs[K]> {
  const value = inputs[column];
  if (value === undefined || value === null) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[advantages] estimator '${estimator}' needs the column '${column}', which the batch does not have`,
    );
  }
  return value;
}
