// What the configuration and the options of scripts may name, by verl's and Megatron's names.

export const SCHEDULES = ['constant', 'cosine', 'linear', 'inverse_square_root', 'WSD'] as const;
export const WSD_DECAYS = ['linear', 'cosine', 'exponential', 'minus_sqrt'] as const;
/** Of a step of Muon, by the shape of a matrix. */
export const MUON_SCALES = ['spectral', 'unit_rms_norm', 'shape_scaling'] as const;

/** Polynomials of Muon's Newton-Schulz iteration (native/optim/muon.h), under the names of Megatron's emerging_optimizers. */
export const MUON_COEFFICIENTS = ['simple', 'quintic', 'polar_express', 'cans', 'aol', 'deepseekv4'] as const;
export type MuonCoefficients = (typeof MUON_COEFFICIENTS)[number];

/** Polynomials of those that begin again after the last. The first takes singular values that are near one away from it. */
const ROUNDS: Partial<Record<MuonCoefficients, number>> = { quintic: 5 };
/** Polynomials of those that end with the last. The first would take a singular value of one below zero. */
const MOST: Partial<Record<MuonCoefficients, number>> = { aol: 4 };

/** What is wrong with so many iterations; null: nothing. */
export function wrongIterations(coefficients: MuonCoefficients, iterations: number): string | null {
  const most = MOST[coefficients];
  if (most !== undefined && iterations > most)
    return `expected at most ${most}: ${coefficients} has ${most} polynomials, and once more the first would turn directions around, got ${iterations}`;
  const round = ROUNDS[coefficients];
  if (round === undefined || iterations <= round || iterations % round === 0) return null;
  return `expected at most ${round}, or a multiple of it: ${coefficients} has ${round} polynomials, of which the first takes singular values away from one again, got ${iterations}`;
}
