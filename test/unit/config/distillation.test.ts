import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { batchArithmetic, loadConfig } from '../../../ts/config/config';
import { teachersOf } from '../../../ts/config/derived/teachers';
import { policyLossOptions, teacherTokens } from '../../../ts/roles/settings';
import { ppo, why } from './verl_command';

const file = join(mkdtempSync(join(tmpdir(), 'config-')), 'run.yaml');
writeFileSync(
  file,
  `
data: { train_files: a.jsonl, train_batch_size: 4, max_prompt_length: 8, max_response_length: 8 }
actor_rollout_ref: { model: { path: m }, actor: { ppo_mini_batch_size: 4, ppo_max_token_len_per_gpu: 64 } }
algorithm: { adv_estimator: grpo }
`,
);
const load = (...overrides: string[]) => loadConfig(file, overrides);
const ON = 'distillation.enabled=true';
const TEACHER = 'distillation.teacher_models.teacher_model';
const LOSS = 'distillation.distillation_loss';

test('off by default: there is no teacher, and the policy loss has no other term', () => {
  expect(teachersOf(load())).toEqual([]);
  expect(policyLossOptions(load()).distillation).toBeNull();
});

test('on: verl’s defaults, and the packing capacity of the actor', () => {
  const config = load(ON, `${TEACHER}.model_path=t`);
  expect(teachersOf(config)).toMatchObject([{ section: TEACHER, keys: { model_path: 't' } }]);
  expect(teachersOf(config)[0]?.keys.forward_max_token_len_per_gpu).toBe(64);
  expect(policyLossOptions(config).distillation).toEqual({
    mode: 'k3',
    topK: 32,
    useTaskRewards: true,
    coef: 1,
    lossMaxClamp: null,
    logProbMinClamp: null,
    usePolicyGradient: false,
    clipRatioLow: 0.2,
    clipRatioHigh: 0.2,
  });
  expect(teacherTokens(config)).toBe(0);
  expect(teacherTokens(load(ON, `${TEACHER}.model_path=t`, `${LOSS}.loss_mode=forward_kl_topk`))).toBe(32);
  expect(batchArithmetic(config).join('\n')).toContain('teacher: micro-batches of up to 64 tokens');
});

test('teachers of other names take the place of teacher_model; one alone needs no key', () => {
  const named = (name: string, key: string) => [
    `distillation.teacher_models.${name}.key=${key}`,
    `distillation.teacher_models.${name}.model_path=m_${name}`,
  ];
  const several = load(ON, ...named('a', 'gsm8k'), ...named('b', '7'));
  expect(teachersOf(several).map(({ section, keys }) => [section, keys.key, keys.model_path])).toEqual([
    ['distillation.teacher_models.a', 'gsm8k', 'm_a'],
    ['distillation.teacher_models.b', '7', 'm_b'],
  ]);
  expect(teachersOf(several)[1]?.keys.forward_max_token_len_per_gpu).toBe(64);
  expect(batchArithmetic(several).filter((line) => line.startsWith('teacher'))).toEqual([
    'teacher a: micro-batches of up to 64 tokens',
    'teacher b: micro-batches of up to 64 tokens',
  ]);
  const one = load(ON, 'distillation.teacher_models.mine.model_path=x');
  expect(teachersOf(one).map(({ keys }) => keys.model_path)).toEqual(['x']);
});

test.each([
  [[], /teacher_model\.model_path: expected a directory because distillation\.enabled is true/],
  [[`${LOSS}.loss_mode=k1`, `${TEACHER}.model_path=t`], /the gradient of k1 does not depend on the teacher/],
  [
    [`${LOSS}.loss_mode=k3+`, `${TEACHER}.model_path=t`],
    /expected one of kl, k1, abs, mse, k2, low_var_kl, k3, forward_kl_topk, got "k3\+"/,
  ],
  [[`${LOSS}.policy_loss_mode=gspo`, `${TEACHER}.model_path=t`], /expected "vanilla", got "gspo"/],
  [
    [`${TEACHER}.model_path=t`, `${TEACHER}.forward_max_token_len_per_gpu=15`],
    /15 tokens cannot hold one sequence of .* = 16 tokens/,
  ],
  [
    [`${TEACHER}.model_path=t`, 'algorithm.rollout_correction.preset=bypass_ppo_clip_k3_rs'],
    /bypass_mode: with distillation\.enabled expected no rollout_rs/,
  ],
  [
    [`${TEACHER}.model_path=t`, 'distillation.teacher_key=task'],
    /teacher_key: expected "data_source", got "task"/,
  ],
  [
    [`${TEACHER}.model_path=t`, 'distillation.teacher_models.b.model_path=b'],
    /teacher_model: the name of a teacher that is the only one/,
  ],
  [
    [
      'distillation.teacher_models.a.model_path=a',
      'distillation.teacher_models.a.key=x',
      'distillation.teacher_models.b.model_path=b',
    ],
    /b\.key: expected a data_source because there are 2 teachers/,
  ],
  [
    ['a', 'b'].flatMap((name) => [
      `distillation.teacher_models.${name}.model_path=m`,
      `distillation.teacher_models.${name}.key=x`,
    ]),
    /b\.key: expected another data_source than distillation\.teacher_models\.a\.key, got "x"/,
  ],
  [
    ['distillation.teacher_models.a.model_pat=a'],
    /unknown key distillation\.teacher_models\.a\.model_pat: did you mean .*model_path/,
  ],
])('refused: %j', (overrides, message) => {
  expect(() => load(ON, ...overrides)).toThrow(message);
});

describe('from verl', () => {
  const OF_SERVERS = '.inference.tensor_model_parallel_size=2';

  test('one teacher: its servers have no effect', () => {
    const { config, notMapped, withoutEffect } = ppo(
      `${ON} distillation.nnodes=1 ${TEACHER}.model_path=t ${TEACHER}${OF_SERVERS} ${LOSS}.loss_mode=forward_kl_topk`,
    );
    expect(notMapped).toEqual([]);
    expect(config['distillation']).toEqual({
      enabled: true,
      distillation_loss: { loss_mode: 'forward_kl_topk' },
      teacher_models: { teacher_model: { model_path: 't' } },
    });
    for (const key of ['distillation.nnodes', `${TEACHER}.inference`])
      expect(why(withoutEffect, key)).toMatch(/in the workers of the policy, as the reference is/);
  });

  test('several, by data_source', () => {
    const keys = ['a', 'b'].map(
      (name) =>
        `+distillation.teacher_models.${name}.key=of_${name} +distillation.teacher_models.${name}.model_path=${name} +distillation.teacher_models.${name}${OF_SERVERS}`,
    );
    const { config, notMapped, withoutEffect } = ppo(`${ON} ${keys.join(' ')}`);
    expect(notMapped).toEqual([]);
    expect(config['distillation']).toEqual({
      enabled: true,
      teacher_models: { a: { key: 'of_a', model_path: 'a' }, b: { key: 'of_b', model_path: 'b' } },
    });
    expect(withoutEffect.map(({ key }) => key)).toContain('distillation.teacher_models.b.inference');
  });
});
