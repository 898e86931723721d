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

/** A sequence's place in its batch, and in the list of its group's policy tokens: entries [first, last). */
interface Sequence {
  start: number;
  end: number;
  first: number;
  last: number;
}

/** The policy tokens of a group and the sums of its columns; one for all groups. */
class GroupScratch {
  /** Where the policy tokens are in the batch, and G, their rewards-to-go. */
  readonly positions: Int32Array;
  readonly rewardsToGo: Float64Array;
  /** Σ G·W of each column, later its baseline; from `width` on Σ W. One array, since V8 checks each array that a loop reads. */
  readonly columns: Float64Array;

  constructor(
    readonly width: number,
    tokens: number,
  ) {
    this.positions = new Int32Array(tokens);
    this.rewardsToGo = new Float64Array(tokens);
    this.columns = new Float64Array(2 * width);
  }

  /** B = Σ G·W / (Σ W + 1e-8) of each column. */
  divide(): void {
    const { columns, width } = this;
    for (let c = 0; c < width; c++)
      columns[c] = (columns[c] as number) / ((columns[width + c] as number) + EPSILON);
  }
}

// The loops below take four tokens per turn: V8 looks up length and address of an array again in every turn, which costs as much
// as the arithmetic. `| 0` tells it that an index cannot overflow. Policy tokens are listed first, so that no later loop branches on
// the mask: where it has no pattern, the processor's wrong guesses took a quarter of the time (docs/benchmarks.md).

/** -1 for a policy token, 0 for a masked one. */
const step = (mask: number): number => -mask >> 31;

/**
 * Lists the policy tokens of a sequence up to and including entry `room`, in order, with their rewards-to-go, and fills in its
 * `returns`. Returns the entry of the first one.
 */
function listPolicyTokens(
  { responseMask, tokenRewards }: BaselineInputs,
  { start, end }: Sequence,
  { positions, rewardsToGo }: GroupScratch,
  room: number,
  returns: TokenColumn,
): number {
  let sum = 0;
  let k = room;
  let t = end - 1;
  // Each token is written to the next free entry, which stays free if the token is masked.
  for (; t >= start + 3; t -= 4) {
    const at3 = sum + (tokenRewards[t] as number);
    const at2 = at3 + (tokenRewards[(t - 1) | 0] as number);
    const at1 = at2 + (tokenRewards[(t - 2) | 0] as number);
    sum = at1 + (tokenRewards[(t - 3) | 0] as number);
    const k2 = (k + step(responseMask[t] as number)) | 0;
    const k1 = (k2 + step(responseMask[(t - 1) | 0] as number)) | 0;
    const k0 = (k1 + step(responseMask[(t - 2) | 0] as number)) | 0;
    const next = (k0 + step(responseMask[(t - 3) | 0] as number)) | 0;
    returns[t] = at3;
    returns[(t - 1) | 0] = at2;
    returns[(t - 2) | 0] = at1;
    returns[(t - 3) | 0] = sum;
    rewardsToGo[k] = at3;
    rewardsToGo[k2] = at2;
    rewardsToGo[k1] = at1;
    rewardsToGo[k0] = sum;
    positions[k] = t;
    positions[k2] = (t - 1) | 0;
    positions[k1] = (t - 2) | 0;
    positions[k0] = (t - 3) | 0;
    k = next;
  }
  for (; t >= start; t--) {
    sum += tokenRewards[t] as number;
    returns[t] = sum;
    rewardsToGo[k] = sum;
    positions[k] = t;
    k = (k + step(responseMask[t] as number)) | 0;
  }
  return k + 1;
}

/** The squared norm of the gradient of a token's log-prob by the logits, 1 - 2π + Σπ². */
const gradientEnergy = (logProb: number, sumPiSquared: number): number =>
  1 - 2 * expOfLogProb(logProb) + sumPiSquared;

/**
 * Adds a sequence to the sums of its columns. W is the cumulated gradient energy of its policy tokens,
 * W_t = Σ_{s<=t} (1 - 2 e^{old_s} + Σπ²_s) ρ_s².
 */
function addSequence(inputs: BaselineInputs, sequence: Sequence, scratch: GroupScratch): void {
  const { oldLogProbs, sumPiSquared, rolloutIsWeights, compact } = inputs;
  const { positions, rewardsToGo, columns, width } = scratch;
  const { start, first, last } = sequence;
  let energy = 0;
  let k = first;
  // With importance weights the plain loop below takes all tokens.
  for (const fours = rolloutIsWeights === undefined ? last - 3 : first; k < fours; k += 4) {
    const t0 = positions[k] as number;
    const t1 = positions[(k + 1) | 0] as number;
    const t2 = positions[(k + 2) | 0] as number;
    const t3 = positions[(k + 3) | 0] as number;
    const w0 = energy + gradientEnergy(oldLogProbs[t0] as number, sumPiSquared[t0] as number);
    const w1 = w0 + gradientEnergy(oldLogProbs[t1] as number, sumPiSquared[t1] as number);
    const w2 = w1 + gradientEnergy(oldLogProbs[t2] as number, sumPiSquared[t2] as number);
    energy = w2 + gradientEnergy(oldLogProbs[t3] as number, sumPiSquared[t3] as number);
    const c0 = compact ? (k - first) | 0 : (t0 - start) | 0;
    const c1 = compact ? (k + 1 - first) | 0 : (t1 - start) | 0;
    const c2 = compact ? (k + 2 - first) | 0 : (t2 - start) | 0;
    const c3 = compact ? (k + 3 - first) | 0 : (t3 - start) | 0;
    addToColumn(columns, width, c0, rewardsToGo[k] as number, w0);
    addToColumn(columns, width, c1, rewardsToGo[(k + 1) | 0] as number, w1);
    addToColumn(columns, width, c2, rewardsToGo[(k + 2) | 0] as number, w2);
    addToColumn(columns, width, c3, rewardsToGo[(k + 3) | 0] as number, energy);
  }
  for (; k < last; k++) {
    const t = positions[k] as number;
    const weight = rolloutIsWeights !== undefined ? (rolloutIsWeights[t] as number) : 1;
    energy += gradientEnergy(oldLogProbs[t] as number, sumPiSquared[t] as number) * weight * weight;
    const column = compact ? k - first : t - start;
    addToColumn(columns, width, column, rewardsToGo[k] as number, energy);
  }
}

function addToColumn(
  columns: Float64Array,
  width: number,
  column: number,
  rewardsToGo: number,
  energy: number,
): void {
  columns[column] = (columns[column] as number) + rewardsToGo * energy;
  const total = (width + column) | 0;
  columns[total] = (columns[total] as number) + energy;
}

/** The advantages of a sequence's policy tokens; those from column `tail` on have no baseline. */
function subtractBaselines(
  compact: boolean,
  { start, first, last }: Sequence,
  { positions, rewardsToGo, columns }: GroupScratch,
  tail: number,
  advantages: TokenColumn,
): void {
  let end = last;
  while (end > first && (compact ? end - 1 - first : (positions[end - 1] as number) - start) >= tail) {
    end--;
    advantages[positions[end] as number] = rewardsToGo[end] as number;
  }
  let k = first;
  for (; k < end - 3; k += 4) {
    const t0 = positions[k] as number;
    const t1 = positions[(k + 1) | 0] as number;
    const t2 = positions[(k + 2) | 0] as number;
    const t3 = positions[(k + 3) | 0] as number;
    const c0 = compact ? (k - first) | 0 : (t0 - start) | 0;
    const c1 = compact ? (k + 1 - first) | 0 : (t1 - start) | 0;
    const c2 = compact ? (k + 2 - first) | 0 : (t2 - start) | 0;
    const c3 = compact ? (k + 3 - first) | 0 : (t3 - start) | 0;
    advantages[t0] = (rewardsToGo[k] as number) - (columns[c0] as number);
    advantages[t1] = (rewardsToGo[(k + 1) | 0] as number) - (columns[c1] as number);
    advantages[t2] = (rewardsToGo[(k + 2) | 0] as number) - (columns[c2] as number);
    advantages[t3] = (rewardsToGo[(k + 3) | 0] as number) - (columns[c3] as number);
  }
  for (; k < end; k++) {
    const t = positions[k] as number;
    const column = compact ? k - first : t - start;
    advantages[t] = (rewardsToGo[k] as number) - (columns[column] as number);
  }
}

/**
 * The longest sequence of a group by policy tokens, if there is one, and the column from which it is alone: there its "baseline"
 * would be its own return.
 */
function zeroTail(sequences: Sequence[]): { sequence: Sequence; column: number } | null {
  const length = ({ first, last }: Sequence) => last - first;
  const [longest, second] = [...sequences].sort((a, b) => length(b) - length(a));
  if (!longest || !second || length(longest) === length(second)) return null;
  return { sequence: longest, column: length(second) };
}

const tokenBaseline =
  (name: string, compact: boolean): TokenEstimator =>
  (inputs, config, out) => {
    const { offsets } = inputs;
    const columns: BaselineInputs = {
      offsets,
      responseMask: inputs.responseMask,
      tokenRewards: inputs.tokenRewards,
      oldLogProbs: requireColumn(inputs, 'oldLogProbs', name),
      sumPiSquared: requireColumn(inputs, 'sumPiSquared', name),
      rolloutIsWeights: inputs.rolloutIsWeights,
      compact,
    };
    const groups = groupByUid(inputs.uid, offsets.length - 1).members.map((members) =>
      members.map((index): Sequence => {
        const [start, end] = [offsets[index] as number, offsets[index + 1] as number];
        return { start, end, first: 0, last: 0 };
      }),
    );
    const tokensOf = (sequences: Sequence[]) =>
      sequences.reduce((sum, { start, end }) => sum + end - start, 0);
    const most = groups.reduce((tokens, sequences) => Math.max(tokens, tokensOf(sequences)), 0);
    const scratch = new GroupScratch(longestRow(offsets), most);
    for (const sequences of groups) {
      // From the last one, so that memory is read in one direction.
      let room = most - 1;
      for (const sequence of [...sequences].reverse()) {
        sequence.last = room + 1;
        sequence.first = listPolicyTokens(columns, sequence, scratch, room, out.returns);
        room = sequence.first - 1;
      }
      scratch.columns.fill(0);
      for (const sequence of sequences) addSequence(columns, sequence, scratch);
      scratch.divide();
      const tail = (config.handleZeroTail ?? true) ? zeroTail(sequences) : null;
      // Where columns count policy tokens, a response without any has no part in them.
      const group = compact ? sequences.filter(({ first, last }) => last > first) : sequences;
      for (const sequence of sequences) {
        let end = tail?.sequence === sequence ? tail.column : scratch.width;
        if (group.length === 1) end = 0; // a group of one has no baseline
        subtractBaselines(compact, sequence, scratch, end, out.advantages);
      }
    }
  };

/** Columns are response positions. */
export const optimalTokenBaseline = tokenBaseline('optimal_token_baseline', false);

/** Columns count policy tokens only, so that turns of a tool-using conversation line up. */
export const tirOptimalTokenBaseline = tokenBaseline('tir_optimal_token_baseline', true);
