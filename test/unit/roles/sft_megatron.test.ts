import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  batchArithmetic,
  configNotes,
  loadSftConfig,
  type ResolvedSftConfig,
} from '../../../ts/config/config';
import { planSft } from '../../../ts/planner/from_config';
import { checkSftModel } from '../../../ts/roles/check_models';
import { engineOptions, trainedOptions } from '../../../ts/roles/role_options';
import { sftSettings } from '../../../ts/roles/role_settings';
import { checkRouterKeys } from '../../../ts/roles/router_keys';
import { SftTrainer } from '../../../ts/trainer/sft_trainer';
import { FakeGroup } from '../actor/fake_group';

// verl's keys of its Megatron engine below `engine` of a supervised run. What is computed with them: test/dist/sft_layouts.test.ts.

const MODELS = join(__dirname, '../../fixtures/conformance/models');
const file = join(mkdtempSync(join(tmpdir(), 'sft-megatron-')), 'run.yaml');
writeFileSync(
  file,
  `{ data: { train_files: none.jsonl, train_batch_size: 8, max_length: 16, max_token_len_per_gpu: 20 },
     model: { path: ${MODELS}/llama_gqa/actor }, trainer: { n_gpus_per_node: 4, device: cpu } }`,
);
const MEGATRON = 'engine.strategy=megatron';
/** Keys without a section are those of the engine. */
const sft = (...overrides: string[]): ResolvedSftConfig =>
  loadSftConfig(
    file,
    overrides.map((override) => (/^\w+=/.test(override) ? `engine.${override}` : override)),
  );
const group = new FakeGroup({}, 4).asGroup();
const engine = (config: ResolvedSftConfig) => engineOptions(sftSettings(config), group, config);
const [tp, pp, vpp, cp, ep, etp] = [
  'tensor_model_parallel_size',
  'pipeline_model_parallel_size',
  'virtual_pipeline_model_parallel_size',
  'context_parallel_size',
  'expert_model_parallel_size',
  'expert_tensor_parallel_size',
];
const ENDS = 'engine.override_transformer_config';

test('without the strategy nothing of it is read, and all is as it was', () => {
  const config = sft('sequence_parallel=false', `${ENDS}.recompute_granularity=selective`);
  expect(engine(config)).toMatchObject({
    parallel: { tp: 1, sequenceParallel: false, pp: 1, fsdpSize: -1, sharding: 'full_shard' },
    maxTokensPerMicroBatch: 20,
  });
  expect(trainedOptions(sftSettings(config), 9).gradientCheckpointing).toBe(true);
  expect(sftSettings(config).keys).toMatchObject({ layout: 'model', sharding: 'model.fsdp_config' });
});

test('the layout is what the engine gets', () => {
  expect(engine(sft(MEGATRON)).parallel).toMatchObject({ tp: 1, pp: 1, sharding: 'shard_grad_op' });
  expect(engine(sft(MEGATRON, `${tp}=2`)).parallel).toMatchObject({ tp: 2, sequenceParallel: true });
  expect(engine(sft(MEGATRON, `${tp}=2`, 'sequence_parallel=false')).parallel).toMatchObject({
    sequenceParallel: false,
  });
  const stages = [
    `${pp}=2`,
    `${vpp}=2`,
    `${ENDS}.account_for_embedding_in_pipeline_split=true`,
    'use_distributed_optimizer=false',
  ];
  expect(engine(sft(MEGATRON, ...stages)).parallel).toMatchObject({
    pp: 2,
    vpp: 2,
    countEmbedding: true,
    countHead: false,
    fsdpSize: 1,
  });
  const first = `${ENDS}.num_layers_in_first_pipeline_stage=1`;
  expect(engine(sft(MEGATRON, `${pp}=2`, first)).parallel).toMatchObject({ firstStageLayers: 1 });
  expect(engine(sft(MEGATRON, 'use_megatron_fsdp=true')).parallel).toMatchObject({ sharding: 'full_shard' });
  expect(sftSettings(sft(MEGATRON, `${tp}=2`, `${ep}=4`, `${etp}=1`)).layout).toMatchObject({ tp: 2, ep: 2 });
  expect(sftSettings(sft(MEGATRON)).keys).toMatchObject({ layout: 'engine', sharding: 'engine' });
});

test('a micro-batch has the tokens of all ranks that share its rows, and so it is planned', () => {
  const config = sft(MEGATRON, `${cp}=2`, `${pp}=2`);
  expect(engine(config).maxTokensPerMicroBatch).toBe(40);
  expect(batchArithmetic(config)[0]).toContain(
    'micro-batches of up to 20 x 2 = 40 tokens, shared by 2 ranks',
  );
  const [role] = planSft(config, { device: 'cpu', worldSize: 4, memory: null }).roles;
  // All four workers are called with the same sequences.
  expect(role?.update?.sequences).toBe(8);
  expect(role?.layout).toMatchObject({ parallel: { cp: 2 }, pipeline: { stages: 2 } });
});

test('what both strategies have is one key', () => {
  const engineKeys = ['param_offload', 'grad_offload', 'optimizer_offload'].map((key) => `${key}=true`);
  const config = sft(MEGATRON, ...engineKeys, 'dtype=bf16');
  expect(config).toMatchObject({
    model: { dtype: 'bfloat16', fsdp_config: { param_offload: true, grad_offload: true } },
  });
  expect(engine(config)).toMatchObject({
    offload: { params: true, grads: true, optimizer: true },
    dtype: 'bfloat16',
  });
  const coefficient = `${ENDS}.moe_z_loss_coeff=0.001`;
  expect(sft(MEGATRON, coefficient).model.router_z_loss_coef).toBe(0.001);
  expect(() => checkRouterKeys(sft(MEGATRON, coefficient))).toThrow(
    /^model\.router_z_loss_coef: the model in .* has no experts: expected 0, got 0\.001/,
  );
  expect(sft('model.strategy=megatron').engine.strategy).toBe('megatron');
});

test.each<[string, boolean, string]>([
  ['null', false, 'model.enable_gradient_checkpointing=true'],
  ['full', true, `${ENDS}.recompute_granularity=full`],
  ['selective', false, `${ENDS}.recompute_granularity=full`],
])('recompute_granularity %s', (granularity, recomputes, key) => {
  const settings = sftSettings(
    sft(
      MEGATRON,
      'model.enable_gradient_checkpointing=false',
      `${ENDS}.recompute_granularity=${granularity}`,
    ),
  );
  expect(settings.gradientCheckpointing).toBe(recomputes);
  expect(settings.keys.gradientCheckpointing).toBe(key);
});

test('the optimiser has Megatron’s names, too', () => {
  const keys = ['lr=1e-5', 'lr_decay_style=cosine', 'min_lr=1e-6', 'lr_decay_steps=50', 'optimizer=adam'];
  const config = sft(...keys.map((key) => `optim.${key}`), 'optim.lr_warmup_init=0');
  const { optim } = trainedOptions(sftSettings(config), 9);
  expect(optim).toMatchObject({ schedule: 'cosine', totalSteps: 50, warmupSteps: 5 });
  expect(optim?.minLrRatio).toBeCloseTo(0.1, 12);
  const reasons = configNotes(config).map(({ path }) => path);
  expect(reasons).toEqual(['optim.lr_decay_style', 'optim.lr_decay_steps']);
});

test.each<[string[], RegExp]>([
  [
    [`${tp}=2`],
    /^engine\.tensor_model_parallel_size: expected engine\.strategy megatron beside 2, got fsdp$/,
  ],
  [
    [MEGATRON, `${tp}=3`],
    /^engine\.tensor_model_parallel_size: expected a divisor of the number of workers \(4, trainer\.nnodes x trainer\.n_gpus_per_node\), got 3$/,
  ],
  [
    [MEGATRON, `${tp}=4`, `${pp}=2`],
    /^engine\.pipeline_model_parallel_size: expected tensor_model_parallel_size \(4\) x pipeline_model_parallel_size \(2\) to divide the number of workers \(4,/,
  ],
  [
    [MEGATRON, `${tp}=2`, `${cp}=4`],
    /^engine\.context_parallel_size: expected a divisor of the 2 workers that have the same part of the model/,
  ],
  [
    [MEGATRON, `${tp}=2`, `${ep}=4`],
    /^engine\.expert_model_parallel_size: expected a divisor of the 2 workers that share the data/,
  ],
  [
    [MEGATRON, `${vpp}=2`],
    /^engine\.virtual_pipeline_model_parallel_size: expected pipeline_model_parallel_size of at least 2 beside 2, got 1$/,
  ],
  [
    [MEGATRON, `${ENDS}.num_layers_in_last_pipeline_stage=1`],
    /^engine\.override_transformer_config\.num_layers_in_last_pipeline_stage: expected pipeline_model_parallel_size of at least 2/,
  ],
  [
    [MEGATRON, `${tp}=2`, 'ulysses_sequence_parallel_size=2'],
    /^engine\.tensor_model_parallel_size: expected 1 beside ulysses_sequence_parallel_size 2, got 2: both share the attention heads$/,
  ],
  [
    [MEGATRON, `${cp}=2`, 'engine.ulysses_sequence_parallel_size=2'],
    /^engine\.context_parallel_size: expected 1 beside ulysses_sequence_parallel_size 2, got 2: both share the tokens/,
  ],
  [
    [MEGATRON, 'use_megatron_fsdp=true', 'use_distributed_optimizer=false'],
    /^engine\.use_megatron_fsdp: expected use_distributed_optimizer true beside it, got false$/,
  ],
  [
    [MEGATRON, 'fsdp_size=2'],
    /^model\.fsdp_config\.fsdp_size: not read beside strategy megatron: engine\.use_distributed_optimizer and/,
  ],
  [[MEGATRON, 'model_dtype=bf16'], /^model\.fsdp_config\.model_dtype: not read beside strategy megatron/],
  [[MEGATRON, 'model.fsdp_config.offload_policy=true'], /offload_policy: not read beside strategy megatron/],
  [['strategy=veomni'], /^engine\.strategy: expected one of fsdp, fsdp2, megatron, got "veomni"/],
  [
    [MEGATRON, `${ENDS}.moe_z_loss_coeff=0.001`, 'model.router_z_loss_coef=0.002'],
    /moe_z_loss_coeff: is an older name of model\.router_z_loss_coef, and both are given: 0\.001 and 0\.002/,
  ],
  [
    [MEGATRON, `${ENDS}.moe_router_load_balancing_type=aux_loss`],
    /moe_router_load_balancing_type: .*needs the load-balancing loss of routers in a supervised run, which is not there/,
  ],
  [[MEGATRON, 'router_replay={mode: R2}'], /router_replay: .*needs router replay in a supervised run/],
  [[MEGATRON, 'dynamic_context_parallel=true'], /dynamic_context_parallel: /],
  [
    ['optim.min_lr=1e-3', 'optim.lr=1e-4'],
    /^optim\.min_lr: expected at most optim\.lr \(0\.0001\), got 0\.001$/,
  ],
  [['optim.min_lr=1e-6', 'optim.min_lr_ratio=0.1'], /^optim\.min_lr: optim\.min_lr_ratio 0\.1 says the same/],
])('%j is refused', (overrides, message) => {
  expect(() => sft(...overrides)).toThrow(message);
});

// llama_gqa has 4 heads and 2 layers, and no experts.
test.each<[string[], RegExp]>([
  [[`${tp}=3`, 'trainer.n_gpus_per_node=3'], /^\[engine\] parallel\.tp 3: .*heads/],
  [[`${pp}=4`], /^\[engine\] parallel\.pp 4 x parallel\.vpp 1: 2 layers do not make 4 parts/],
  [
    [`${ep}=2`],
    /^engine\.expert_model_parallel_size: the model in .* has no experts that 2 workers could share/,
  ],
])('%j does not fit the model: refused before a worker is started', async (overrides, message) => {
  const config = sft(MEGATRON, ...overrides, `trainer.default_local_dir=${file}.run`);
  expect(() => checkSftModel(config)).toThrow(message);
  const train = { batchesPerEpoch: 1, next: () => Promise.reject(), state: () => 0, restore: () => {} };
  const launcher = {
    start: () => {
      throw new Error('a worker was started');
    },
  };
  const data = async () => ({ train, validation: [] });
  await expect(new SftTrainer(config, { data, launcher }).fit()).rejects.toThrow(message);
});
