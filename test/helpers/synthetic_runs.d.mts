// Types of synthetic_runs.mjs.
export interface SyntheticRun {
  steps?: number;
  seed?: number;
  state?: string;
  samples?: number;
  sampleEvery?: number;
  ranks?: number;
  extra?: number;
  traceSteps?: number;
}
export const TRAJECTORY: string;
export function metricsLine(step: number, steps: number, random: () => number, extra?: number): string;
export function writeRun(directory: string, options?: SyntheticRun): void;
export function writeLongMetrics(directory: string, points: number, peakAt: number): void;
