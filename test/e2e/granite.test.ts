import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadConfig, Trainer } from '../../ts/index';
import { Workspace, writeModel } from '../helpers/e2e_workspace';

// PPO with actor, critic, reference and generation on a model whose embeddings, layers and logits have factors.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

const FACTORS = {
  embedding_multiplier: 3,
  attention_multiplier: 0.3,
  residual_multiplier: 0.5,
  logits_scaling: 0.7,
};

test.each([
  ['one worker', []],
  [
    'two workers that share matrices and decode together',
    [
      'trainer.n_gpus_per_node=2',
      'actor_rollout_ref.actor.strategy=megatron',
      'critic.strategy=megatron',
      'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2',
      'critic.megatron.tensor_model_parallel_size=2',
      'actor_rollout_ref.rollout.tensor_model_parallel_size=2',
    ],
  ],
])('Granite on %s', async (layout, overrides) => {
  const model = await writeModel(workspace.file('granite'), {
    config: { architectures: ['GraniteForCausalLM'], model_type: 'granite', ...FACTORS },
  });
  const directory = workspace.file(layout);
  const config = loadConfig(workspace.file('train.yaml'), [
    `actor_rollout_ref.model.path=${model}`,
    'actor_rollout_ref.rollout.temperature=0.8',
    'algorithm.adv_estimator=gae',
    `critic.model.path=${model}`,
    'trainer.total_training_steps=3',
    'trainer.logger=[]',
    `trainer.default_local_dir=${directory}`,
    ...overrides,
  ]);
  await new Trainer(config, {}).fit();
  const steps = readFileSync(join(directory, 'metrics.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, number>)
    .filter((step) => 'actor/grad_norm' in step);
  expect(steps).toHaveLength(3);
  for (const step of steps) {
    expect(step['training/rollout_probs_diff_max']).toBeLessThan(1e-5);
    expect(step['actor/grad_norm']).toBeGreaterThan(1e-3);
    expect(step['critic/grad_norm']).toBeGreaterThan(1e-3);
  }
  const saved = JSON.parse(readFileSync(join(directory, 'final_model', 'config.json'), 'utf8')) as object;
  expect(saved).toMatchObject({ model_type: 'granite', architectures: ['GraniteForCausalLM'], ...FACTORS });
});
