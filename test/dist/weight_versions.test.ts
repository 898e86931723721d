import { defineAgent } from '../../ts/agent/define';
import type { Batch } from '../../ts/batch/batch';
import { loadConfig } from '../../ts/config/config';
import { createEngines, type Engines } from '../../ts/trainer/engines';
import { Trainer } from '../../ts/trainer/trainer';
import { Workspace } from '../helpers/e2e_workspace';

// The version of a token is the step that has made its weights.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

/** Trains with an agent. @returns by step the versions in the batches that old log-probs are of, and in those that the actor learns from */
async function train(directory: string, steps: number, ...overrides: string[]) {
  const made: number[][] = [];
  const learnt: number[][] = [];
  const versionsOf = (batch: Batch): number[] => {
    const mask = batch.get('responseMask');
    return [...new Set((batch.get('version') as Int32Array).filter((_, t) => mask[t] === 1))];
  };
  const agent = defineAgent({
    run: async ({ promptIds }, { model }) =>
      (await model.generate(promptIds, { maxNewTokens: 4 })).tokens.length,
  });
  const config = loadConfig(workspace.file('train.yaml'), [
    `trainer.default_local_dir=${workspace.file(directory)}`,
    `trainer.total_training_steps=${steps}`,
    'trainer.val_before_train=false',
    'trainer.test_freq=-1',
    ...overrides,
  ]);
  await new Trainer(config, {
    agent,
    engines: async (resolved, needs) => {
      const engines = await createEngines(resolved, needs);
      const actor: Engines['actor'] = Object.create(engines.actor);
      actor.computeLogProb = (batch, options) => {
        made.push(versionsOf(batch));
        return engines.actor.computeLogProb(batch, options);
      };
      actor.updatePolicy = (batch, options) => {
        learnt.push(versionsOf(batch));
        return engines.actor.updatePolicy(batch, options);
      };
      return { ...engines, actor };
    },
  }).fit();
  return { made, learnt };
}

test('tokens have the version of the step before, also in a run that is resumed', async () => {
  expect(await train('run', 2)).toEqual({ learnt: [[0], [1]], made: [[0], [1]] });
  expect(await train('run', 4)).toEqual({ learnt: [[2], [3]], made: [[2], [3]] });
}, 120_000);

test('steps that leave the policy alone make no version, also in a run that is resumed within them', async () => {
  const warmup = 'trainer.critic_warmup=3';
  expect(await train('warm', 2, warmup)).toEqual({ learnt: [], made: [[0], [0]] });
  expect(await train('warm', 4, warmup)).toEqual({ learnt: [[0], [3]], made: [[0], [3]] });
}, 120_000);
