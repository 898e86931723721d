import { Actor } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import { Workspace, writeModel } from '../helpers/e2e_workspace';
import { observeRun } from '../helpers/observed_run';

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

const responsesOf = (batch: Batch): number[][] => {
  const tokens = batch.get('tokens') as Int32Array;
  return Array.from(batch.responseLens, (length, i) => {
    const end = batch.seqOffsets[i + 1] as number;
    return [...tokens.subarray(end - length, end)];
  });
};

// The tokenizer's is 1.
test('in a run the end token of the tokenizer ends responses, and those of the model as well', async () => {
  const model = await writeModel(workspace.file('other_end'), { config: { eos_token_id: 5 } });
  const { updates } = await observeRun(
    workspace.file('train.yaml'),
    [
      `actor_rollout_ref.model.path=${model}`,
      `trainer.default_local_dir=${workspace.file('run')}`,
      'trainer.total_training_steps=1',
      'trainer.val_before_train=false',
      'trainer.test_freq=-1',
      'trainer.save_freq=-1',
    ],
    ({ response }) => response.length,
  );
  const responses = updates.flatMap(({ batch }) => responsesOf(batch));
  expect(responses).toHaveLength(16);
  const ends = new Set<number>();
  for (const response of responses) {
    expect(response.slice(0, -1).filter((id) => id === 1 || id === 5)).toEqual([]);
    if (response.length < 8) ends.add(response.at(-1) as number);
  }
  expect(ends).toEqual(new Set([1, 5]));
}, 60_000);

test("an engine is told what ends a response that says nothing of it; else it is the model's", async () => {
  const model = workspace.file('model');
  const create = (eosTokenIds?: readonly number[]): Promise<Actor> =>
    Actor.create({ model, optim: null, numThreads: 1, rollout: eosTokenIds ? { eosTokenIds } : {} });
  const answer = async (actor: Actor, stopTokenIds?: number[]): Promise<number[]> => {
    const sampling = { maxNewTokens: 12, seed: 3n, ...(stopTokenIds ? { stopTokenIds } : {}) };
    return [...(await actor.rollout.submit({ promptIds: [4, 12, 5], sampling }).result).tokens];
  };
  const usual = await create();
  expect(usual.eosTokenIds).toEqual([1]);
  const whole = await answer(usual, []);
  await usual.close();
  const end = whole[3] as number;
  const told = await create([14, end]);
  expect(told.eosTokenIds).toEqual([14, end]);
  expect(await answer(told)).toEqual(whole.slice(0, whole.findIndex((id) => id === end || id === 14) + 1));
  expect(await answer(told, [])).toEqual(whole);
  await told.close();
  await expect(create([15])).rejects.toThrow(
    /eosTokenIds: 15 at position 0 is outside the model's vocabulary/,
  );
}, 60_000);
