// What verl's own functions made of recorded inputs.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export type Matrix = number[][];

export interface Fixture {
  inputs: Record<string, Matrix> & { uid: string[] };
  params: { advantage: Record<string, Record<string, unknown>> };
  advantage: Record<string, { adv: Matrix; ret: Matrix }>;
  helpers: Record<string, unknown>;
  egpo: {
    inputs: Record<string, Matrix> & { uid: string[] };
    cases: { lambda: number; alpha: number; norm_adv_by_std_in_grpo: boolean; adv: Matrix }[];
  };
}

export const fixture: Fixture = JSON.parse(
  readFileSync(join(__dirname, '../../fixtures/conformance/core_head.json'), 'utf8'),
);

export const flat = (matrix: Matrix): Float64Array => Float64Array.from(matrix.flat());

/** Within `tolerance`, relative above 1 and absolute below. */
export function expectClose(actual: ArrayLike<number>, expected: Matrix, tolerance: number): void {
  const want = flat(expected);
  expect(actual.length).toBe(want.length);
  for (let i = 0; i < want.length; i++) {
    const wanted = want[i] as number;
    expect(Math.abs((actual[i] as number) - wanted)).toBeLessThanOrEqual(
      tolerance * Math.max(1, Math.abs(wanted)),
    );
  }
}
