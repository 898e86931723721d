import { readdirSync } from 'node:fs';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import { batchOf, CONFORMANCE, layoutsOf, TestGroups } from '../helpers/conformance';
import { floats, integers, maxDifference, readSafetensors } from '../helpers/safetensors';

// Forward results of tiny Hugging Face checkpoints against an independent float64 implementation.
const MODELS = path.join(CONFORMANCE, 'models');
const groups = new TestGroups();
afterAll(() => groups.close());

describe.each(
  readdirSync(MODELS).flatMap((name) =>
    layoutsOf(path.join(MODELS, name, 'actor')).map((layout) => ({ name, ...layout })),
  ),
)('$name on $layout', ({ name, worldSize, parallel }) => {
  let group: WorkerGroup;
  beforeAll(async () => {
    group = await groups.of(worldSize);
  });

  const dir = path.join(MODELS, name);
  const expected = readSafetensors(path.join(dir, 'expected.safetensors'));
  const { batch, responseLength } = batchOf(readSafetensors(path.join(dir, 'batch.safetensors')));

  test('log-probs, entropy and greedy continuation', async () => {
    const actor = await Actor.create({
      model: path.join(dir, 'actor'),
      optim: null,
      dtype: 'float32',
      group,
      parallel,
    });
    try {
      for (const [temperature, tolerance] of [
        ['1.0', 1e-4],
        ['0.7', 2e-4],
      ] as const) {
        const { logProbs, entropy } = await actor.computeLogProb(batch, {
          temperature: Number(temperature),
          entropy: true,
        });
        const filled = batch.with({ logProbs, entropy: entropy as Float32Array });
        const check = (column: string, key: string) =>
          expect(maxDifference(filled.toPadded(column, responseLength), floats(expected, key))).toBeLessThan(
            tolerance,
          );
        check('logProbs', `log_probs_t${temperature}_f64`);
        check('entropy', `entropys_t${temperature}_f64`);
      }

      const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));
      const steps = expected['greedy_tokens']?.shape[1] as number;
      const greedy = await actor.generate(prompts, { maxNewTokens: steps, temperature: 0, stopTokenIds: [] });
      const tokens = Array.from({ length: greedy.size }, (_, i) => Array.from(greedy.response(i))).flat();
      expect(tokens).toEqual(Array.from(integers(expected, 'greedy_tokens'), Number));
    } finally {
      await actor.close();
    }
  });

  test('values', async () => {
    const critic = await Critic.create({
      model: path.join(dir, 'critic'),
      optim: null,
      dtype: 'float32',
      group,
      parallel,
    });
    try {
      const { values } = await critic.computeValues(batch);
      const padded = batch.with({ values }).toPadded('values', responseLength);
      expect(maxDifference(padded, floats(expected, 'values_f64'))).toBeLessThan(1e-4);
    } finally {
      await critic.close();
    }
  });
});
