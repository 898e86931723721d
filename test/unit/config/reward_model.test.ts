import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { batchArithmetic, configNotes, loadConfig } from '../../../ts/config/config';

const file = join(mkdtempSync(join(tmpdir(), 'config-')), 'run.yaml');
writeFileSync(
  file,
  `
data: { train_files: a.jsonl, train_batch_size: 4, max_prompt_length: 8, max_response_length: 8 }
actor_rollout_ref: { model: { path: m }, actor: { ppo_mini_batch_size: 4 } }
algorithm: { adv_estimator: grpo }
`,
);
const load = (...overrides: string[]) => loadConfig(file, overrides);

test('off by default; the older names mean the same', () => {
  expect(load().reward.reward_model.enable).toBe(false);
  const config = load(
    'reward_model.enable=true',
    'reward_model.model.path=rm',
    'reward_model.model.input_tokenizer=tok',
    'reward_model.strategy=fsdp',
    'reward_model.micro_batch_size_per_gpu=16',
    'sandbox_fusion.url=http://a/run_code',
    'reward_model.sandbox_fusion.max_concurrent=3',
  );
  expect(config.reward.reward_model).toMatchObject({
    enable: true,
    model_path: 'rm',
    input_tokenizer: 'tok',
    max_length: null,
    truncation: 'error',
  });
  expect(config.reward.sandbox_fusion).toEqual({
    url: 'http://a/run_code',
    max_concurrent: 3,
    memory_limit_mb: 1024,
  });
  expect(configNotes(config).map(({ path }) => path)).toEqual(
    expect.arrayContaining([
      'reward_model.enable',
      'reward_model.model.path',
      'reward_model.micro_batch_size_per_gpu',
    ]),
  );
});

test.each([
  [
    ['reward.reward_model.enable=true'],
    /model_path: expected a directory because reward\.reward_model\.enable/,
  ],
  [
    [
      'reward.reward_model.enable=true',
      'reward.reward_model.model_path=rm',
      'reward.reward_model.max_length=15',
    ],
    /max_length: 15 tokens cannot hold .* 8 \+ .* 8 = 16 tokens/,
  ],
  [
    [
      'reward.reward_model.enable=true',
      'reward.reward_model.model_path=rm',
      'reward.reward_model.forward_max_token_len_per_gpu=12',
    ],
    /forward_max_token_len_per_gpu: 12 tokens/,
  ],
  [['reward.reward_model.enable_resource_pool=true'], /shares the workers/],
  [['reward.sandbox.isolation=none'], /one of namespaces, process/],
])('%j is refused', (overrides, message) => {
  expect(() => load(...overrides)).toThrow(message);
});

test('truncation allows a shorter max_length', () => {
  const rm = ['reward.reward_model.enable=true', 'reward.reward_model.model_path=rm'];
  const config = load(...rm, 'reward.reward_model.max_length=15', 'reward.reward_model.truncation=left');
  expect(config.reward.reward_model.max_length).toBe(15);
  expect(batchArithmetic(config)).toContain('reward model: micro-batches of up to 32768 tokens');
});
