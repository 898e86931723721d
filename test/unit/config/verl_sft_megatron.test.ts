import { dump } from 'js-yaml';
import { missingFeatures } from '../../../ts/config/checks/missing';
import { loadSftConfig, type ResolvedSftConfig } from '../../../ts/config/config';
import { getPath } from '../../../ts/config/reading/tree';
import { leafAt } from '../../../ts/config/schema/field';
import { sftSchema } from '../../../ts/config/schema/sft_schema';
import table from '../../../ts/config/verl/defaults_table.json';
import { importVerl, type VerlImport } from '../../../ts/config/verl/import';
import { readVerlSource } from '../../../ts/config/verl/source';
import { OPTIONS, why, write } from './verl_command';

// Commands of verl's SFT trainer with Megatron.

/** The script is run: torchrun says how many workers there are. */
const sft = (keys: string, version = 'main'): VerlImport => {
  const own = 'verl.trainer.sft_trainer data.train_files=a.parquet model.path=./m';
  const script = write(`torchrun --nnodes=1 --nproc_per_node=8 -m ${own} ${keys}`);
  return importVerl(readVerlSource(script, [], { ...OPTIONS, version }));
};
const GROUPS = 'engine=megatron optim=megatron';
const loaded = ({ config }: VerlImport): ResolvedSftConfig => loadSftConfig(write(dump(config), 'yaml'));

/** Of run_qwen_megatron_fsdp.sh. */
const DENSE =
  'data.messages_key=messages data.train_batch_size=8 data.use_dynamic_bsz=True data.max_token_len_per_gpu=1024 data.pad_mode=no_padding ' +
  `data.truncation=error model=hf_model model.trust_remote_code=True model.use_remove_padding=true ${GROUPS} optim.lr=1e-5 ` +
  'optim.lr_warmup_steps_ratio=0.2 optim.weight_decay=0.1 optim.betas=[0.9,0.95] optim.clip_grad=1.0 optim.lr_warmup_init=0 ' +
  'optim.lr_decay_style=cosine optim.min_lr=1e-6 engine.tensor_model_parallel_size=4 engine.pipeline_model_parallel_size=1 ' +
  'engine.expert_model_parallel_size=1 engine.use_mbridge=True engine.vanilla_mbridge=False engine.use_megatron_fsdp=True ' +
  '+engine.override_transformer_config.gradient_accumulation_fusion=False trainer.total_epochs=4';

/** What run_nemotron_nano_v3_megatron.sh and run_qwen3_5_397b_a17b_megatron.sh have in common. */
const MIXTURE =
  `${GROUPS} optim.lr=2e-5 optim.lr_warmup_steps=5 optim.lr_decay_style=cosine optim.min_lr=2e-6 ` +
  '+optim.override_optimizer_config.optimizer_offload_fraction=1 +optim.override_optimizer_config.overlap_cpu_optimizer_d2h_h2d=True ' +
  '+optim.override_optimizer_config.use_precision_aware_optimizer=True +optim.override_optimizer_config.optimizer_cpu_offload=True ' +
  'engine.tensor_model_parallel_size=8 engine.pipeline_model_parallel_size=1 engine.virtual_pipeline_model_parallel_size=null ' +
  'engine.context_parallel_size=1 engine.expert_model_parallel_size=8 engine.expert_tensor_parallel_size=1 engine.use_mbridge=True ' +
  'engine.dtype=bfloat16 engine.override_transformer_config.attention_backend=auto +engine.override_transformer_config.recompute_method=uniform ' +
  '+engine.override_transformer_config.recompute_granularity=full +engine.override_transformer_config.recompute_num_layers=1 ' +
  'data.ignore_input_ids_mismatch=True checkpoint.save_contents=[model,optimizer,extra]';

test('a dense model over 8 workers', () => {
  const imported = sft(DENSE);
  expect(imported.notMapped).toEqual([]);
  expect(loaded(imported)).toMatchObject({
    engine: {
      strategy: 'megatron',
      tensor_model_parallel_size: 4,
      use_megatron_fsdp: true,
      use_distributed_optimizer: true,
      sequence_parallel: true,
    },
    model: { dtype: 'bfloat16' },
    optim: {
      lr: 1e-5,
      lr_scheduler_type: 'cosine',
      min_lr: 1e-6,
      lr_warmup_steps_ratio: 0.2,
      betas: [0.9, 0.95],
      clip_grad: 1,
    },
    trainer: { n_gpus_per_node: 8, nnodes: 1 },
  });
});

test('a mixture whose optimiser lies on the host', () => {
  const imported = sft(MIXTURE);
  expect(imported.notMapped).toEqual([]);
  expect(loaded(imported)).toMatchObject({
    engine: {
      strategy: 'megatron',
      tensor_model_parallel_size: 8,
      expert_model_parallel_size: 8,
      expert_tensor_parallel_size: 1,
      override_transformer_config: { recompute_granularity: 'full' },
    },
    model: { fsdp_config: { optimizer_offload: true, param_offload: false } },
    optim: { lr_warmup_steps: 5, min_lr: 2e-6 },
  });
  expect(why(imported.changed, 'optim.override_optimizer_config.optimizer_cpu_offload')).toMatch(
    /^model\.fsdp_config\.optimizer_offload=true/,
  );
});

test('verl’s two scripts for mixtures lack nothing', () => {
  const mtp = sft(
    `${MIXTURE} model.mtp.enable=True model.mtp.enable_train=True model.mtp.num_speculative_tokens=1`,
  );
  expect(mtp.notMapped).toEqual([]);
  const nemotron = sft(`${MIXTURE} model.path=nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16`);
  expect(nemotron.notMapped).toEqual([]);
  expect(missingFeatures(nemotron.config)).toEqual([]);
});

test('the optimiser has verl’s defaults of Megatron', () => {
  const { optim, engine } = loaded(sft(GROUPS));
  expect(optim).toMatchObject({
    lr: 1e-3,
    lr_scheduler_type: 'constant',
    lr_warmup_steps_ratio: 0,
    betas: [0.9, 0.999],
    min_lr: 0,
  });
  expect(engine.tensor_model_parallel_size).toBe(1);
});

test.each(['v0.6.1', 'v0.7.1', 'v0.8.0', 'v0.9.0', 'main'])('%s has it', (version) => {
  const imported = sft(`${GROUPS} engine.pipeline_model_parallel_size=2 engine.param_offload=True`, version);
  expect(imported.notMapped).toEqual([]);
  expect(loaded(imported)).toMatchObject({
    engine: { strategy: 'megatron', pipeline_model_parallel_size: 2 },
    model: { fsdp_config: { param_offload: true } },
  });
});

test('a composed file says it by the class of its section', () => {
  const text = `
data: { train_files: a.parquet }
model: { path: ./m }
engine: { _target_: verl.workers.config.McoreEngineConfig, tensor_model_parallel_size: 2, param_offload: false }
optim: { _target_: verl.workers.config.McoreOptimizerConfig, lr: 1e-5, lr_decay_style: cosine, min_lr: 1e-6 }
trainer: { n_gpus_per_node: 2 }`;
  const imported = importVerl(readVerlSource(write(text, 'yaml'), [], OPTIONS));
  expect(imported.notMapped).toEqual([]);
  expect(loaded(imported)).toMatchObject({
    engine: { strategy: 'megatron', tensor_model_parallel_size: 2 },
    optim: { lr_scheduler_type: 'cosine' },
  });
});

test('FSDP stays FSDP', () => {
  const { config } = sft('engine=fsdp optim=fsdp engine.fsdp_size=4');
  expect(getPath(config, 'engine.strategy')).toBeUndefined();
  expect(getPath(config, 'model.fsdp_config.fsdp_size')).toBe(4);
});

test('layouts that the workers cannot have are told with the numbers', () => {
  expect(() => loaded(sft(`${GROUPS} engine.tensor_model_parallel_size=3`))).toThrow(
    /engine\.tensor_model_parallel_size: expected a divisor of the number of workers \(8,/,
  );
});

test.each([
  ['optim.exp_avg_dtype=bf16', 'optim.exp_avg_dtype'],
  ['engine.dynamic_context_parallel=True', 'engine.dynamic_context_parallel'],
  ['engine.router_replay.mode=R2', 'engine.router_replay'],
  [
    '+engine.override_transformer_config.moe_router_load_balancing_type=aux_loss',
    'engine.override_transformer_config.moe_router_load_balancing_type',
  ],
  ['+engine.override_transformer_config.fp8=hybrid', 'engine.override_transformer_config.fp8'],
])('%s is not done', (key, named) => {
  expect(sft(`${GROUPS} ${key}`).notMapped.map((note) => note.key)).toEqual([named]);
});

test("every key of verl's groups of Megatron is known", () => {
  const groups = [
    ['engine', table.files['engine/megatron'].keys],
    ['optim', table.files['optim/megatron'].keys],
  ] as const;
  const keys = groups.flatMap(([section, own]) => Object.keys(own).map((key) => `${section}.${key}`));
  expect(keys.length).toBeGreaterThan(80);
  const isKnown = (key: string): boolean => {
    // Also by a section that is one leaf.
    const names = key.split('.');
    return names.some((_, i) => leafAt(sftSchema, names.slice(0, i + 1).join('.')) !== null);
  };
  expect(keys.filter((key) => !key.endsWith('._target_') && !isKnown(key))).toEqual([]);
});
