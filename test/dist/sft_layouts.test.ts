import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { loadSftConfig } from '../../ts/config/config';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { SftTrainer } from '../../ts/trainer/sft_trainer';
import { CONFORMANCE } from '../helpers/conformance';
import { modelTensors, type NamedTensor, writeJsonLines, writeModel } from '../helpers/e2e_workspace';
import { expectCloseMetrics } from '../helpers/layout_runs';
import { readLines } from '../helpers/observed_run';
import { optimOverrides, type RecordedSchedule, recordedSchedules } from '../helpers/recorded_schedules';
import { readSafetensors, type TestTensor } from '../helpers/safetensors';
import { relative } from '../helpers/sharded';

// troupe sft on workers that share a model by verl's keys of its Megatron engine has the numbers of one worker.

const scratch = mkdtempSync(path.join(tmpdir(), 'troupe-sft-layouts-'));
const file = (name: string): string => path.join(scratch, name);
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

/** Four layers: the two of the small model, and the same with their numbers in the opposite order. */
function fourLayers(): NamedTensor[] {
  const two = modelTensors();
  const more = two.flatMap(({ name, shape, data }) => {
    const [, layer] = /layers\.(\d)/.exec(name) ?? [];
    if (layer === undefined) return [];
    return [{ name: name.replace(layer, String(2 + Number(layer))), shape, data: data.toReversed() }];
  });
  return [...two, ...more];
}

/** Sums, with responses of 20 to 90 digits: enough rows for the tiles of every worker. */
const rows = (count: number, first: number) =>
  Array.from({ length: count }, (_, i) => {
    const n = first + i;
    const digits = Array.from({ length: 20 + ((n * 37) % 71) }, (_digit, t) => (n * n + t * (n + 3)) % 10);
    return { prompt: `${n}+${(n * 31) % 100}=`, response: digits.join('') };
  });

beforeAll(async () => {
  await writeModel(file('dense'), {
    config: { num_hidden_layers: 4, max_position_embeddings: 256 },
    tensors: fourLayers(),
  });
  // With the tokenizer of the small model, whose ids its vocabulary has.
  await writeModel(file('mixture'));
  cpSync(path.join(CONFORMANCE, 'models', 'mixtral', 'actor'), file('mixture'), { recursive: true });
  writeJsonLines(file('train.jsonl'), rows(32, 10));
  writeJsonLines(file('val.jsonl'), rows(5, 70));
  const config = {
    data: {
      train_files: file('train.jsonl'),
      val_files: file('val.jsonl'),
      train_batch_size: 8,
      max_length: 128,
      max_token_len_per_gpu: 192,
    },
    model: { path: file('dense') },
    optim: { lr: 1e-3, total_training_steps: 4, lr_warmup_steps: 1, min_lr: 1e-4, clip_grad: 1 },
    trainer: { total_training_steps: 4, test_freq: 2, num_threads: 1, device: 'cpu', logger: [] },
  };
  writeFileSync(file('sft.yaml'), JSON.stringify(config));
});

/** Keys below `engine`, on so many workers. */
const on = (workers: number, keys: Record<string, unknown> = {}): string[] => [
  `trainer.n_gpus_per_node=${workers}`,
  'engine.strategy=megatron',
  ...Object.entries(keys).map(([key, value]) => `engine.${key}=${value}`),
];

interface Done {
  metrics: Record<string, unknown>[];
  weights: ReturnType<typeof readSafetensors>;
  /** Of the engine in the workers. */
  parallel: EngineOptions['parallel'];
}

const create = jest.spyOn(Actor, 'create');

/** `name`: of the run directory. */
async function run(name: string, overrides: readonly string[], model = 'dense'): Promise<Done> {
  const directory = file(name);
  const own = [`model.path=${file(model)}`, `trainer.default_local_dir=${directory}`];
  const config = loadSftConfig(file('sft.yaml'), [...overrides, ...own]);
  const { finalModel } = await new SftTrainer(config).fit();
  return {
    metrics: readLines(path.join(directory, 'metrics.jsonl')),
    weights: readSafetensors(path.join(finalModel as string, 'model.safetensors')),
    parallel: create.mock.lastCall?.[0]?.parallel,
  };
}

/** Metrics of every step, both validations, and what was learnt, by the way that each tensor has gone from the model that all start from. */
function expectSame(actual: Done, expected: Done, model = 'dense'): void {
  expect(expected.metrics).toHaveLength(4);
  const names = ['train/loss', 'train/grad_norm', 'train/lr'];
  for (const line of expected.metrics) expect(Object.keys(line)).toEqual(expect.arrayContaining(names));
  expect(expected.metrics.filter((line) => 'val/loss' in line)).toHaveLength(2);
  expectCloseMetrics(actual.metrics, expected.metrics);
  const start = readSafetensors(path.join(file(model), 'model.safetensors'));
  expect(Object.keys(actual.weights).sort()).toEqual(Object.keys(expected.weights).sort());
  let trained = 0;
  for (const [name, { shape, data }] of Object.entries(expected.weights)) {
    const way = (end: TestTensor['data']) =>
      (end as Float32Array).map((x, i) => x - (start[name]?.data[i] as number));
    expect([name, actual.weights[name]?.shape]).toEqual([name, shape]);
    const [own, same] = [way(actual.weights[name]?.data as Float32Array), way(data)];
    // 1.5e-5 was seen: of norms, whose ways are the shortest. What is not trained stays where it was.
    const isTrained = same.some((x) => x !== 0);
    const isSame = isTrained ? relative(own, same) < 1e-4 : own.every((x) => x === 0);
    expect([name, isSame]).toEqual([name, true]);
    if (isTrained) trained++;
  }
  expect(trained).toBeGreaterThan(0);
}

// A whole run under a schedule, in each strategy.
test.each(['fsdp', 'megatron'])('the learning rate follows its schedule: %s', async (strategy) => {
  const recorded = recordedSchedules.find(({ optim }) => optim['lr_decay_steps'] === 4);
  const { rates } = recorded as RecordedSchedule;
  const keys = optimOverrides('optim', recorded as RecordedSchedule);
  const unset = ['optim.total_training_steps=-1', 'optim.min_lr=0'];
  const { metrics } = await run(`schedule_${strategy}`, [...unset, ...keys, `engine.strategy=${strategy}`]);
  // Each step has the rate that it was made with.
  const shares = metrics.map((line, step) => (line['train/lr'] as number) / (rates[step] as number));
  expect(shares).toEqual(Array.from({ length: 4 }, () => expect.closeTo(1, 12)));
});

const TP = { tensor_model_parallel_size: 2 };
const PP = { pipeline_model_parallel_size: 2 };

describe('a dense model', () => {
  let expected: Done;
  beforeAll(async () => {
    expected = await run('one', []);
  });

  test.each<[string, string[], EngineOptions['parallel']]>([
    ['tp 2', on(2, { ...TP, sequence_parallel: false }), { tp: 2, sequenceParallel: false }],
    ['tp 2, sequence parallel', on(2, TP), { tp: 2, sequenceParallel: true }],
    ['pp 2, 1F1B', on(2, PP), { pp: 2, vpp: 1 }],
    ['pp 2, interleaved', on(2, { ...PP, virtual_pipeline_model_parallel_size: 2 }), { pp: 2, vpp: 2 }],
    ['cp 2', on(2, { context_parallel_size: 2 }), { cp: 2 }],
    ['tp 2 x dp 2', on(4, TP), { tp: 2, sharding: 'shard_grad_op' }],
    [
      'tp 2 x pp 2, with checkpointing',
      on(4, { ...TP, ...PP, 'override_transformer_config.recompute_granularity': 'full' }),
      { tp: 2, pp: 2 },
    ],
    [
      'tp 2 x dp 2 without a distributed optimiser',
      on(4, { ...TP, use_distributed_optimizer: false }),
      { tp: 2, fsdpSize: 1 },
    ],
  ])('%s: as on one worker', async (name, overrides, parallel) => {
    const actual = await run(name.replace(/\W+/g, '_'), overrides);
    expect(actual.parallel).toMatchObject(parallel as object);
    expectSame(actual, expected);
  });

  test('goes on under another layout than it was saved under', async () => {
    const until = (step: number): string[] => [
      `trainer.total_training_steps=${step}`,
      `trainer.save_freq=${step}`,
    ];
    await run('resumed', [...on(2, TP), ...until(2)]);
    await run('resumed', [...on(2, { context_parallel_size: 2 }), ...until(3)]);
    expectSame(await run('resumed', on(4, { ...PP, ...TP })), expected);
  });
});

test('a mixture of experts on ep 2, with the z-loss of its routers by the name of Megatron', async () => {
  const expected = await run('mixture_one', ['model.router_z_loss_coef=0.01'], 'mixture');
  const keys = { expert_model_parallel_size: 2, 'override_transformer_config.moe_z_loss_coeff': 0.01 };
  const actual = await run('mixture_ep', on(2, keys), 'mixture');
  expect(actual.parallel).toMatchObject({ ep: 2 });
  expectSame(actual, expected, 'mixture');
});

test('adapters on tp 2 x pp 2', async () => {
  const lora = ['model.lora_rank=4', 'model.lora_alpha=8'];
  const expected = await run('adapters_one', lora);
  const actual = await run('adapters_four', [...lora, ...on(4, { ...TP, ...PP })]);
  expect(actual.parallel).toMatchObject({ tp: 2, pp: 2 });
  expectSame(actual, expected);
});
