import type { AdvantageInputs } from '../../../ts/algorithms/advantage_types';
import { computeAdvantagesDouble } from '../../../ts/algorithms/advantages';

describe('optimal-token baselines', () => {
  // Two groups, not adjacent; a tool token in the longest response; a response without policy tokens.
  const weighted: AdvantageInputs = {
    offsets: [0, 4, 6, 8, 11, 12],
    responseMask: [1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
    tokenRewards: [0, 0, 1, 2, 0, 1, 0, 3, 1, 0, -1, 0],
    uid: ['a', 'b', 'a', 'b', 'a'],
    oldLogProbs: [-1, -2, -0.5, -3, -0.1, -45, -1.5, -2.5, -0.7, -0.2, -0.9, -1],
    sumPiSquared: [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.1, 0.2, 0.35, 0.45, 1],
    rolloutIsWeights: [1, 2, 0.5, 1, 1, 1, 2, 1, 1, 0.5, 1, 1],
  };

  // Long enough for the loops of four tokens; what is behind the mask is nobody's number.
  const lengths = [23, 9, 16, 0, 30, 4, 31, 1, 12];
  const offsets = [0];
  for (const length of lengths) offsets.push((offsets.at(-1) as number) + length);
  const noise = (t: number) => (Math.imul(t + 1, 0x9e3779b1) >>> 8) / 2 ** 24;
  const tokens = Array.from({ length: offsets.at(-1) as number }, (_, t) => t);
  const policyToken = (t: number) => noise(t) < 0.7;
  const long: AdvantageInputs = {
    offsets,
    responseMask: tokens.map((t) => (policyToken(t) ? 1 : 0)),
    tokenRewards: tokens.map((t) => noise(t + 1000) - 0.5),
    uid: ['a', 'b', 'a', 'b', 'a', 'b', 'a', 'c', 'b'],
    oldLogProbs: tokens.map((t) => (policyToken(t) ? -3 * noise(t + 2000) : Number.NaN)),
    sumPiSquared: tokens.map((t) => (policyToken(t) ? noise(t + 3000) : Number.NaN)),
  };

  /** The definition, token by token. */
  function expected(inputs: AdvantageInputs, compact: boolean, handleZeroTail: boolean): number[] {
    const { offsets, responseMask: m, tokenRewards: r, uid } = inputs;
    const rows = uid as string[];
    const tokens = rows.map((_, i) => {
      const all = Array.from({ length: (offsets[i + 1] as number) - (offsets[i] as number) }, (_, c) => c);
      const policy = all.filter((c) => m[(offsets[i] as number) + c]);
      return policy.map((c, k) => {
        const at = (d: number): number => (offsets[i] as number) + d;
        const energy = policy.slice(0, k + 1).reduce((sum, d) => {
          const weight = inputs.rolloutIsWeights?.[at(d)] ?? 1;
          const proxy =
            1 -
            2 * Math.exp(inputs.oldLogProbs?.[at(d)] as number) +
            (inputs.sumPiSquared?.[at(d)] as number);
          return sum + proxy * weight * weight;
        }, 0);
        const toGo = all.slice(c).reduce((sum, d) => sum + (r[at(d)] as number), 0);
        return { t: at(c), column: compact ? k : c, energy, toGo };
      });
    });
    const out = new Array<number>(r.length).fill(0);
    rows.forEach((id, i) => {
      const group = rows.flatMap((other, j) => (other === id ? [tokens[j] ?? []] : []));
      const second = group.map((row) => row.length).sort((a, b) => b - a)[1] as number;
      for (const token of tokens[i] ?? []) {
        const column = group.flat().filter((other) => other.column === token.column);
        const weighted = column.reduce((sum, other) => sum + other.toGo * other.energy, 0);
        const total = column.reduce((sum, other) => sum + other.energy, 0);
        const alone = (tokens[i] ?? []).length > second && token.column >= second;
        const baseline = weighted / (total + 1e-8);
        out[token.t] = token.toGo - ((handleZeroTail && alone) || group.length === 1 ? 0 : baseline);
      }
    });
    return out;
  }

  test.each([
    ['optimal_token_baseline', false, true],
    ['optimal_token_baseline', false, false],
    ['tir_optimal_token_baseline', true, true],
    ['tir_optimal_token_baseline', true, false],
  ] as const)('%s over columns of %s compaction, zero tail %s', (name, compact, handleZeroTail) => {
    for (const inputs of [weighted, long]) {
      const { advantages } = computeAdvantagesDouble(name, inputs, { handleZeroTail });
      expected(inputs, compact, handleZeroTail).forEach((value, t) => {
        expect(advantages[t]).toBeCloseTo(value, 12);
      });
      // What holds unless it is said.
      const { advantages: unsaid } = computeAdvantagesDouble(name, inputs);
      if (handleZeroTail) expect(unsaid).toEqual(advantages);
      else expect(unsaid).not.toEqual(advantages);
    }
  });

  test('no response is alone in its last columns where the longest two have as many policy tokens', () => {
    // By position the first goes on for longer: a tool's token lies in it.
    const inputs: AdvantageInputs = {
      offsets: [0, 3, 5],
      responseMask: [1, 0, 1, 1, 1],
      tokenRewards: [0, 0, 1, 0, 2],
      uid: ['a', 'a'],
      oldLogProbs: [-2, -1, -1, -1, -0.5],
      sumPiSquared: [0.5, 0.6, 0.7, 0.3, 0.4],
    };
    const advantages = (handleZeroTail: boolean): number[] => [
      ...computeAdvantagesDouble('optimal_token_baseline', inputs, { handleZeroTail }).advantages,
    ];
    expect(advantages(true)).toEqual(advantages(false));
    expect(advantages(true)[2]).toBeCloseTo(0, 7);
  });

  test('tir_optimal_token_baseline leaves out responses without policy tokens before it forms groups', () => {
    // Of the first prompt's responses one is all a tool's and one is empty: the third is alone and has no baseline.
    const inputs: AdvantageInputs = {
      offsets: [0, 3, 5, 5, 7, 8],
      responseMask: [1, 1, 1, 0, 0, 1, 1, 1],
      tokenRewards: [0, 0.5, 1, 0, 4, 0, 2, 3],
      uid: ['a', 'a', 'a', 'b', 'b'],
      oldLogProbs: [-1, -0.5, -2, -1, -1, -1, -0.5, -2],
      sumPiSquared: [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.1],
    };
    for (const handleZeroTail of [true, false]) {
      const result = computeAdvantagesDouble('tir_optimal_token_baseline', inputs, { handleZeroTail });
      expect([...result.advantages].slice(0, 5)).toEqual([1.5, 1.5, 1, 0, 0]);
      expect([...result.returns]).toEqual([1.5, 1.5, 1, 4, 4, 2, 2, 3]);
      expect(result.advantages[5]).not.toBe(2);
    }
  });
});
