import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import {
  configNotes,
  describeConfig,
  loadConfig,
  loadSftConfig,
  type ResolvedConfig,
  type ResolvedSftConfig,
} from '../../../ts/config/config';
import type { WorkerGroupOptions } from '../../../ts/controller/group_options';
import { WorkerGroup } from '../../../ts/controller/worker_group';
import { type LoraOptions, resolveLoraOptions } from '../../../ts/engine/lora_options';
import { planLora } from '../../../ts/engine/plan_lora';
import { rewardModelRole } from '../../../ts/planner/reward_model_role';
import { roleSpec } from '../../../ts/planner/role_parts';
import { engineOptions, trainedOptions } from '../../../ts/roles/role_options';
import {
  actorSettings,
  criticSettings,
  type RoleSettings,
  referenceSettings,
  rewardModelSettings,
  sftSettings,
} from '../../../ts/roles/role_settings';
import { rolloutOptions } from '../../../ts/roles/settings';
import { createEngines } from '../../../ts/trainer/engines';
import { SftTrainer } from '../../../ts/trainer/sft_trainer';
import { FakeGroup } from '../actor/fake_group';

const model = join(__dirname, '../../fixtures/conformance/models/llama_gqa/actor');
const value = join(__dirname, '../../fixtures/conformance/models/llama_gqa/critic');
const yaml = (text: string): string => {
  const file = join(mkdtempSync(join(tmpdir(), 'roles-')), 'run.yaml');
  writeFileSync(file, text);
  return file;
};
const ppo = (...overrides: string[]): ResolvedConfig =>
  loadConfig(
    yaml(`
data: { train_files: none.jsonl, train_batch_size: 8, max_prompt_length: 4, max_response_length: 4 }
actor_rollout_ref: { model: { path: ${model} }, actor: { ppo_mini_batch_size: 4 } }
critic: { model: { path: ${value} } }
reward: { reward_model: { model_path: ${value} } }
trainer: { n_gpus_per_node: 4, device: cpu }`),
    overrides,
  );
const sft = (...overrides: string[]): ResolvedSftConfig =>
  loadSftConfig(
    yaml(`{ data: { train_files: none.jsonl }, model: { path: ${model} }, trainer: { device: cpu } }`),
    overrides,
  );

const group = new FakeGroup({}, 4).asGroup();

test('a micro-batch has the tokens of all ranks that share it, for every role, and so it is planned', () => {
  const config = ppo(
    'actor_rollout_ref.actor.ulysses_sequence_parallel_size=2',
    'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100',
    'actor_rollout_ref.ref.ulysses_sequence_parallel_size=1',
    'actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=300',
    'critic.ulysses_sequence_parallel_size=4',
    'critic.ppo_max_token_len_per_gpu=50',
    'reward.reward_model.ulysses_sequence_parallel_size=2',
    'reward.reward_model.forward_max_token_len_per_gpu=70',
  );
  const roles = [
    actorSettings(config),
    referenceSettings(config) as NonNullable<ReturnType<typeof referenceSettings>>,
    criticSettings(config),
    rewardModelSettings(config),
  ];
  const options = roles.map((role) => engineOptions(role, group, config));
  expect(options.map((o) => [o.name, o.maxTokensPerMicroBatch, o.parallel?.ulysses])).toEqual([
    ['actor', 200, 2],
    ['ref', 300, 1],
    ['critic', 200, 4],
    ['reward_model', 140, 2],
  ]);
  const target = { device: 'cpu', worldSize: 4 } as const;
  const planned = roles.map((role) => roleSpec(role, target));
  expect(planned.map(({ name, capacity, ulysses }) => [name, capacity, ulysses])).toEqual([
    ['actor', 100, 2],
    ['reference', 300, 1],
    ['critic', 50, 4],
    ['reward model', 70, 2],
  ]);
  expect(rewardModelRole(config, target)).toMatchObject({ capacity: 71, uncounted: 1 });
  const tuned = sft(
    'data.max_token_len_per_gpu=100',
    'ulysses_sequence_parallel_size=2',
    'trainer.n_gpus_per_node=2',
  );
  expect(engineOptions(sftSettings(tuned), group, tuned).maxTokensPerMicroBatch).toBe(200);
});

test('what the trainer shards and offloads is what is planned', () => {
  const fsdp = 'actor_rollout_ref.actor.fsdp_config';
  const config = ppo(
    `${fsdp}.fsdp_size=2`,
    `${fsdp}.reshard_after_forward=false`,
    `${fsdp}.optimizer_offload=true`,
    `${fsdp}.forward_prefetch=true`,
    'actor_rollout_ref.ref.fsdp_config.param_offload=true',
    'critic.model.fsdp_config.fsdp_size=1',
  );
  const target = { device: 'cuda', worldSize: 4 } as const;
  const actor = actorSettings(config);
  expect(engineOptions(actor, group, config, 'mini_batch')).toMatchObject({
    parallel: { fsdpSize: 2, sharding: 'shard_grad_op', prefetch: true, reduce: 'mini_batch' },
    offload: { params: false, grads: false, optimizer: true },
  });
  expect(roleSpec(actor, target)).toMatchObject({
    dtype: 'bfloat16',
    strategy: 'shard_grad_op',
    shardSize: 2,
    placement: { prefetch: true, offload: { parameters: false, gradients: false, moments: true } },
  });
  const reference = referenceSettings(config) as NonNullable<ReturnType<typeof referenceSettings>>;
  expect(roleSpec(reference, target)).toMatchObject({
    strategy: 'shard_grad_op',
    placement: { prefetch: false, offload: { parameters: true, gradients: false, moments: false } },
  });
  expect(roleSpec(criticSettings(config), target)).toMatchObject({ strategy: 'no_shard', shardSize: null });
});

test('only a role that learns has an optimiser; with LoRA the reference is the actor', () => {
  const config = ppo('actor_rollout_ref.actor.optim.lr=0.5', 'actor_rollout_ref.actor.grad_clip=0');
  expect(trainedOptions(actorSettings(config), 9)).toMatchObject({
    optim: { lr: 0.5, gradClip: Number.MAX_VALUE, totalSteps: 9 },
  });
  expect(referenceSettings(config)?.optim).toBeNull();
  expect(referenceSettings(ppo('actor_rollout_ref.model.lora_rank=2'))).toBeNull();
});

test('masters in bfloat16 are computed with as they are, in the plan too, and the reference beside them', () => {
  const config = ppo(
    'actor_rollout_ref.actor.fsdp_config.model_dtype=bf16',
    'critic.model.fsdp_config.model_dtype=fp32',
  );
  const actor = actorSettings(config);
  expect(trainedOptions(actor, 9).masterDtype).toBe('bfloat16');
  expect(engineOptions(actor, group, config).dtype).toBe('bfloat16');
  expect(roleSpec(actor, { device: 'cpu', worldSize: 4 })).toMatchObject({
    dtype: 'bfloat16',
    masterDtype: 'bfloat16',
  });
  expect(referenceSettings(config)).toMatchObject({ dtype: 'bfloat16', optim: null });
  expect(trainedOptions(criticSettings(config), 9)).not.toHaveProperty('masterDtype');
  expect(trainedOptions(sftSettings(sft('engine.model_dtype=bfloat16')), 9).masterDtype).toBe('bfloat16');
});

test('gradients are sent in bfloat16 where mixed_precision says so, with either strategy, and the plan knows', () => {
  const key = 'fsdp_config.mixed_precision.reduce_dtype';
  const parallelOf = (config: ResolvedConfig) =>
    engineOptions(actorSettings(config), group, config).parallel as { reduceDtype?: string };
  const config = ppo(`actor_rollout_ref.actor.${key}=bf16`, `critic.model.${key}=fp32`);
  expect(parallelOf(config).reduceDtype).toBe('bfloat16');
  expect(roleSpec(actorSettings(config), { device: 'cpu', worldSize: 4 }).placement.reduceDtype).toBe(
    'bfloat16',
  );
  expect(roleSpec(criticSettings(config), { device: 'cpu', worldSize: 4 }).placement.reduceDtype).toBe(
    'float32',
  );
  expect(parallelOf(ppo())).not.toHaveProperty('reduceDtype');
  const megatron = ppo(
    'actor_rollout_ref.actor.strategy=megatron',
    `actor_rollout_ref.actor.${key}=bfloat16`,
  );
  expect(parallelOf(megatron).reduceDtype).toBe('bfloat16');
  const supervised = sftSettings(sft('engine.mixed_precision.reduce_dtype=bf16'));
  expect(supervised.fsdp.mixed_precision?.reduce_dtype).toBe('bf16');
});

test('LoRA by the names of Megatron is LoRA by ours', () => {
  const lora = 'actor_rollout_ref.model.lora';
  const config = ppo(`${lora}.rank=4`, `${lora}.target_modules=[linear_qkv,linear_fc1]`);
  const modules = ['q_proj', 'k_proj', 'v_proj', 'gate_proj', 'up_proj'];
  expect(trainedOptions(actorSettings(config), 9).lora).toMatchObject({
    rank: 4,
    alpha: 32,
    targetModules: modules,
  });
  expect(referenceSettings(config)).toBeNull();
  expect(config.actor_rollout_ref.model).toMatchObject({
    lora_rank: 4,
    lora_alpha: 32,
    target_modules: modules,
  });
  // What is written down is read again.
  expect(loadConfig(yaml(describeConfig(config)))).toEqual(config);
  expect(trainedOptions(actorSettings(ppo(`${lora}.rank=4`, `${lora}.adapter_path=a`)), 9).lora).toEqual({
    adapter: 'a',
    rank: 4,
  });
  const small = ppo('critic.model.lora.rank=2', 'critic.model.lora.alpha=8', `${lora}.alpha=9`);
  expect(trainedOptions(criticSettings(small), 9).lora).toMatchObject({ rank: 2, alpha: 8 });
  expect(trainedOptions(actorSettings(small), 9).lora).toBeUndefined();
  const canonical = sft(
    'model.lora.type=canonical_lora',
    'model.lora.rank=2',
    'model.lora.target_modules=[linear_q]',
  );
  expect(canonical.model).toMatchObject({ lora_rank: 2, target_modules: ['q_proj'] });
});

test.each(['gpt2', 'mixtral', 'qwen3_moe'])(
  'LoRA by the names of Megatron is on every linear layer of %s where no layer is left out',
  (name) => {
    const shape = loadModelDirectory(join(model, '../..', name, 'actor'), 'lm');
    const planned = (...keys: string[]): string[] => {
      const config = ppo(...keys.map((key) => `actor_rollout_ref.model.${key}`));
      const { lora } = trainedOptions(actorSettings(config), 9);
      return planLora('actor', shape, resolveLoraOptions('actor', lora as LoraOptions)).targetModules;
    };
    const all = planned('lora_rank=4');
    expect(planned('lora.rank=4')).toEqual(all);
    for (const list of [
      'linear_fc2,linear_fc1,linear_proj,linear_qkv',
      'linear_q,linear_k,linear_v,linear_proj,linear_fc1_up,linear_fc1_gate,linear_fc2',
    ])
      expect(planned('lora.rank=4', `lora.target_modules=[${list}]`)).toEqual(all);
    expect(() => planned('lora.rank=4', 'lora.target_modules=[linear_fc1]')).toThrow(
      /'gate_proj' matches no/,
    );
  },
);

test('what learns is saved with the tokenizer that its data went through', () => {
  const config = ppo(
    'actor_rollout_ref.model.tokenizer_path=/other',
    'actor_rollout_ref.model.custom_chat_template=mine',
  );
  const used = { directory: '/other', chatTemplate: 'mine' };
  expect(trainedOptions(actorSettings(config), 9).savedTokenizer).toEqual(used);
  expect(trainedOptions(criticSettings(config), 9).savedTokenizer).toEqual(used);
  expect(trainedOptions(criticSettings(ppo()), 9).savedTokenizer).toEqual({
    directory: model,
    chatTemplate: null,
  });
  const tuned = sft('model.tokenizer_path=/other', 'model.custom_chat_template=mine');
  expect(trainedOptions(sftSettings(tuned), 9).savedTokenizer).toEqual(used);
});

describe('time-outs of workers', () => {
  const launched: WorkerGroupOptions[] = [];
  beforeEach(() => {
    launched.length = 0;
    jest.spyOn(WorkerGroup, 'launch').mockImplementation(async (options) => {
      launched.push(options);
      throw new Error('not started here');
    });
  });
  afterEach(() => void jest.restoreAllMocks());
  const keys = ['startup=90', 'silence=20.5', 'close=7'].map((key) => `trainer.worker_timeouts.${key}`);
  const expected = {
    startupTimeoutMs: 90_000,
    deadTimeoutMs: 20_500,
    closeTimeoutMs: 7_000,
    collectiveTimeoutMs: 33_000,
  };

  test('of troupe train', async () => {
    const config = ppo(...keys, 'actor_rollout_ref.nccl_timeout=33', 'trainer.num_threads=3');
    const needs = {
      reference: false,
      critic: false,
      rewardModel: false,
      totalSteps: 1,
      device: 'cpu',
    } as const;
    await expect(createEngines(config, needs)).rejects.toThrow('not started here');
    expect(launched).toMatchObject([{ worldSize: 4, device: 'cpu', numThreads: 3, ...expected }]);
  });

  test('of troupe sft', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'roles-'));
    const config = sft(
      ...keys,
      'trainer.nccl_timeout=33',
      'trainer.n_gpus_per_node=2',
      'trainer.num_threads=3',
      `trainer.default_local_dir=${directory}`,
    );
    const train = {
      batchesPerEpoch: 1,
      next: async () => ({ examples: [], epoch: 0 }),
      state: () => 0,
      restore: () => {},
    };
    const trainer = new SftTrainer(config, { data: async () => ({ train, validation: [] }) });
    await expect(trainer.fit()).rejects.toThrow('not started here');
    expect(launched).toMatchObject([{ worldSize: 2, device: 'cpu', numThreads: 3, ...expected }]);
  });

  test('without keys: those of before', async () => {
    const needs = {
      reference: false,
      critic: false,
      rewardModel: false,
      totalSteps: 1,
      device: 'cpu',
    } as const;
    await expect(createEngines(ppo(), needs)).rejects.toThrow('not started here');
    const seconds = { startupTimeoutMs: 60_000, deadTimeoutMs: 10_000, closeTimeoutMs: 5_000 };
    expect(launched).toMatchObject([{ ...seconds, collectiveTimeoutMs: 600_000 }]);
  });
});

test.each([
  ['-1', 3],
  ['0', 3],
  ['2', 2],
])('lr_warmup_steps %s: %d of 30 steps with a ratio of 0.1', (steps, expected) => {
  const warmup = [`optim.lr_warmup_steps=${steps}`, 'optim.lr_warmup_steps_ratio=0.1'];
  const actor = ppo(...warmup.map((key) => `actor_rollout_ref.actor.${key}`));
  expect(trainedOptions(actorSettings(actor), 30).optim?.warmupSteps).toBe(expected);
  expect(trainedOptions(sftSettings(sft(...warmup)), 30).optim?.warmupSteps).toBe(expected);
});

test('the keys of Megatron are those of the strategy megatron', () => {
  const config = ppo(
    'actor_rollout_ref.actor.strategy=megatron',
    'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2',
    'actor_rollout_ref.actor.megatron.optimizer_offload=true',
    'critic.strategy=megatron',
    'critic.megatron.use_distributed_optimizer=false',
    'critic.megatron.dtype=float32',
  );
  const reference = referenceSettings(config) as NonNullable<ReturnType<typeof referenceSettings>>;
  const [actor, ref, critic] = [actorSettings(config), reference, criticSettings(config)].map((role) =>
    engineOptions(role, group, config),
  );
  expect(actor?.parallel).toMatchObject({
    tp: 2,
    sequenceParallel: true,
    sharding: 'shard_grad_op',
    fsdpSize: -1,
  });
  expect(actor?.offload).toEqual({ params: false, grads: false, optimizer: true });
  expect(ref?.parallel).toMatchObject({ tp: 2, sequenceParallel: true });
  expect(ref?.offload).toEqual({ params: false, grads: false, optimizer: false });
  expect(critic?.parallel).toMatchObject({ tp: 1, sequenceParallel: false, fsdpSize: 1 });
  expect(critic?.dtype).toBe('float32');
  const target = { device: 'cpu', worldSize: 4 } as const;
  expect(roleSpec(actorSettings(config), target).layout.parallel).toEqual({
    tp: 2,
    cp: 1,
    sequenceParallel: true,
    ep: 1,
  });
});

test('a note says that no step is kept where none is named', () => {
  const notes = (...keys: string[]) => configNotes(ppo(...keys)).map(({ path }) => path);
  expect(notes('skip.rollout.enable=true')).toContain('skip.rollout.enable');
  expect(notes('skip.rollout.enable=true', 'skip.rollout.steps=[1]')).not.toContain('skip.rollout.enable');
  expect(notes('skip.rollout.steps=[]')).not.toContain('skip.rollout.enable');
});

test('ranks decode together under FSDP; under Megatron, and where servers generate, a note says why the key does not count', () => {
  const key = 'actor_rollout_ref.rollout.tensor_model_parallel_size';
  const decoding = (...keys: string[]) => {
    const config = ppo('trainer.n_gpus_per_node=4', ...keys);
    const notes = configNotes(config).filter(({ path }) => path === key);
    return [rolloutOptions(config).tensorParallel, ...notes.map(({ reason }) => reason)];
  };
  const megatron = [
    'actor_rollout_ref.actor.strategy=megatron',
    'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4',
  ];
  const server = ['actor_rollout_ref.rollout.name=vllm', 'actor_rollout_ref.rollout.mode=server'];
  expect(decoding()).toEqual([1]);
  expect(decoding(`${key}=4`, 'trainer.nnodes=2')).toEqual([4]);
  expect(decoding(`${key}=3`, 'trainer.nnodes=3')).toEqual([
    3,
    expect.stringMatching(/of 3 neighbouring workers some are on two machines \(4 on each\)/),
  ]);
  expect(decoding(`${key}=2`)).toEqual([2]);
  expect(decoding(`${key}=4`, ...megatron)).toEqual([1]);
  expect(decoding(`${key}=2`, ...megatron)).toEqual([
    1,
    'under strategy megatron generation is laid out as training (4)',
  ]);
  expect(decoding(`${key}=8`, ...server, 'actor_rollout_ref.rollout.server.addresses=[http://a:1]')).toEqual([
    1,
    'the servers were started by somebody else',
  ]);
});

test('what Megatron recomputes: whole blocks, attention alone, or what the model says', () => {
  const section = 'actor_rollout_ref.actor.megatron.override_transformer_config';
  const recomputes = (...keys: string[]) => {
    const config = ppo('critic.megatron.override_transformer_config.recompute_granularity=full', ...keys);
    return [actorSettings(config), criticSettings(config)].map(
      ({ gradientCheckpointing }) => gradientCheckpointing,
    );
  };
  const advice = (...keys: string[]) => actorSettings(ppo(...keys)).keys.gradientCheckpointing;
  const megatron = ['actor_rollout_ref.actor.strategy=megatron', 'critic.strategy=megatron'];
  const off = ['actor_rollout_ref.model', 'critic.model'].map(
    (model) => `${model}.enable_gradient_checkpointing=false`,
  );
  expect(recomputes(...megatron)).toEqual([true, true]);
  expect(recomputes(...megatron, ...off)).toEqual([false, true]);
  expect(recomputes(...megatron, `${section}.recompute_granularity=selective`)).toEqual([false, true]);
  expect(recomputes(...megatron, ...off, `${section}.recompute_granularity=full`)).toEqual([true, true]);
  const selective = `${section}.recompute_granularity=selective`;
  expect(advice(...megatron, selective)).toBe(`${section}.recompute_granularity=full`);
  const ofTheModel = 'actor_rollout_ref.model.enable_gradient_checkpointing=true';
  expect([advice(...megatron), advice(selective)]).toEqual([ofTheModel, ofTheModel]);
  expect(() => recomputes(...megatron, `${section}.recompute_granularity=partial`)).toThrow(
    /recompute_granularity.*full.*selective/,
  );
});

test('a pipeline in configurations', async () => {
  const section = 'actor_rollout_ref.actor.megatron';
  const config = ppo(
    'actor_rollout_ref.actor.strategy=megatron',
    `${section}.pipeline_model_parallel_size=2`,
    `${section}.virtual_pipeline_model_parallel_size=2`,
    `${section}.override_transformer_config.account_for_embedding_in_pipeline_split=true`,
    'critic.strategy=megatron',
    'critic.megatron.pipeline_model_parallel_size=2',
    'critic.megatron.expert_model_parallel_size=2',
    'critic.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=1',
  );
  const of = (role: RoleSettings) => engineOptions(role, group, config).parallel;
  expect(of(actorSettings(config))).toMatchObject({ tp: 1, pp: 2, vpp: 2, countEmbedding: true });
  expect(of(referenceSettings(config) as RoleSettings)).toMatchObject({ pp: 2, vpp: 2 });
  expect(of(criticSettings(config))).toMatchObject({ pp: 2, vpp: 1, ep: 2, lastStageLayers: 1 });
  expect(() => roleSpec(criticSettings(config), { device: 'cpu', worldSize: 4 })).toThrow(
    /^critic\.megatron\.expert_model_parallel_size: the model in .* has no experts that 2 workers could share: expected 1/,
  );
  expect(() => roleSpec(actorSettings(config), { device: 'cpu', worldSize: 4 })).toThrow(
    /parallel\.pp 2 x parallel\.vpp 2: 2 layers do not make 4 parts/,
  );
});

test('a layout that the model does not allow is refused before a worker is started', async () => {
  const config = ppo(
    'actor_rollout_ref.actor.strategy=megatron',
    'actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=4',
  );
  const launcher = {
    start: () => {
      throw new Error('a worker was started');
    },
  };
  const needs = {
    reference: false,
    critic: false,
    rewardModel: false,
    totalSteps: 1,
    device: 'cpu' as const,
  };
  await expect(createEngines(config, { ...needs, launcher })).rejects.toThrow(
    /actor\.megatron\] parallel\.pp 4 x parallel\.vpp 1: \d layers do not make 4 parts/,
  );
});

test.each([
  [
    ['actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2'],
    /tensor_model_parallel_size: expected actor_rollout_ref\.actor\.strategy megatron beside 2, got fsdp/,
  ],
  [
    [
      'actor_rollout_ref.actor.strategy=megatron',
      'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=3',
    ],
    /expected a divisor of the number of workers \(4, .*got 3/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.tensor_model_parallel_size=2',
      'critic.ulysses_sequence_parallel_size=2',
    ],
    /expected 1 beside critic\.ulysses_sequence_parallel_size 2, got 2/,
  ],
  [
    ['critic.megatron.pipeline_model_parallel_size=2'],
    /pipeline_model_parallel_size: expected critic\.strategy megatron beside 2, got fsdp/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.pipeline_model_parallel_size=4',
      'critic.megatron.tensor_model_parallel_size=2',
    ],
    /expected tensor_model_parallel_size \(2\) x pipeline_model_parallel_size \(4\) to divide the number of workers \(4,/,
  ],
  [
    ['critic.strategy=megatron', 'critic.megatron.virtual_pipeline_model_parallel_size=2'],
    /expected pipeline_model_parallel_size of at least 2 beside 2, got 1/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.pipeline_model_parallel_size=2',
      'critic.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=1',
      'critic.megatron.override_transformer_config.account_for_loss_in_pipeline_split=true',
    ],
    /account_for_loss_in_pipeline_split: expected false beside num_layers_in_last_pipeline_stage/,
  ],
  [
    ['critic.strategy=megatron', 'critic.model.fsdp_config.param_offload=true'],
    /critic\.model\.fsdp_config\.param_offload: not read beside strategy megatron: give critic\.megatron\.param_offload/,
  ],
  [
    ['critic.strategy=megatron', 'critic.model.fsdp_config.model_dtype=bf16'],
    /critic\.model\.fsdp_config\.model_dtype: not read beside strategy megatron, whose master weights are float32/,
  ],
  [
    ['actor_rollout_ref.actor.strategy=megatron', 'actor_rollout_ref.actor.fsdp_config.fsdp_size=2'],
    /actor\.fsdp_config\.fsdp_size: not read beside strategy megatron: .*use_distributed_optimizer/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.tensor_model_parallel_size=2',
      'critic.megatron.expert_model_parallel_size=4',
    ],
    /expert_model_parallel_size: expected a divisor of the 2 workers that share the data \(4 \/ tensor_model_parallel_size 2/,
  ],
  [
    ['critic.megatron.context_parallel_size=2'],
    /context_parallel_size: expected critic\.strategy megatron beside 2, got fsdp/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.tensor_model_parallel_size=2',
      'critic.megatron.context_parallel_size=4',
    ],
    /context_parallel_size: expected a divisor of the 2 workers that have the same part .*tensor_model_parallel_size 2.*, got 4/,
  ],
  [
    [
      'critic.strategy=megatron',
      'critic.megatron.context_parallel_size=2',
      'critic.ulysses_sequence_parallel_size=2',
    ],
    /context_parallel_size: expected 1 beside critic\.ulysses_sequence_parallel_size 2, got 2/,
  ],
  [
    ['critic.strategy=megatron', 'critic.megatron.dynamic_context_parallel=true'],
    /dynamic_context_parallel: .*changes from batch to batch/,
  ],
])('%s', (overrides, message) => {
  expect(() => ppo('algorithm.adv_estimator=gae', ...overrides)).toThrow(message);
});

test('context parallelism is a part of the layout, and a micro-batch has its ranks times as many tokens', () => {
  const key = 'actor_rollout_ref.actor';
  const config = ppo(
    `${key}.strategy=megatron`,
    `${key}.megatron.context_parallel_size=2`,
    `${key}.ppo_max_token_len_per_gpu=700`,
    'actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=600',
  );
  const actor = engineOptions(actorSettings(config), group, config);
  expect(actor).toMatchObject({ parallel: { tp: 1, cp: 2 }, maxTokensPerMicroBatch: 1400 });
  const reference = engineOptions(referenceSettings(config) as RoleSettings, group, config);
  expect(reference).toMatchObject({ parallel: { cp: 2 }, maxTokensPerMicroBatch: 1200 });
  expect(engineOptions(criticSettings(config), group, config).parallel).not.toHaveProperty('cp');
});

test('positions in place of those of config.json reach the roles that use the model', () => {
  const key = 'model.override_config.max_position_embeddings';
  const config = ppo(`actor_rollout_ref.${key}=9000`, `critic.${key}=8000`);
  const of = (role: RoleSettings) => engineOptions(role, group, config).maxPositionEmbeddings;
  expect(of(actorSettings(config))).toBe(9000);
  expect(of(referenceSettings(config) as RoleSettings)).toBe(9000);
  expect(of(criticSettings(config))).toBe(8000);
  expect(of(actorSettings(ppo()))).toBeUndefined();
});
