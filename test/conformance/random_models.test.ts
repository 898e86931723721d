import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { TEST_DEVICE, TestGroups } from '../helpers/conformance';
import { gradientsOf } from '../helpers/gradients';
import { floats, integers, maxDifference, readSafetensors } from '../helpers/safetensors';

// Small models of random configurations (test/fixtures/random_models): log-probs and all gradients against transformers in float64, and
// sampled tokens against compute_log_prob.
const PYTHON = process.env['TROUPE_TEST_TRANSFORMERS_PYTHON'];
const FIRST = Number(process.env['TROUPE_TEST_SEED'] ?? 0);
const COUNT = process.env['TROUPE_TEST_EXHAUSTIVE'] === '1' ? 1040 : 52;
// Bounds: so much, and that many times what transformers in float32 is off by.
const LEAST = 1e-5;
const FACTOR = 10;

const groups = new TestGroups();
const root = mkdtempSync(path.join(tmpdir(), 'troupe-random-models-'));
afterAll(async () => {
  await groups.close();
  rmSync(root, { recursive: true, force: true });
});

const seeds = Array.from({ length: COUNT }, (_, i) => FIRST + i);

(PYTHON === undefined ? describe.skip : describe)('random models', () => {
  beforeAll(() => {
    const script = path.join(__dirname, '..', 'fixtures', 'random_models', 'make_models.py');
    const made = spawnSync(PYTHON as string, [script, root, String(FIRST), String(COUNT)], {
      encoding: 'utf8',
    });
    if (made.status !== 0) throw new Error(made.stderr);
  }, 1_800_000);

  test.each(seeds)('seed %d', async (seed) => {
    const model = path.join(root, String(seed));
    const expected = readSafetensors(path.join(model, 'expected.safetensors'));
    const rounding = (of: string): number => floats(expected, `${of}_rounding`)[0] as number;
    const tokens = Array.from(integers(expected, 'tokens'), Number);
    const rows = [tokens.slice(0, tokens.length / 2), tokens.slice(tokens.length / 2)];
    const group = await groups.of(TEST_DEVICE === 'cpu' && seed % 3 === 0 ? 2 : 1);
    const actor = await Actor.create({
      model,
      optim: { lr: 0, weightDecay: 0, gradClip: 1e9 },
      group,
      dtype: 'float32',
    });
    try {
      const batch = Batch.fromSequences(
        rows.map((row) => row.slice(0, 1)),
        rows.map((row) => row.slice(1)),
        { advantages: floats(expected, 'advantages') },
      );
      const { logProbs } = await actor.computeLogProb(batch);
      const worst = maxDifference(logProbs, floats(expected, 'log_probs'));
      expect(worst).toBeLessThan(LEAST + FACTOR * rounding('log_prob'));

      await actor.updatePolicy(batch.with({ oldLogProbs: logProbs }));
      const all = readSafetensors(path.join(model, 'gradients', 'model.safetensors'));
      const trained = ([name]: [string, unknown]): boolean => !name.endsWith('e_score_correction_bias');
      const theirs = Object.fromEntries(Object.entries(all).filter(trained));
      let [error, norm] = [0, 0];
      for await (const [name, ours] of gradientsOf(group, actor.name, model, 'lm', theirs)) {
        const wanted = floats(theirs, name);
        expect(ours.length).toBe(wanted.length);
        wanted.forEach((value, i) => {
          error += (value - (ours[i] as number)) ** 2;
          norm += value ** 2;
        });
      }
      expect(Math.sqrt(error / norm)).toBeLessThan(LEAST + FACTOR * rounding('gradient'));

      const sampled = await actor.generate(
        rows.map((row) => row.slice(0, 20)),
        { maxNewTokens: 12, seed, stopTokenIds: [] },
      );
      const again = await actor.computeLogProb(sampled);
      expect(maxDifference(sampled.get('rolloutLogProbs'), again.logProbs)).toBe(0);
    } finally {
      await actor.close();
    }
  });
});
