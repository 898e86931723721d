// A consumer's program: type-checked against the installed package, then run. Imports as an ES module does.
import { Actor, type Batch, type PolicyMetrics, TroupeError } from 'troupe';

const directory: string = process.argv[2] ?? 'model';
const actor: Actor = await Actor.create({ model: directory, numThreads: 1, optim: { lr: 1e-3 } });
try {
  const prompts: number[][] = [
    [1, 2, 3],
    [4, 5],
  ];
  const samples: Batch = await actor.generate(prompts, { maxNewTokens: 4, n: 2, seed: 1, stopTokenIds: [] });
  const { logProbs }: { logProbs: Float32Array } = await actor.computeLogProb(samples);
  if (samples.size !== 4 || logProbs.length !== 16 || !logProbs.every((value) => value < 0 && value > -20))
    throw new Error(`unexpected samples or log-probs: ${samples.size}, ${logProbs.join(' ')}`);
  const learn: Batch = samples.with({ oldLogProbs: logProbs, advantages: new Float32Array(16).fill(1) });
  const metrics: PolicyMetrics = await actor.updatePolicy(learn, { loss: { aggregation: 'token-mean' } });
  const loss: number | undefined = metrics['actor/pg_loss'];
  // The first update starts from the weights that sampled: every ratio is 1 and the loss is minus the advantage.
  if (loss === undefined || Math.abs(loss + 1) > 1e-5) throw new Error(`expected pg_loss -1 but got ${loss}`);
  const after = await actor.computeLogProb(samples);
  if (after.logProbs.every((value, i) => value === logProbs[i]))
    throw new Error('the update changed nothing');
} finally {
  await actor.close();
}
try {
  await Actor.create({ model: '/does/not/exist' });
  throw new Error('a missing model directory was accepted');
} catch (error) {
  if (!(error instanceof TroupeError)) throw error;
}
console.log('smoke: ok');
