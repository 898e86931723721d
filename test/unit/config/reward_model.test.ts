import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { batchArithmetic, configNotes, loadConfig } from '../../../ts/config/config';
import { checkGpus, hasRewardPool, policyRanks, rewardRanks } from '../../../ts/config/derived/pools';
import { ConfigError } from '../../../ts/errors';

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

describe('a pool of its own', () => {
  const model = ['reward.reward_model.enable=true', 'reward.reward_model.model_path=rm'];
  const pool = (ranks: number) => [
    ...model,
    'reward.reward_model.enable_resource_pool=true',
    'reward.reward_model.nnodes=1',
    `reward.reward_model.n_gpus_per_node=${ranks}`,
  ];
  const rm = 'reward.reward_model';

  test("off by default, with verl's sizes; on, its ranks are counted beside those of the policy", () => {
    const shared = load(...model, 'trainer.n_gpus_per_node=4');
    expect(shared.reward.reward_model).toMatchObject({
      enable_resource_pool: false,
      n_gpus_per_node: 8,
      nnodes: 0,
    });
    expect([hasRewardPool(shared), policyRanks(shared), rewardRanks(shared)]).toEqual([false, 4, 4]);
    const own = load(...pool(3), 'trainer.n_gpus_per_node=4');
    expect([hasRewardPool(own), policyRanks(own), rewardRanks(own)]).toEqual([true, 4, 3]);
    expect(configNotes(own)).toEqual([]);
  });

  test('the older names mean the same', () => {
    const config = load(
      ...model,
      'reward_model.enable_resource_pool=true',
      'reward_model.n_gpus_per_node=2',
      'reward_model.nnodes=1',
    );
    expect(rewardRanks(config)).toBe(2);
    expect(configNotes(config)).toContainEqual({
      path: 'reward_model.nnodes',
      reason: 'is an older name of reward.reward_model.nnodes',
    });
  });

  test.each([
    [
      ['nnodes=0'],
      'nnodes',
      /nnodes: expected 1 because .*enable_resource_pool is true, got 0: 0 \(the default\)/,
    ],
    [
      ['nnodes=2'],
      'nnodes',
      /nnodes: expected 1 .* got 2: a pool lies on the machines of the run \(trainer\.nnodes\)/,
    ],
    [['n_gpus_per_node=0'], 'n_gpus_per_node', /n_gpus_per_node: expected an integer >= 1 .* got 0/],
    [
      ['n_gpus_per_node=-1'],
      'n_gpus_per_node',
      /n_gpus_per_node: expected an integer from 0 to 1024, got -1/,
    ],
    [
      ['ulysses_sequence_parallel_size=4'],
      'ulysses_sequence_parallel_size',
      /divisor of the number of workers \(2, reward\.reward_model\.nnodes x reward\.reward_model\.n_gpus_per_node\), got 4/,
    ],
    [
      ['n_gpus_per_node=4', 'model.fsdp_config.fsdp_size=3'],
      'model.fsdp_config.fsdp_size',
      /fsdp_size: expected -1 or a divisor of the number of workers \(4\), got 3/,
    ],
  ])('%j is refused, naming the key', (overrides, key, message) => {
    const given = overrides.map((override) => `${rm}.${override}`);
    // The policy's workers would take each of them.
    const attempt = () => load(...pool(2), 'trainer.n_gpus_per_node=12', ...given);
    expect(attempt).toThrow(ConfigError);
    expect(attempt).toThrow(message);
    expect(attempt).toThrow(expect.objectContaining({ path: `${rm}.${key}` }));
  });

  test('what divides its own workers need not divide those of the policy', () => {
    const own = [`${rm}.ulysses_sequence_parallel_size=2`, `${rm}.model.fsdp_config.fsdp_size=2`];
    expect(load(...pool(4), 'trainer.n_gpus_per_node=3', ...own).trainer.n_gpus_per_node).toBe(3);
    expect(() => load(...model, 'trainer.n_gpus_per_node=3', ...own)).toThrow(
      /ulysses_sequence_parallel_size: .*\(3, trainer\.nnodes x trainer\.n_gpus_per_node\)/,
    );
  });

  test('keys without effect are told', () => {
    const notes = (...overrides: string[]) =>
      configNotes(load(...overrides)).filter(({ path }) => path.startsWith(rm));
    const sizes = [`${rm}.n_gpus_per_node=2`, `${rm}.nnodes=1`];
    expect(notes(...model, ...sizes)).toEqual(
      ['n_gpus_per_node', 'nnodes'].map((key) => ({
        path: `${rm}.${key}`,
        reason: `has no effect without ${rm}.enable_resource_pool=true`,
      })),
    );
    expect(notes('reward_model.nnodes=1').map(({ path }) => path)).toEqual([`${rm}.nnodes`]);
    expect(notes(`${rm}.enable_resource_pool=true`)).toEqual([
      { path: `${rm}.enable_resource_pool`, reason: `has no effect without ${rm}.enable=true` },
    ]);
    expect(notes(...model)).toEqual([]);
    // As a resolved configuration has them.
    expect(notes(...model, `${rm}.n_gpus_per_node=8`, `${rm}.nnodes=0`)).toEqual([]);
  });

  test('GPUs: one per worker of all pools, where their number is known', () => {
    const cuda = [...pool(1), 'trainer.device=cuda'];
    const config = load(...cuda);
    for (const gpus of [null, 2, 8]) expect(() => checkGpus(config, gpus)).not.toThrow();
    expect(() => checkGpus(config, 1)).toThrow(
      /n_gpus_per_node: expected one GPU per worker, but this machine offers 1, and there are 1 of the policy and 1 of the reward/,
    );
    expect(() => checkGpus(load('trainer.device=cuda'), 0)).toThrow(/^trainer\.n_gpus_per_node: .* offers 0/);
    const eight = ['trainer.n_gpus_per_node=6', 'trainer.device=cuda'];
    expect(() => checkGpus(load(...pool(2), ...eight), 8)).not.toThrow();
    expect(() => checkGpus(load(...pool(2), ...eight), 7)).toThrow(
      /offers 7, and there are 6 of the policy and 2 of the reward/,
    );
  });

  test('batch sizes of both pools', () => {
    const n = ['actor_rollout_ref.rollout.n=4', 'trainer.n_gpus_per_node=2'];
    const lines = batchArithmetic(load(...pool(3), ...n));
    expect(lines[0]).toBe(
      'pools: policy, 2 ranks; reward, 3 ranks for the reward model alone; 5 worker processes',
    );
    expect(lines[1]).toBe('step: 4 prompts x 4 responses = 16 sequences, 8 per rank (2 ranks)');
    expect(lines).toContain(
      'reward model: 16 sequences per generation batch, about 5.3 per rank; micro-batches of up to 32768 tokens',
    );
    expect(batchArithmetic(load(...model, ...n)).join()).not.toContain('pool');
  });
});
