// Optimal-token baselines: per group and column, the baseline that minimises the variance of the policy
// gradient, with 1 - 2π(a) + Σπ² (the squared norm of the logit gradient) as variance proxy.
import { requireColumn, type TokenColumn, type TokenEstimator } from './advantage_types';
import { expOfLogProb } from './exp';
import { groupByUid, longestRow, type NumberArray } from './ragged';

const EPSILON = 1e-8;

/** What the baselines read, and how tokens line up in columns: by response position, or by policy token alone. */
interface BaselineInputs {
  offsets: NumberArray;
  responseMask: NumberArray;
  tokenRewards: NumberArray;
  oldLogProbs: NumberArray;
  sumPiSquared: NumberArray;
  rolloutIsWeights: NumberArray | undefined;
  compact: boolean;
}

/**
 * Room for the columns of a group, in one array because V8 checks the kind of each array at each access: from 0 on Σ G·W per
 * column and then the baselines, from `totals` on Σ W, from `toGo` on the rewards-to-go G of one sequence.
 */
class ColumnScratch {
  readonly numbers: Float64Array;
  readonly totals: number;
  readonly toGo: number;

  constructor(readonly width: number) {
    this.numbers = new Float64Array(3 * width);
    this.totals = width;
    this.toGo = 2 * width;
  }

  clearSums(): void {
    this.numbers.fill(0, 0, this.toGo);
  }

  /** B = Σ G·W / (Σ W + 1e-8) of each column. */
  divide(): void {
    const { numbers, totals } = this;
    for (let c = 0; c < this.width; c++)
      numbers[c] = (numbers[c] as number) / ((numbers[totals + c] as number) + EPSILON);
  }
}

/**
 * Adds a sequence to the sums of its columns and returns its number of policy tokens. W is the cumulated gradient energy of its
 * policy tokens, W_t = Σ_{s<=t} (1 - 2 e^{old_s} + Σπ²_s) ρ_s².
 */
function addSequence(inputs: BaselineInputs, i: number, scratch: ColumnScratch): number {
  const { offsets, responseMask, tokenRewards, oldLogProbs, sumPiSquared, rolloutIsWeights } = inputs;
  const { numbers, totals } = scratch;
  const start = offsets[i] as number;
  const end = offsets[i + 1] as number;
  const toGo = scratch.toGo - start;
  let running = 0;
  for (let t = end - 1; t >= start; t--) {
    running += tokenRewards[t] as number;
    numbers[toGo + t] = running;
  }
  const maskedStep = inputs.compact ? 0 : 1;
  let policyTokens = 0;
  const weighted = rolloutIsWeights !== undefined;
  let energy = 0;
  let column = 0;
  for (let t = start; t < end; t++) {
    if (!responseMask[t]) {
      column += maskedStep;
      continue;
    }
    const weight = weighted ? (rolloutIsWeights[t] as number) : 1;
    const proxy = 1 - 2 * expOfLogProb(oldLogProbs[t] as number) + (sumPiSquared[t] as number);
    energy += proxy * weight * weight;
    numbers[column] = (numbers[column] as number) + (numbers[toGo + t] as number) * energy;
    numbers[totals + column] = (numbers[totals + column] as number) + energy;
    column++;
    policyTokens++;
  }
  return policyTokens;
}

/** Advantages and returns of a sequence; no baseline from column `tail` on. */
function subtractBaselines(
  inputs: BaselineInputs,
  i: number,
  policyTokens: number,
  { numbers }: ColumnScratch,
  tail: number,
  out: { advantages: TokenColumn; returns: TokenColumn },
): void {
  const { offsets, responseMask, tokenRewards } = inputs;
  const { advantages, returns } = out;
  const start = offsets[i] as number;
  const maskedStep = inputs.compact ? 0 : 1;
  const end = offsets[i + 1] as number;
  let column = inputs.compact ? policyTokens : end - start;
  let rewardsToGo = 0;
  for (let t = end - 1; t >= start; t--) {
    rewardsToGo += tokenRewards[t] as number;
    returns[t] = rewardsToGo;
    if (!responseMask[t]) {
      column -= maskedStep;
      continue;
    }
    column--;
    advantages[t] = column < tail ? rewardsToGo - (numbers[column] as number) : rewardsToGo;
  }
}

/**
 * The longest sequence of a group, if there is one, and the column from which it is alone: there its "baseline"
 * would be its own return. `lengths` [B] count policy tokens.
 */
function zeroTail(members: number[], lengths: Int32Array): { sequence: number; column: number } | null {
  const ranked = members
    .map((sequence) => ({ sequence, length: lengths[sequence] as number }))
    .sort((a, b) => b.length - a.length);
  const [first, second] = ranked;
  if (!first || !second || first.length === second.length) return null;
  return { sequence: first.sequence, column: second.length };
}

const tokenBaseline =
  (name: string, compact: boolean): TokenEstimator =>
  (inputs, config, out) => {
    const columns: BaselineInputs = {
      offsets: inputs.offsets,
      responseMask: inputs.responseMask,
      tokenRewards: inputs.tokenRewards,
      oldLogProbs: requireColumn(inputs, 'oldLogProbs', name),
      sumPiSquared: requireColumn(inputs, 'sumPiSquared', name),
      rolloutIsWeights: inputs.rolloutIsWeights,
      compact,
    };
    const scratch = new ColumnScratch(longestRow(inputs.offsets));
    const lengths = new Int32Array(inputs.offsets.length - 1);
    for (const members of groupByUid(inputs.uid, lengths.length).members) {
      scratch.clearSums();
      for (const i of members) lengths[i] = addSequence(columns, i, scratch);
      scratch.divide();
      const tail = (config.handleZeroTail ?? true) ? zeroTail(members, lengths) : null;
      for (const i of members) {
        let end = tail?.sequence === i ? tail.column : scratch.width;
        if (members.length === 1) end = 0; // a group of one has no baseline
        subtractBaselines(columns, i, lengths[i] as number, scratch, end, out);
      }
    }
  };

/** Columns are response positions. */
export const optimalTokenBaseline = tokenBaseline('optimal_token_baseline', false);

/** Columns count policy tokens only, so that turns of a tool-using conversation line up. */
export const tirOptimalTokenBaseline = tokenBaseline('tir_optimal_token_baseline', true);
