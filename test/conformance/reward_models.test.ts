import { readdirSync } from 'node:fs';
import path from 'node:path';
import { Batch } from '../../ts/batch/batch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { RewardModel } from '../../ts/reward_model/reward_model';
import { batchOf, CONFORMANCE, TEST_DEVICE } from '../helpers/conformance';
import { floats, readSafetensors } from '../helpers/safetensors';

// The recorded value of a response token is the head's output at the token before it: so the score of a sequence that
// ends there. Float64 results of an independent implementation.
const MODELS = path.join(CONFORMANCE, 'models');
let group: WorkerGroup;
beforeAll(async () => {
  group = await WorkerGroup.launch({ worldSize: 1, device: TEST_DEVICE });
});
afterAll(() => group.close());

test.each(readdirSync(MODELS))('%s', async (name) => {
  const dir = path.join(MODELS, name);
  const values = floats(readSafetensors(path.join(dir, 'expected.safetensors')), 'values_f64');
  const { batch, responseLength } = batchOf(readSafetensors(path.join(dir, 'batch.safetensors')));
  // Every sequence up to each of its response tokens.
  const prompts: Int32Array[] = [];
  const responses: Int32Array[] = [];
  const expected: number[] = [];
  for (let i = 0; i < batch.size; i++) {
    for (let t = 0; t < (batch.responseLens[i] as number); t++) {
      prompts.push(batch.prompt(i));
      responses.push(batch.response(i).slice(0, t));
      expected.push(values[i * responseLength + t] as number);
    }
  }
  const ends = Batch.fromSequences(prompts, responses);
  const model = await RewardModel.create({ model: path.join(dir, 'critic'), group });
  try {
    const scores = await model.score(ends);
    expect(scores).toHaveLength(expected.length);
    const worst = Math.max(...expected.map((value, i) => Math.abs(value - (scores[i] as number))));
    expect(worst).toBeLessThan(1e-4);

    const backwards = Array.from({ length: ends.size }, (_, i) => ends.size - 1 - i);
    expect((await model.score(ends.reorder(backwards))).reverse()).toEqual(scores);
    for (const i of [0, ends.size - 1]) expect((await model.score(ends.slice(i, i + 1)))[0]).toBe(scores[i]);
  } finally {
    await model.close();
  }
});
