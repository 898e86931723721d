// Small models of random configurations, and what transformers makes of them (test/fixtures/random_models).
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { ModelReading } from '../../ts/checkpoint/model_dir';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { gradientsOf } from './gradients';
import { floats, readSafetensors, type TestTensor } from './safetensors';

const PYTHON = process.env['TROUPE_TEST_TRANSFORMERS_PYTHON'];
const FIRST = Number(process.env['TROUPE_TEST_SEED'] ?? 0);
// Bounds: so much, and that many times what float32 can lose (test/fixtures/random_models/rounding.py). Measured on 480 models: about
// that much in the median, and 2.9 times as much at most.
const LEAST = 1e-5;
const FACTOR = 5;

/** A suite that makes its models, or nothing where there is no transformers. */
export const describeRandomModels = PYTHON === undefined ? describe.skip : describe;

/** `usual` seeds, or `exhaustive` ones with TROUPE_TEST_EXHAUSTIVE=1. */
export function seedsOf(usual: number, exhaustive: number): number[] {
  const count = process.env['TROUPE_TEST_EXHAUSTIVE'] === '1' ? exhaustive : usual;
  return Array.from({ length: count }, (_, i) => FIRST + i);
}

/** Before all tests of a suite: the models of these seeds; after them they are gone. `more`: further arguments of the script. */
export function madeBy(
  script: string,
  seeds: readonly number[],
  ...more: string[]
): (seed: number) => RandomModel {
  const root = mkdtempSync(path.join(tmpdir(), 'troupe-random-models-'));
  beforeAll(() => {
    const file = path.join(__dirname, '..', 'fixtures', 'random_models', script);
    const made = spawnSync(PYTHON as string, [file, root, String(seeds[0]), String(seeds.length), ...more], {
      encoding: 'utf8',
    });
    if (made.status !== 0) throw new Error(made.stderr);
  }, 1_800_000);
  afterAll(() => rmSync(root, { recursive: true, force: true }));
  return (seed) => new RandomModel(path.join(root, String(seed)));
}

export class RandomModel {
  readonly expected: Record<string, TestTensor>;

  constructor(readonly directory: string) {
    this.expected = readSafetensors(path.join(directory, 'expected.safetensors'));
  }

  /** How far log-probs, or all gradients as one vector, may be from those of transformers in float64. */
  bound(of: 'log_prob' | 'gradient'): number {
    return LEAST + FACTOR * (floats(this.expected, `${of}_rounding`)[0] as number);
  }

  /** How far the gradients that the engine `name` has kept are from those of transformers, relative to their norm. */
  async gradientError(group: WorkerGroup, name: string, reading: ModelReading = {}): Promise<number> {
    const all = readSafetensors(path.join(this.directory, 'gradients', 'model.safetensors'));
    const trained = ([key]: [string, unknown]): boolean =>
      !/\.(e_score_correction_bias|expert_bias|layer_scalar|act_fn\.(beta|eps))$/.test(key);
    const theirs = Object.fromEntries(Object.entries(all).filter(trained));
    let [error, norm] = [0, 0];
    for await (const [key, ours] of gradientsOf(group, name, this.directory, 'lm', theirs, reading)) {
      const wanted = floats(theirs, key);
      expect(ours.length).toBe(wanted.length);
      wanted.forEach((value, i) => {
        error += (value - (ours[i] as number)) ** 2;
        norm += value ** 2;
      });
    }
    return Math.sqrt(error / norm);
  }
}
