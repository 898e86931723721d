// node examples/eight_workers.mjs: one actor over eight worker processes, without the trainer. It learns to write even digits.
import { mkdtempSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeInitialModel } from './arithmetic/initial_model.mjs';
import { Random } from './arithmetic/random.mjs';

const { Actor, computeAdvantages } = createRequire(import.meta.url)('../dist/index.js');
const model = mkdtempSync(join(tmpdir(), 'troupe-eight-workers-'));
writeInitialModel(model, new Random(1));

const actor = await Actor.create({ model, worldSize: 8, device: 'cpu', optim: { lr: 3e-4 } });
try {
  const prompts = Array.from({ length: 16 }, (_, i) => Int32Array.of(2 + (i % 10)));
  for (let step = 1; step <= 5; step++) {
    const samples = await actor.generate(prompts, { maxNewTokens: 4, n: 4, seed: step, stopTokenIds: [] });
    const scores = Array.from({ length: samples.size }, (_, i) =>
      samples.response(i).reduce((sum, token) => sum + (token % 2 === 0 ? 0.25 : 0), 0),
    );
    const tokenRewards = new Float32Array(samples.numResponseTokens);
    for (const [i, score] of scores.entries()) tokenRewards[samples.responseOffsets[i + 1] - 1] = score;
    const uid = scores.map((_, i) => `prompt ${Math.floor(i / 4)}`);
    const { logProbs: oldLogProbs } = await actor.computeLogProb(samples);
    const batch = samples.with({ oldLogProbs, tokenRewards, uid });
    const { advantages } = computeAdvantages('grpo', batch);
    const metrics = await actor.updatePolicy(batch.with({ advantages }));
    const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
    console.log(
      `step ${step}: score ${mean.toFixed(3)}, |gradient| ${metrics['actor/grad_norm'].toFixed(3)}`,
    );
  }
  await actor.saveModel(join(model, 'trained'));
  console.log(`model in ${join(model, 'trained')}`);
} finally {
  await actor.close();
}
