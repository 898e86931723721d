import path from 'node:path';
import type { Actor } from '../../ts/actor/actor';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { CONFORMANCE } from '../helpers/conformance';
import {
  batch,
  criticRun,
  expectCloseMetrics,
  expectContinued,
  layoutWorkers,
  update,
  withActor,
  worst,
} from '../helpers/layout_runs';
import { raggedBatch, relative } from '../helpers/sharded';

// Workers that share every sequence (context parallelism) have the numbers of one. The core alone, at more layouts:
// test/native/context_parallel_test.cc.
const { groups, scratch } = layoutWorkers();

test.each<['two' | 'four', NonNullable<EngineOptions['parallel']>]>([
  ['two', { cp: 2 }],
  ['four', { cp: 2, tp: 2, sequenceParallel: true }],
  ['four', { cp: 2, pp: 2 }],
  ['four', { cp: 2, sharding: 'shard_grad_op' }], // two groups with data of their own
])('an actor on %s workers, %j, scores, trains and generates as on one', async (workers, parallel) => {
  const prompts = Array.from({ length: 3 }, (_, i) => batch.prompt(i));
  const run = async (actor: Actor) => {
    const { logProbs } = await actor.computeLogProb(batch);
    const first = batch.drop('oldLogProbs').with({ oldLogProbs: logProbs });
    const { 'actor/ppo_kl': kl } = await actor.updatePolicy(first, { miniBatchSize: batch.size });
    const metrics = [];
    for (let i = 0; i < 3; i++) metrics.push(await actor.updatePolicy(batch, update));
    const samples = await actor.generate(prompts, { maxNewTokens: 5, n: 2, seed: 3 });
    return { logProbs, kl, metrics, tokens: samples.get('tokens'), after: await actor.computeLogProb(batch) };
  };
  const expected = await withActor({ group: groups.one }, run);
  const actual = await withActor({ group: groups[workers], parallel }, run);
  if (parallel.tp === 2) expect(worst(actual.logProbs, expected.logProbs)).toBeLessThan(1e-5);
  else expect(actual.logProbs).toEqual(expected.logProbs);
  expect(actual.kl).toBe(0);
  expect(actual.tokens).toEqual(expected.tokens);
  expect(relative(actual.after.logProbs, expected.after.logProbs)).toBeLessThan(1e-5);
  expectCloseMetrics(actual.metrics, expected.metrics);
});

test('a critic on cp 2 learns as on one worker', async () => {
  const expected = await criticRun({ group: groups.one });
  const actual = await criticRun({ group: groups.two, parallel: { cp: 2 } });
  expect(actual.before).toEqual(expected.before);
  expect(relative(actual.after, expected.after)).toBeLessThan(1e-5);
});

test('a mixture of experts, which two workers of a context share, trains as on one', async () => {
  const model = path.join(CONFORMANCE, 'models', 'mixtral', 'actor');
  const own = raggedBatch(8, 9, 120);
  const run = async (actor: Actor) => {
    const { logProbs } = await actor.computeLogProb(own);
    const first = own.drop('oldLogProbs').with({ oldLogProbs: logProbs });
    const { 'actor/ppo_kl': kl } = await actor.updatePolicy(first, {});
    return { kl, loss: (await actor.updatePolicy(own, {}))['actor/loss'] as number };
  };
  const expected = await withActor({ model, group: groups.one }, run);
  const actual = await withActor({ model, group: groups.two, parallel: { cp: 2, ep: 2 } }, run);
  expect(actual.kl).toBe(0);
  expect(Math.abs(actual.loss - expected.loss)).toBeLessThan(1e-5);
});

test('a checkpoint of cp 2 continues on one worker and on tp 2, and theirs on cp 2', async () => {
  const layouts = {
    context: { group: groups.two, parallel: { cp: 2 } },
    alone: { group: groups.one },
    tensor: { group: groups.two, parallel: { tp: 2 } },
  };
  await expectContinued(scratch, layouts, [
    ['context', 'alone'],
    ['alone', 'context'],
    ['context', 'tensor'],
    ['tensor', 'context'],
  ]);
});
