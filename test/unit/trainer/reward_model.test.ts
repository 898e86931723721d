import { mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Batch } from '../../../ts/batch/batch';
import type { RewardFunction } from '../../../ts/reward/contract/types';
import type { Engines } from '../../../ts/trainer/engines';
import { Trainer } from '../../../ts/trainer/trainer';
import { FakeEngines, fakeData, runConfig } from '../../helpers/fake_run';

// A run with a reward model that gives the sum of the response's tokens.

interface Row {
  output: string;
  score: number;
}

async function run(overrides: string[], reward?: RewardFunction) {
  const directory = mkdtempSync(join(tmpdir(), 'trainer-'));
  const fakes = new FakeEngines();
  const updates: Batch[] = [];
  const create = async (_: unknown, needs: Parameters<FakeEngines['create']>[0]): Promise<Engines> => {
    const engines = await fakes.create(needs);
    const { updatePolicy } = engines.actor;
    engines.actor.updatePolicy = async (batch, options) => {
      updates.push(batch.slice());
      return updatePolicy(batch, options);
    };
    return engines;
  };
  const config = runConfig(directory, [
    'reward.reward_model.enable=true',
    'reward.reward_model.model_path=none',
    'trainer.total_training_steps=1',
    ...overrides,
  ]);
  await new Trainer(config, { reward, engines: create, data: async () => fakeData() }).fit();
  const rows = (name: string): Row[] =>
    readFileSync(join(directory, 'samples', name), 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
  return { calls: fakes.calls, updates, rows, samples: readdirSync(join(directory, 'samples')) };
}

const sum = (output: string): number => output.split(' ').reduce((total, id) => total + Number(id), 0);

test('its score is the reward, in training and in validation, on the last token', async () => {
  const { rows, updates, samples } = await run([]);
  expect(samples).toContain('validation_0.jsonl');
  for (const name of ['1.jsonl', 'validation_0.jsonl'])
    for (const row of rows(name)) expect(row.score).toBe(sum(row.output));
  const [batch] = updates as [Batch];
  for (let i = 0; i < batch.size; i++) {
    const scores = batch.row('tokenScores', i) as Float32Array;
    expect(scores.at(-1)).toBe(batch.response(i).reduce((total, id) => total + id, 0));
    expect(scores.slice(0, -1).every((score) => score === 0)).toBe(true);
  }
});

test('a reward function, where one is given, sees it and decides', async () => {
  const fn: RewardFunction = ({ rewardModelScore, responseTokens }) => ({
    score: (rewardModelScore as number) / 2 + responseTokens.length,
    from_model: rewardModelScore as number,
  });
  const { rows } = await run(['trainer.val_before_train=false'], fn);
  for (const row of rows('1.jsonl') as (Row & { from_model: number })[]) {
    expect(row.from_model).toBe(sum(row.output));
    expect(row.score).toBe(sum(row.output) / 2 + row.output.split(' ').length);
  }
});

test('remax: the greedy answers are scored by it too, and the responses keep their own scores', async () => {
  const { calls, updates } = await run(['algorithm.adv_estimator=remax', 'trainer.val_before_train=false']);
  expect(calls.slice(0, 4)).toEqual(['generate', 'rewardModel.score', 'generate', 'rewardModel.score']);
  const [batch] = updates as [Batch];
  const baselines = batch.get('rewardBaselines') as number[];
  const scores = batch.get('score') as number[];
  scores.forEach((score, i) => {
    expect(score).toBe(batch.response(i).reduce((total, id) => total + id, 0));
  });
  // One baseline per prompt, which is the sum of some answer of its own, and the first advantage is score - baseline.
  expect(new Set(baselines.slice(0, 4)).size).toBe(1);
  expect(baselines.every((value) => Number.isInteger(value))).toBe(true);
  scores.forEach((score, i) => {
    expect((batch.row('advantages', i) as Float32Array)[0]).toBeCloseTo(score - (baselines[i] as number), 5);
  });
});
