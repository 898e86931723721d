// A model that reads images learns to name the colour of a picture.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { readTensors } from '../../ts/checkpoint/safetensors';
import { exportCheckpoint } from '../../ts/export/export_checkpoint';
import type { RewardFunction } from '../../ts/reward/contract/types';
import { writeJsonLines } from '../helpers/e2e_workspace';
import { type ObservedRun, observeRun, readLines } from '../helpers/observed_run';
import { COLOURS, rows } from '../helpers/pictures';
import { floats, readSafetensors } from '../helpers/safetensors';
import { writeVisionModel } from '../helpers/vision_directory';
import { VISION_MODEL, visionModel } from '../helpers/vision_model';

const directory = mkdtempSync(join(tmpdir(), 'troupe-images-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));
const file = (name: string): string => join(directory, name);

const reward: RewardFunction = ({ response, groundTruth }) => ({
  score: response === groundTruth ? 1 : response in COLOURS ? 0.1 : 0,
});

beforeAll(async () => {
  writeVisionModel(VISION_MODEL, file('model'));
  writeVisionModel(visionModel('qwen3_5').options.model, file('qwen3_5'));
  for (const name of ['qwen3_vl_moe', 'glm4v', 'glm4v_moe'] as const)
    writeVisionModel(visionModel(name).options.model, file(name));
  writeJsonLines(file('train.jsonl'), await rows(48, 0));
  writeJsonLines(file('val.jsonl'), await rows(30, 1000));
  const grpo = {
    data: {
      train_files: file('train.jsonl'),
      val_files: file('val.jsonl'),
      train_batch_size: 6,
      max_prompt_length: 80,
      max_response_length: 1,
    },
    algorithm: { adv_estimator: 'grpo' },
    actor_rollout_ref: {
      model: { path: file('model') },
      actor: {
        ppo_mini_batch_size: 6,
        ppo_max_token_len_per_gpu: 512,
        use_kl_loss: true,
        optim: { lr: 0.006 },
      },
      rollout: { n: 8 },
    },
    trainer: {
      device: 'cpu',
      n_gpus_per_node: 1,
      num_threads: 1,
      logger: [],
      save_freq: 40,
      test_freq: 40,
      val_before_train: true,
      total_training_steps: 40,
    },
  };
  writeFileSync(file('grpo.yaml'), JSON.stringify(grpo));
});

/** Of the greedy responses: 1 for the colour. */
const accuracies = ({ metrics }: ObservedRun): number[] =>
  metrics.flatMap((line) => {
    const value = line['val-core/colours/reward/mean@1'];
    return typeof value === 'number' ? [value] : [];
  });

test('GRPO learns from made pictures what their colour is called, and the model that it saves says so, too', async () => {
  const observed = await observeRun(file('grpo.yaml'), [`trainer.default_local_dir=${file('grpo')}`], reward);
  const [before, after] = accuracies(observed);
  expect(before).toBeLessThan(0.3);
  expect(after).toBeGreaterThan(0.6);
  const { batch } = observed.updates.at(-1) as (typeof observed.updates)[number];
  // Samples of a prompt share its image: it is sent once.
  expect(new Set(batch.get('images').flat()).size).toBe(6);
  const model = join(observed.result.runDirectory, 'exported');
  await exportCheckpoint(observed.result.runDirectory, model);
  const actor = await Actor.create({ model, device: 'cpu', numThreads: 1, optim: null });
  try {
    const { logProbs } = await actor.computeLogProb(batch);
    expect(logProbs.every(Number.isFinite)).toBe(true);
    const greedy = await actor.generate([batch.prompt(0)], { maxNewTokens: 1, temperature: 0 }, [
      batch.get('images')[0] ?? [],
    ]);
    expect(greedy.response(0)).toHaveLength(1);
  } finally {
    await actor.close();
  }
});

type Tensors = ReturnType<typeof readSafetensors>;

const of = ({ result }: ObservedRun, metric: string): number[] =>
  readLines(join(result.runDirectory, 'metrics.jsonl')).flatMap((line) =>
    typeof line[metric] === 'number' ? [line[metric]] : [],
  );

/** Of actor and reference alike. */
const megatron = (...keys: string[]): string[] => [
  'actor_rollout_ref.actor.strategy=megatron',
  ...['actor', 'ref'].flatMap((role) => keys.map((key) => `actor_rollout_ref.${role}.megatron.${key}`)),
];

describe('several workers compute what one does', () => {
  const train = (name: string, ...overrides: string[]) =>
    observeRun(
      file('grpo.yaml'),
      [
        'data.val_files=null',
        'trainer.total_training_steps=2',
        'trainer.save_freq=2',
        'actor_rollout_ref.actor.optim.lr=0.0001',
        `trainer.default_local_dir=${file(name)}`,
        ...overrides,
      ],
      reward,
    );
  let one: ObservedRun;
  beforeAll(async () => {
    one = await train('one_worker');
  });

  test.each([
    [
      "under Megatron's keys, two stages of two",
      'stages',
      [
        ...megatron('tensor_model_parallel_size=2', 'pipeline_model_parallel_size=2'),
        'actor_rollout_ref.rollout.tensor_model_parallel_size=2',
        'trainer.n_gpus_per_node=4',
      ],
    ],
    [
      'of a context, as run_qwen3_vl_30b_a3b_megatron.sh has it',
      'context',
      [
        ...megatron('tensor_model_parallel_size=2', 'context_parallel_size=2'),
        'actor_rollout_ref.rollout.tensor_model_parallel_size=2',
        'trainer.n_gpus_per_node=4',
      ],
    ],
    [
      'of a sequence, by Ulysses',
      'ulysses',
      ['actor_rollout_ref.actor.ulysses_sequence_parallel_size=2', 'trainer.n_gpus_per_node=2'],
    ],
  ])('%s', async (_, name, overrides) => {
    const several = await train(name, ...overrides);
    // What is recorded while sampling has the bits of what the training computes.
    expect(of(several, 'training/rollout_probs_diff_max')).toEqual([0, 0]);
    for (const [step, { batch }] of one.updates.entries())
      expect(several.updates[step]?.batch.get('tokens')).toEqual(batch.get('tokens'));
    for (const metric of ['actor/grad_norm', 'actor/loss', 'actor/kl_loss']) {
      const expected = of(one, metric);
      expect(expected).toHaveLength(2);
      for (const [step, value] of of(several, metric).entries())
        expect(Math.abs(value - (expected[step] as number))).toBeLessThan(
          1e-4 * Math.max(1, Math.abs(value)),
        );
    }
    // Of the tower and of the decoder: how far the two models are from each other, against how far they went.
    const tensors = (model: string) => readSafetensors(join(model, 'model.safetensors'));
    const [start, own, other] = [
      file('model'),
      ...[one, several].map(({ result }) => join(result.runDirectory, 'final_model')),
    ].map(tensors) as [Tensors, Tensors, Tensors];
    for (const part of ['.visual.', '.language_model.']) {
      let [apart, went] = [0, 0];
      for (const name of Object.keys(start).filter((tensor) => tensor.includes(part)))
        for (const [i, value] of floats(own, name).entries()) {
          apart += (value - (floats(other, name)[i] as number)) ** 2;
          went += (value - (floats(start, name)[i] as number)) ** 2;
        }
      expect(Math.sqrt(apart)).toBeLessThan(1e-3 * Math.sqrt(went));
    }
  });
});

describe('Qwen3.5', () => {
  const train = (...overrides: string[]) =>
    observeRun(
      file('grpo.yaml'),
      [
        `actor_rollout_ref.model.path=${file('qwen3_5')}`,
        'data.val_files=null',
        'trainer.total_training_steps=2',
        'trainer.save_freq=2',
        ...overrides,
      ],
      reward,
    );
  const json = (path: string) => JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;

  test('is trained and saved with its tower where the data have images', async () => {
    const { result, updates } = await train(`trainer.default_local_dir=${file('tower')}`);
    expect(json(join(result.runDirectory, 'config.json'))).toMatchObject({
      actor_rollout_ref: { model: { read_images: true } },
    });
    const { batch } = updates[0] as (typeof updates)[number];
    expect(batch.get('images').flat()).toHaveLength(48);
    const saved = join(result.runDirectory, 'final_model');
    expect(json(join(saved, 'config.json'))).toMatchObject({
      architectures: ['Qwen3_5ForConditionalGeneration'],
      model_type: 'qwen3_5',
    });
    expect([...readTensors(saved).keys()].sort()).toEqual([...readTensors(file('qwen3_5')).keys()].sort());
    const bytes = (dir: string) => readFileSync(join(dir, 'model.safetensors'));
    expect(bytes(saved).equals(bytes(file('qwen3_5')))).toBe(false);
    const model = join(result.runDirectory, 'exported');
    await exportCheckpoint(result.runDirectory, model);
    expect(json(join(model, 'config.json'))['model_type']).toBe('qwen3_5');
  });

  test('is shown its images by workers that decode together', async () => {
    const { result, updates } = await train(
      'actor_rollout_ref.rollout.tensor_model_parallel_size=2',
      'trainer.n_gpus_per_node=2',
      `trainer.default_local_dir=${file('together')}`,
    );
    expect(updates).toHaveLength(2);
    const apart = readLines(join(result.runDirectory, 'metrics.jsonl')).flatMap((line) =>
      typeof line['training/rollout_probs_diff_max'] === 'number'
        ? [line['training/rollout_probs_diff_max']]
        : [],
    );
    expect(apart).toHaveLength(2);
    expect(Math.max(...apart)).toBeLessThan(1e-4);
  });

  test('is its language model where they have none, and rows with images are refused then', async () => {
    const text = file('text.jsonl');
    writeJsonLines(
      text,
      (await rows(12, 5000)).map(({ images: _, prompt: _with, ...row }) => ({
        ...row,
        prompt: [{ role: 'user', content: 'see?' }],
      })),
    );
    const { result } = await train(
      `data.train_files=${text}`,
      `trainer.default_local_dir=${file('language_model')}`,
    );
    expect(json(join(result.runDirectory, 'final_model', 'config.json'))).toMatchObject({
      architectures: ['Qwen3_5ForCausalLM'],
      model_type: 'qwen3_5_text',
    });
    await expect(
      train('actor_rollout_ref.model.read_images=false', `trainer.default_local_dir=${file('refused')}`),
    ).rejects.toThrow(/the model reads text only/);
  });
});

const stored = (dir: string): string[] =>
  [...readTensors(dir)].map(([hf, { shape }]) => `${hf} [${shape}]`).sort();

test.each([
  ['qwen3_vl_moe', 'Qwen3VLMoeForConditionalGeneration'],
  ['glm4v_moe', 'Glm4vMoeForConditionalGeneration'],
])(
  '%s is trained with the experts of the rollout, and saved under its published names',
  async (name, architecture) => {
    const { result, updates, metrics } = await observeRun(
      file('grpo.yaml'),
      [
        `actor_rollout_ref.model.path=${file(name)}`,
        'actor_rollout_ref.actor.router_replay.mode=R3',
        'actor_rollout_ref.rollout.enable_rollout_routing_replay=true',
        'actor_rollout_ref.actor.router_aux_loss_coef=0.01',
        'actor_rollout_ref.actor.router_z_loss_coef=0.001',
        'data.val_files=null',
        'trainer.n_gpus_per_node=2',
        'trainer.total_training_steps=2',
        'trainer.save_freq=2',
        `trainer.default_local_dir=${file(`mixture_${name}`)}`,
      ],
      reward,
    );
    const { batch } = updates[0] as (typeof updates)[number];
    // Two layers with experts, of which a token has two each.
    expect(batch.get('routedExperts').map(({ length }) => length)).toEqual(
      [...batch.sequenceLens].map((n) => 4 * n),
    );
    for (const line of metrics) {
      expect(line['actor/moe/aux_loss']).toBeGreaterThan(0);
      expect(line['actor/moe/z_loss']).toBeGreaterThan(0);
    }
    const saved = join(result.runDirectory, 'final_model');
    expect(stored(saved)).toEqual(stored(file(name)));
    expect(JSON.parse(readFileSync(join(saved, 'config.json'), 'utf8'))).toMatchObject({
      architectures: [architecture],
      model_type: name,
    });
  },
);

test.each([true, false])('glm4v is trained, with its tower: %s, and saved with it', async (trained) => {
  const { result, updates } = await observeRun(
    file('grpo.yaml'),
    [
      `actor_rollout_ref.model.path=${file('glm4v')}`,
      `actor_rollout_ref.actor.freeze_vision_tower=${!trained}`,
      'data.val_files=null',
      'trainer.n_gpus_per_node=2',
      'trainer.total_training_steps=2',
      'trainer.save_freq=2',
      `trainer.default_local_dir=${file(`glm4v_${trained}`)}`,
    ],
    reward,
  );
  expect(new Set(updates[0]?.batch.get('images').flat()).size).toBe(6);
  const saved = join(result.runDirectory, 'final_model');
  expect(stored(saved)).toEqual(stored(file('glm4v')));
  const merger = 'model.visual.downsample.weight';
  const [before, after] = [file('glm4v'), saved].map((dir) =>
    floats(readSafetensors(join(dir, 'model.safetensors')), merger),
  ) as [Float32Array, Float32Array];
  expect(after.some((value, i) => value !== before[i])).toBe(trained);
});

test.each([
  [
    'agents of Search-R1',
    'actor_rollout_ref.rollout.agent.default_agent_loop=search_agent retriever.url=http://127.0.0.1:9',
    /search_agent shows it text alone/,
  ],
  ['a critic', 'algorithm.adv_estimator=gae', /a critic of its family is not there/],
  [
    'servers',
    'actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.mode=server actor_rollout_ref.rollout.server.addresses=[http://127.0.0.1:9]',
    /servers are sent token ids alone/,
  ],
])('%s are refused before a worker is started', async (_, override, message) => {
  await expect(
    observeRun(
      file('grpo.yaml'),
      [...override.split(' '), `trainer.default_local_dir=${file('no')}`],
      reward,
    ),
  ).rejects.toThrow(message);
});
