import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { batchOf, CONFORMANCE, TestGroups } from '../helpers/conformance';
import { floats, readSafetensors } from '../helpers/safetensors';

// Everything that reads logits divides them (logits_scaling of Granite): what models.test.ts does not ask, against the log-probs of
// transformers.
const groups = new TestGroups();
afterAll(() => groups.close());

test.each([
  ['one worker', 1, {}],
  ['tp 2', 2, { tp: 2 }],
] as const)('on %s', async (_, worldSize, parallel) => {
  const dir = path.join(CONFORMANCE, 'models', 'granite');
  const { batch, responseLength } = batchOf(readSafetensors(path.join(dir, 'batch.safetensors')));
  const padded = floats(readSafetensors(path.join(dir, 'expected.safetensors')), 'log_probs_t1.0_f64');
  const expected = Array.from({ length: batch.size }, (_, i) =>
    Array.from(padded.slice(i * responseLength, i * responseLength + batch.response(i).length)),
  ).flat();
  const mask = batch.get('responseMask');
  const tokens = Array.from({ length: batch.size }, (_, i) => [...batch.response(i)]).flat();
  const group = await groups.of(worldSize);
  const optim = { lr: 0, weightDecay: 0, gradClip: 1e9 };
  const actor = await Actor.create({
    model: path.join(dir, 'actor'),
    optim,
    group,
    parallel,
    dtype: 'float32',
  });
  try {
    // The likeliest tokens of each row.
    const { topLogProbs, topIds } = await actor.computeLogProb(batch, { topK: 128 });
    const [values, ids] = [topLogProbs, topIds].map((rows) => (rows ?? []).flatMap((row) => [...row]));
    for (const [t, lp] of expected.entries()) {
      const place = (ids as number[]).slice(128 * t, 128 * (t + 1)).indexOf(tokens[t] as number);
      expect((values as number[])[128 * t + place]).toBeCloseTo(lp, 4);
    }

    // The loss of supervised training.
    const loss = (await actor.updateSft(batch))['actor/loss'];
    const counted = expected.filter((_, t) => mask[t] === 1);
    expect(loss).toBeCloseTo(-counted.reduce((sum, lp) => sum + lp, 0) / counted.length, 4);

    // What a rollout says of what it has sampled.
    const sampled = await actor.generate([batch.prompt(0)], { maxNewTokens: 6, temperature: 0.7, seed: 3 });
    const { logProbs } = await actor.computeLogProb(sampled, { temperature: 0.7 });
    const rollout = sampled.get('rolloutLogProbs');
    expect(rollout).toHaveLength(logProbs.length);
    for (const [t, lp] of [...logProbs].entries()) expect(rollout[t]).toBeCloseTo(lp, 5);
  } finally {
    await actor.close();
  }
});
