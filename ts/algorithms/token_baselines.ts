// Optimal-token baselines: per group and response position, the baseline that minimises the variance of the
// policy gradient, with 1 - 2π(a) + Σπ² (the squared norm of the logit gradient) as variance proxy.
import {
  type AdvantageConfig,
  type AdvantageInputs,
  type AdvantageResult,
  requireColumn,
} from './advantage_types';
import { groupByUid, type NumberArray } from './ragged';
import { rewardsToGo } from './token_estimators';

const EPSILON = 1e-8;

/** A sequence's tokens as columns of the baseline: `positions[c]` is the token (index in ΣR) in column c. */
type Columns = Int32Array[];

/** Cumulated gradient energy of each policy token: W_t = Σ_{s<=t} (1 - 2 e^{old_s} + Σπ²_s) ρ_s²; [ΣR]. */
function gradientEnergy(inputs: AdvantageInputs, estimator: string): Float64Array {
  const oldLogProbs = requireColumn(inputs, 'oldLogProbs', estimator);
  const sumPiSquared = requireColumn(inputs, 'sumPiSquared', estimator);
  const { offsets, responseMask, rolloutIsWeights } = inputs;
  const out = new Float64Array(oldLogProbs.length);
  for (let i = 0; i + 1 < offsets.length; i++) {
    let cumulated = 0;
    for (let t = offsets[i] as number; t < (offsets[i + 1] as number); t++) {
      if (responseMask[t]) {
        const weight = rolloutIsWeights ? (rolloutIsWeights[t] as number) : 1;
        const energy = 1 - 2 * Math.exp(oldLogProbs[t] as number) + (sumPiSquared[t] as number);
        cumulated += energy * weight * weight;
      }
      out[t] = cumulated;
    }
  }
  return out;
}

/**
 * The longest sequence of a group, if there is one, and the column from which it is alone: there its "baseline"
 * would be its own return. Lengths count policy tokens.
 */
function zeroTail(rows: Columns, responseMask: NumberArray): { row: Int32Array; start: number } | null {
  const policyTokens = (row: Int32Array): number => row.reduce((n, t) => n + (responseMask[t] ? 1 : 0), 0);
  const ranked = rows.map((row) => ({ row, length: policyTokens(row) })).sort((a, b) => b.length - a.length);
  const [first, second] = ranked;
  if (!first || !second || first.length === second.length) return null;
  return { row: first.row, start: second.length };
}

function subtractBaselines(
  inputs: AdvantageInputs,
  config: AdvantageConfig,
  estimator: string,
  columns: Columns,
): AdvantageResult {
  const energy = gradientEnergy(inputs, estimator);
  const returns = rewardsToGo(inputs);
  const { responseMask } = inputs;
  const handleZeroTail = config.handleZeroTail ?? true;
  const advantages = new Float64Array(returns.length);
  for (const members of groupByUid(inputs.uid, columns.length).members) {
    const rows = members.map((i) => columns[i] as Int32Array);
    const tail = handleZeroTail ? zeroTail(rows, responseMask) : null;
    const width = rows.reduce((max, row) => Math.max(max, row.length), 0);
    for (let c = 0; c < width; c++) {
      let weighted = 0;
      let total = 0;
      for (const row of rows) {
        const t = row[c];
        if (t === undefined || !responseMask[t]) continue;
        weighted += (returns[t] as number) * (energy[t] as number);
        total += energy[t] as number;
      }
      const baseline = rows.length === 1 ? 0 : weighted / (total + EPSILON);
      for (const row of rows) {
        const t = row[c];
        if (t === undefined || !responseMask[t]) continue;
        const inTail = tail !== null && row === tail.row && c >= tail.start;
        advantages[t] = (returns[t] as number) - (inTail ? 0 : baseline);
      }
    }
  }
  return { advantages, returns };
}

/** Columns are response positions. */
export function optimalTokenBaseline(inputs: AdvantageInputs, config: AdvantageConfig): AdvantageResult {
  const { offsets } = inputs;
  const columns: Columns = [];
  for (let i = 0; i + 1 < offsets.length; i++) {
    const start = offsets[i] as number;
    columns.push(Int32Array.from({ length: (offsets[i + 1] as number) - start }, (_, c) => start + c));
  }
  return subtractBaselines(inputs, config, 'optimal_token_baseline', columns);
}

/** Columns count policy tokens only, so that turns of a tool-using conversation line up. */
export function tirOptimalTokenBaseline(inputs: AdvantageInputs, config: AdvantageConfig): AdvantageResult {
  const { offsets, responseMask } = inputs;
  const columns: Columns = [];
  for (let i = 0; i + 1 < offsets.length; i++) {
    const row: number[] = [];
    for (let t = offsets[i] as number; t < (offsets[i + 1] as number); t++) if (responseMask[t]) row.push(t);
    columns.push(Int32Array.from(row));
  }
  return subtractBaselines(inputs, config, 'tir_optimal_token_baseline', columns);
}
