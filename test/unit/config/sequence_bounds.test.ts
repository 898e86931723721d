// How long sequences may become, in whatever counts them.
import { roomFor } from '../../../ts/base/response_room';
import { batchArithmetic, loadConfig } from '../../../ts/config/config';
import { sequenceBounds } from '../../../ts/config/derived/sequence_bounds';
import { controllerSpec } from '../../../ts/planner/controller_request';
import { memoryWork } from '../../../ts/planner/engine_request';
import { planPools } from '../../../ts/planner/from_config';
import { SHARDED_MODEL as MODEL } from '../../helpers/sharded';
import { VISION_MODEL } from '../../helpers/vision_model';
import { configError, MINIMAL, writeConfig } from './write_config';

const MOST = 'actor_rollout_ref.rollout.max_model_len';
const GRPO = 'algorithm.adv_estimator=grpo';
const lengths = (prompt: number, response: number, most: number | null): string[] => [
  `data.max_prompt_length=${prompt}`,
  `data.max_response_length=${response}`,
  `${MOST}=${most}`,
];
const load = (overrides: readonly string[]) => loadConfig(writeConfig(MINIMAL), overrides);

test('they are those of the longest prompts and responses that there are', () => {
  for (const [prompt, response] of [
    [1, 1],
    [1, 7],
    [7, 1],
    [5, 6],
  ] as const)
    for (let most = 2; most <= prompt + response + 1; ++most) {
      const room = (length: number): number => roomFor(length, { maxNewTokens: response, maxTokens: most });
      const prompts = Array.from({ length: prompt }, (_, i) => i + 1).filter((length) => room(length) >= 1);
      expect(sequenceBounds(load(lengths(prompt, response, most)))).toEqual({
        prompt: Math.max(...prompts),
        response: Math.max(...prompts.map(room)),
        sequence: Math.max(...prompts.map((length) => length + room(length))),
      });
    }
});

const TEACHER = 'distillation.teacher_models.teacher_model';
const REWARD = 'reward.reward_model';
test.each([
  ['actor_rollout_ref.actor.ppo_max_token_len_per_gpu', []],
  ['critic.ppo_max_token_len_per_gpu', []],
  ['actor_rollout_ref.ref.log_prob_max_token_len_per_gpu', ['actor_rollout_ref.actor.use_kl_loss=true']],
  [`${REWARD}.forward_max_token_len_per_gpu`, [`${REWARD}.enable=true`, `${REWARD}.model_path=r`]],
  [`${REWARD}.max_length`, [`${REWARD}.enable=true`, `${REWARD}.model_path=r`]],
  [
    `${TEACHER}.forward_max_token_len_per_gpu`,
    [GRPO, 'distillation.enabled=true', `${TEACHER}.model_path=t`],
  ],
])('%s holds a sequence of max_model_len tokens, and no longer one', (key, keys) => {
  const overrides = [...keys, `${key}=100`];
  expect(load([...lengths(80, 60, 100), ...overrides]).data.max_prompt_length).toBe(80);
  const message = (most: number | null): string =>
    configError(() => load([...lengths(80, 60, most), ...overrides])).message;
  expect(message(101)).toMatch(/^\S+: 100 tokens .*cannot hold one sequence of .*max_model_len 101 tokens/);
  expect(message(null)).toMatch(/max_prompt_length 80 \+ data\.max_response_length 60 = 140 tokens/);
});

test('the arithmetic of batches says what bounds them', () => {
  const lineOf = (most: number | null): string | undefined =>
    batchArithmetic(load(lengths(80, 60, most))).find((line) => line.startsWith('sequence:'));
  expect(lineOf(null)).toBe('sequence: at most 80 + 60 = 140 tokens (prompt + response)');
  expect(lineOf(140)).toBe(lineOf(null));
  expect(lineOf(100)).toBe(`sequence: at most 100 tokens (prompt + response, ${MOST})`);
});

test('memory is planned for them', async () => {
  const config = load([
    ...lengths(48, 64, 72),
    'actor_rollout_ref.rollout.n=2',
    `actor_rollout_ref.model.path=${MODEL}`,
    `critic.model.path=${MODEL}`,
    `${REWARD}.enable=true`,
    `${REWARD}.model_path=${MODEL}`,
  ]);
  const [policy] = await planPools(config, { device: 'cpu', memory: null }, undefined as never);
  const sizes = { longest: 72, response: 64, prompt: 48 };
  const roles = new Map(policy.roles.map((role) => [role.name as string, role]));
  for (const name of ['actor', 'critic']) {
    expect(roles.get(name)).toMatchObject({ inference: sizes, update: sizes });
    const { inference, update } = memoryWork(roles.get(name) as never);
    expect([inference, update]).toMatchObject(Array(2).fill({ length: 72, response: 64 }));
  }
  // One place more: see RewardModel.score.
  expect(roles.get('reward model')).toMatchObject({ inference: { longest: 73, response: 65, prompt: 48 } });
  const { rollouts } = memoryWork(roles.get('actor') as never);
  expect(rollouts.map(({ prompt, response }) => [prompt, response])).toEqual([[8, 64]]);
  // All of a prompt may be images.
  const vision = load([...lengths(48, 64, 72), `actor_rollout_ref.model.path=${VISION_MODEL}`, GRPO]);
  const [reading] = await planPools(vision, { device: 'cpu', memory: null }, undefined as never);
  const [generation] = memoryWork(reading.roles[0] as never).rollouts;
  expect(generation).toMatchObject({ prompt: 48, response: 24 });
  // The trainer’s process: 64 prompts with 2 responses each.
  const { trained } = controllerSpec(config, policy);
  expect(trained).toMatchObject({ promptTokens: 64 * 48, tokens: 128 * 72, responseTokens: 128 * 64 });
});
