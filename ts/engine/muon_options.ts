import { badOption, checkOptionNames, choiceOption, flagOption, numberOption } from '../base/check_options';
import {
  MUON_COEFFICIENTS,
  MUON_SCALES,
  type MuonCoefficients,
  wrongIterations,
} from '../base/optimiser_names';
import type { NativeMuonOptions } from '../native/bridge';

/**
 * Muon (Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982): the weights of linear layers move by their momentum with all singular values
 * brought near one, all else by AdamW. A step is `lr * extraScaleFactor` times what `scaleMode` says: with 1, several times that of AdamW.
 */
export interface MuonOptions {
  /** Of the moving average of gradients, 0.95. */
  momentum?: number;
  /** The direction is that of the next momentum; default false. */
  nesterov?: boolean;
  /** Of a matrix [out, in]: spectral sqrt(max(out, in)), unit_rms_norm sqrt(out / in), shape_scaling sqrt(max(1, out / in)). */
  scaleMode?: 'spectral' | 'unit_rms_norm' | 'shape_scaling'; // spectral
  /** Beside it, 1. sqrt((1 - beta1) / (1 + beta1)) has the steps of AdamW: 0.23 with a beta1 of 0.9. */
  extraScaleFactor?: number;
  /** Polynomials of the Newton-Schulz iteration. */
  coefficientType?: MuonCoefficients; // quintic
  /** Its iterations, 5. Of quintic at most 5 or a multiple, of aol at most 4. */
  numNsSteps?: number;
  /** Of its products. */
  dtype?: 'float32' | 'bfloat16'; // bfloat16
}

/** null: AdamW of everything. */
export function resolveMuon(
  where: string,
  muon: MuonOptions | undefined,
  masterDtype: 'float32' | 'bfloat16',
): NativeMuonOptions | null {
  if (muon === undefined) return null;
  if (masterDtype !== 'float32')
    throw badOption(where, "muon: its steps are of float32: expected masterDtype 'float32', got 'bfloat16'");
  const at = `${where}.muon`;
  checkOptionNames(at, muon, [
    'momentum',
    'nesterov',
    'scaleMode',
    'extraScaleFactor',
    'coefficientType',
    'numNsSteps',
    'dtype',
  ]);
  const momentum = numberOption(at, 'momentum', muon.momentum, 0.95, { min: 0 });
  if (momentum >= 1) throw badOption(at, `momentum: expected a number below 1, got ${momentum}`);
  const coefficientType = choiceOption(
    at,
    'coefficientType',
    muon.coefficientType,
    MUON_COEFFICIENTS,
    'quintic',
  );
  const numNsSteps = numberOption(at, 'numNsSteps', muon.numNsSteps, 5, { integer: true, min: 1, max: 100 });
  const wrong = wrongIterations(coefficientType, numNsSteps);
  if (wrong !== null) throw badOption(at, `numNsSteps: ${wrong}`);
  return {
    momentum,
    nesterov: flagOption(at, 'nesterov', muon.nesterov, false),
    scaleMode: choiceOption(at, 'scaleMode', muon.scaleMode, MUON_SCALES, 'spectral'),
    extraScaleFactor: numberOption(at, 'extraScaleFactor', muon.extraScaleFactor, 1, { above: 0 }),
    coefficientType,
    numNsSteps,
    dtype: choiceOption(at, 'dtype', muon.dtype, ['float32', 'bfloat16'] as const, 'bfloat16'),
  };
}
