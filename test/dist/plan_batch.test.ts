// `troupe plan` of what a batch has beside tokens and a few numbers for each of them: a teacher's tokens, choices of experts.
import type { Plan } from '../../ts/planner/plan';
import { engines, file, llama, report } from '../helpers/planned';

afterAll(() => engines.close());

const small = {
  ...llama,
  hidden_size: 64,
  intermediate_size: 128,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  vocab_size: 1000,
};
file('small/config.json', JSON.stringify(small));
file(
  'experts/config.json',
  JSON.stringify({ ...small, model_type: 'mixtral', num_local_experts: 8, num_experts_per_tok: 2 }),
);
/** 64 prompts with 4 responses each, in one mini-batch of two. */
const SIZES = [
  'trainer.device=cpu',
  'trainer.num_threads=1',
  'data.train_batch_size=64',
  'actor_rollout_ref.actor.ppo_mini_batch_size=32',
  'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048',
];
const SEQUENCES = 64 * 4;
const [LENGTH, RESPONSE] = [1024, 512];

const planOf = (model: string, ...overrides: string[]): Promise<Plan> =>
  report([`actor_rollout_ref.model.path=${model}`, ...SIZES, ...overrides]);
const memoryOf = (plan: Plan, role: string, verb: string) =>
  (plan.phases.find((phase) => phase.role === role && phase.verb === verb) as Plan['phases'][number]).memory;

test('forward_kl_topk: arrays of a micro-batch in teacher and actor, and those of the whole batch', async () => {
  const distilled = (topk: number): Promise<Plan> =>
    planOf(
      'small',
      'distillation.enabled=true',
      'distillation.teacher_models.teacher_model.model_path=small',
      'distillation.distillation_loss.loss_mode=forward_kl_topk',
      `distillation.distillation_loss.topk=${topk}`,
    );
  const [few, many] = [await distilled(32), await distilled(160)];
  const more = (role: string, verb: string, part: 'activations' | 'batch'): number =>
    memoryOf(many, role, verb)[part] - memoryOf(few, role, verb)[part];
  // Two sequences in a micro-batch; what predicts responses is rounded up to tiles.
  expect(more('actor', 'update', 'activations')).toBeGreaterThanOrEqual(128 * 13 * 2 * RESPONSE);
  expect(more('teacher', 'compute_log_prob', 'activations')).toBeGreaterThanOrEqual(128 * 8 * 2 * RESPONSE);
  for (const [role, verb] of [
    ['actor', 'update'],
    ['teacher', 'compute_log_prob'],
  ] as const)
    expect(more(role, verb, 'batch')).toBe(128 * 8 * SEQUENCES * RESPONSE);
  expect(memoryOf(many, 'actor', 'compute_log_prob').batch).toBe(0);
});

test('router replay: choices of experts of all tokens, where they are recorded and where they are given', async () => {
  const bytes = async (...overrides: string[]) => {
    const plan = await planOf('experts', ...overrides);
    return ['compute_log_prob', 'update'].map((verb) => memoryOf(plan, 'actor', verb).batch);
  };
  // Two of eight experts in each layer, one byte each.
  const all = small.num_hidden_layers * 2 * SEQUENCES * LENGTH;
  expect(await bytes()).toEqual([0, 0]);
  expect(await bytes('actor_rollout_ref.actor.router_replay.mode=R2')).toEqual([all, all]);
  expect(
    await bytes(
      'actor_rollout_ref.actor.router_replay.mode=R3',
      'actor_rollout_ref.rollout.enable_rollout_routing_replay=true',
    ),
  ).toEqual([all, all]);
});

test('losses of routers are in the update that is asked for', async () => {
  const total = async (...overrides: string[]): Promise<number> => {
    const plan = await planOf('experts', ...overrides);
    return plan.phases.find(({ verb }) => verb === 'update')?.total as number;
  };
  const z = 'actor_rollout_ref.actor.router_z_loss_coef=0.001';
  expect(await total(z, 'actor_rollout_ref.actor.router_aux_loss_coef=0.001')).toBeGreaterThanOrEqual(
    await total(),
  );
  await expect(planOf('small', z)).rejects.toThrow('router_z_loss_coef');
});
