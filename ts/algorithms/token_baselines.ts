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

// The loops below take four tokens per turn and read first what they need of them: V8 looks up length and address of an array
// again in every turn, which costs as much as the arithmetic. `| 0` tells it that an index cannot overflow.

/** G_t, the rewards from t on, of the sequence of tokens [start, end) to numbers[toGo + t]. */
function sumRewardsToGo(
  { tokenRewards }: BaselineInputs,
  start: number,
  end: number,
  numbers: Float64Array,
  toGo: number,
): void {
  let sum = 0;
  let t = end - 1;
  for (; t >= start + 3; t -= 4) {
    const at3 = sum + (tokenRewards[t] as number);
    const at2 = at3 + (tokenRewards[(t - 1) | 0] as number);
    const at1 = at2 + (tokenRewards[(t - 2) | 0] as number);
    sum = at1 + (tokenRewards[(t - 3) | 0] as number);
    numbers[(toGo + t) | 0] = at3;
    numbers[(toGo + t - 1) | 0] = at2;
    numbers[(toGo + t - 2) | 0] = at1;
    numbers[(toGo + t - 3) | 0] = sum;
  }
  for (; t >= start; t--) {
    sum += tokenRewards[t] as number;
    numbers[(toGo + t) | 0] = sum;
  }
}

/** The squared norm of the gradient of a token's log-prob by the logits, 1 - 2π + Σπ². */
const gradientEnergy = (logProb: number, sumPiSquared: number): number =>
  1 - 2 * expOfLogProb(logProb) + sumPiSquared;

function addToColumn(
  numbers: Float64Array,
  totals: number,
  column: number,
  rewardsToGo: number,
  energy: number,
): void {
  numbers[column] = (numbers[column] as number) + rewardsToGo * energy;
  const total = (totals + column) | 0;
  numbers[total] = (numbers[total] as number) + energy;
}

/**
 * Adds a sequence to the sums of its columns and returns its number of policy tokens. W is the cumulated gradient energy of its
 * policy tokens, W_t = Σ_{s<=t} (1 - 2 e^{old_s} + Σπ²_s) ρ_s².
 */
function addSequence(inputs: BaselineInputs, i: number, scratch: ColumnScratch): number {
  const { offsets, responseMask, oldLogProbs, sumPiSquared, rolloutIsWeights } = inputs;
  const { numbers, totals } = scratch;
  const start = offsets[i] as number;
  const end = offsets[i + 1] as number;
  const toGo = (scratch.toGo - start) | 0;
  sumRewardsToGo(inputs, start, end, numbers, toGo);
  const maskedStep = inputs.compact ? 0 : 1;
  let policyTokens = 0;
  let energy = 0;
  let column = 0;
  let t = start;
  // With importance weights the plain loop below takes all tokens.
  for (const fours = rolloutIsWeights === undefined ? end - 3 : start; t < fours; t += 4) {
    const mask0 = responseMask[t];
    const mask1 = responseMask[(t + 1) | 0];
    const mask2 = responseMask[(t + 2) | 0];
    const mask3 = responseMask[(t + 3) | 0];
    const logProb0 = oldLogProbs[t] as number;
    const logProb1 = oldLogProbs[(t + 1) | 0] as number;
    const logProb2 = oldLogProbs[(t + 2) | 0] as number;
    const logProb3 = oldLogProbs[(t + 3) | 0] as number;
    const piSquared0 = sumPiSquared[t] as number;
    const piSquared1 = sumPiSquared[(t + 1) | 0] as number;
    const piSquared2 = sumPiSquared[(t + 2) | 0] as number;
    const piSquared3 = sumPiSquared[(t + 3) | 0] as number;
    const toGo0 = numbers[(toGo + t) | 0] as number;
    const toGo1 = numbers[(toGo + t + 1) | 0] as number;
    const toGo2 = numbers[(toGo + t + 2) | 0] as number;
    const toGo3 = numbers[(toGo + t + 3) | 0] as number;
    if (mask0) {
      energy += gradientEnergy(logProb0, piSquared0);
      addToColumn(numbers, totals, column, toGo0, energy);
      column = (column + 1) | 0;
      policyTokens = (policyTokens + 1) | 0;
    } else column = (column + maskedStep) | 0;
    if (mask1) {
      energy += gradientEnergy(logProb1, piSquared1);
      addToColumn(numbers, totals, column, toGo1, energy);
      column = (column + 1) | 0;
      policyTokens = (policyTokens + 1) | 0;
    } else column = (column + maskedStep) | 0;
    if (mask2) {
      energy += gradientEnergy(logProb2, piSquared2);
      addToColumn(numbers, totals, column, toGo2, energy);
      column = (column + 1) | 0;
      policyTokens = (policyTokens + 1) | 0;
    } else column = (column + maskedStep) | 0;
    if (mask3) {
      energy += gradientEnergy(logProb3, piSquared3);
      addToColumn(numbers, totals, column, toGo3, energy);
      column = (column + 1) | 0;
      policyTokens = (policyTokens + 1) | 0;
    } else column = (column + maskedStep) | 0;
  }
  for (; t < end; t++) {
    if (!responseMask[t]) {
      column += maskedStep;
      continue;
    }
    const weight = rolloutIsWeights !== undefined ? (rolloutIsWeights[t] as number) : 1;
    energy += gradientEnergy(oldLogProbs[t] as number, sumPiSquared[t] as number) * weight * weight;
    addToColumn(numbers, totals, column, numbers[toGo + t] as number, energy);
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
  let t = end - 1;
  for (; t >= start + 3; t -= 4) {
    const mask3 = responseMask[t];
    const mask2 = responseMask[(t - 1) | 0];
    const mask1 = responseMask[(t - 2) | 0];
    const mask0 = responseMask[(t - 3) | 0];
    const at3 = rewardsToGo + (tokenRewards[t] as number);
    const at2 = at3 + (tokenRewards[(t - 1) | 0] as number);
    const at1 = at2 + (tokenRewards[(t - 2) | 0] as number);
    rewardsToGo = at1 + (tokenRewards[(t - 3) | 0] as number);
    returns[t] = at3;
    returns[(t - 1) | 0] = at2;
    returns[(t - 2) | 0] = at1;
    returns[(t - 3) | 0] = rewardsToGo;
    if (mask3) {
      column = (column - 1) | 0;
      advantages[t] = column < tail ? at3 - (numbers[column] as number) : at3;
    } else column = (column - maskedStep) | 0;
    if (mask2) {
      column = (column - 1) | 0;
      advantages[(t - 1) | 0] = column < tail ? at2 - (numbers[column] as number) : at2;
    } else column = (column - maskedStep) | 0;
    if (mask1) {
      column = (column - 1) | 0;
      advantages[(t - 2) | 0] = column < tail ? at1 - (numbers[column] as number) : at1;
    } else column = (column - maskedStep) | 0;
    if (mask0) {
      column = (column - 1) | 0;
      advantages[(t - 3) | 0] = column < tail ? rewardsToGo - (numbers[column] as number) : rewardsToGo;
    } else column = (column - maskedStep) | 0;
  }
  for (; t >= start; t--) {
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
