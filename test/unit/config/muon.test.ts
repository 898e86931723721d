import { dump } from 'js-yaml';
import { configNotes, loadConfig, loadSftConfig } from '../../../ts/config/config';
import { optimOptions } from '../../../ts/roles/optim_options';
import { ppo, write } from './verl_command';
import { configError, failure, load, writeConfig } from './write_config';

const OPTIM = 'actor_rollout_ref.actor.optim';
const MASTERS = 'actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16';
const muon = (...keys: string[]): string[] =>
  ['optimizer=muon', ...keys.map((key) => `muon_${key}`)].map((key) => `${OPTIM}.${key}`);

test('what verl recommends comes over', () => {
  const { notMapped, config: imported } = ppo(
    ['model_engine=megatron', ...muon('momentum=0.9', 'nesterov=True', 'split_qkv=True')]
      .concat(muon('scale_mode=spectral', 'coefficient_type=polar_express', 'num_ns_steps=8'))
      .concat(muon('tp_mode=blockwise', 'match_adamw_update_rms=True'))
      .concat(`${OPTIM}.use_layer_wise_distributed_optimizer=True`)
      .join(' '),
  );
  expect(notMapped).toEqual([]);
  const { optim } = loadConfig(write(dump(imported), 'yaml')).actor_rollout_ref.actor;
  expect(optimOptions({ section: optim, key: OPTIM, gradClip: 1 }, 10).muon).toEqual({
    momentum: 0.9,
    nesterov: true,
    scaleMode: 'spectral',
    extraScaleFactor: expect.closeTo(0.229416, 6),
    coefficientType: 'polar_express',
    numNsSteps: 8,
    dtype: 'bfloat16',
  });
});

test('AdamW is the default, and has none of it', () => {
  const { optim } = load().actor_rollout_ref.actor;
  expect(optim.optimizer).toBe('AdamW');
  expect(optimOptions({ section: optim, key: OPTIM, gradClip: 1 }, 10).muon).toBeUndefined();
});

test.each([
  [['match_adamw_update_rms=true', 'extra_scale_factor=0.2'], /derives it from betas, got 0\.2/],
  [['momentum=1'], /muon_momentum: expected a number from 0 and below 1, got 1/],
  [['num_ns_steps=0'], /muon_num_ns_steps: expected an integer from 1 to 100, got 0/],
  [['extra_scale_factor=0'], /muon_extra_scale_factor: expected a number > 0, got 0/],
  [['coefficient_type=cubic'], /muon_coefficient_type: expected one of simple, quintic/],
  [['num_ns_steps=6'], /muon_num_ns_steps: expected at most 5, or a multiple of it: quintic has 5/],
  [['coefficient_type=aol'], /muon_num_ns_steps: expected at most 4: aol has 4 .* got 5/],
  [['coefficient_type=aol', 'num_ns_steps=8'], /muon_num_ns_steps: expected at most 4: .* got 8/],
  [['split_qkv=false'], /q, k and v are orthogonalised each by itself/],
])('%j is refused', (keys, reason) => {
  expect(failure(muon(...keys)).message).toMatch(reason);
});

test('weights in bfloat16 are refused, but beside adapters, which are float32', () => {
  expect(failure([...muon(), MASTERS]).message).toMatch(
    /fsdp_config\.model_dtype: steps of actor_rollout_ref\.actor\.optim\.optimizer muon are of float32/,
  );
  load([...muon(), MASTERS, 'actor_rollout_ref.model.lora_rank=8']);
});

test('keys of Muon beside another optimiser are told', () => {
  const notes = (overrides: string[]) =>
    configNotes(load(overrides)).filter(({ reason }) => reason.includes('optimizer muon'));
  // The second is as it is by default.
  const keys = [`${OPTIM}.muon_nesterov=true`, `${OPTIM}.muon_momentum=0.95`];
  expect(notes(keys)).toEqual([
    { path: `${OPTIM}.muon_nesterov`, reason: 'it belongs to optimizer muon, got AdamW' },
  ]);
  expect(notes([...muon(), ...keys])).toEqual([]);
});

test('troupe sft has it, too', () => {
  const file = writeConfig(
    '{ data: { train_files: none.jsonl, train_batch_size: 8, max_length: 16 }, model: { path: model } }',
  );
  const { optim } = loadSftConfig(file, ['optim.optimizer=muon', 'optim.muon_fp32_matmul_prec=highest']);
  expect(optimOptions({ section: optim, key: OPTIM, gradClip: 1 }, 10).muon).toMatchObject({
    dtype: 'float32',
    extraScaleFactor: 1,
  });
  const narrow = ['optim.optimizer=muon', 'model.fsdp_config.model_dtype=bfloat16'];
  expect(configError(() => loadSftConfig(file, narrow)).message).toMatch(
    /model\.fsdp_config\.model_dtype: steps of optim\.optimizer muon/,
  );
});
