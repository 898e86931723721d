import { readFileSync, writeFileSync } from 'node:fs';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import type { DistillationOptions } from '../../ts/actor/distillation_options';
import type { Batch } from '../../ts/batch/batch';
import { loadConfig } from '../../ts/config/config';
import { Trainer, type TrainerOptions } from '../../ts/trainer/trainer';
import { loadTrainingData } from '../../ts/trainer/training_data';
import { modelTensors, Workspace, writeModel } from '../helpers/e2e_workspace';
import { raggedBatch, SHARDED_MODEL } from '../helpers/sharded';

// On-policy distillation with the engine and its workers. Losses and gradients against verl and autograd: test/conformance/distillation*.test.ts.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
  // Other weights of the same shapes: each tensor backwards.
  const tensors = modelTensors().map((t) => ({ ...t, data: t.data.slice().reverse() }));
  await writeModel(workspace.file('teacher'), { tensors });
});
afterAll(() => workspace.remove());

type Line = Record<string, number>;
const LOSS = 'distillation.distillation_loss';

const configOf = (directory: string, overrides: readonly string[]) =>
  loadConfig(workspace.file('train.yaml'), [
    `trainer.default_local_dir=${workspace.file(directory)}`,
    'trainer.val_before_train=false',
    'trainer.test_freq=-1',
    'trainer.logger=[]',
    'distillation.enabled=true',
    `distillation.teacher_models.teacher_model.model_path=${workspace.file('teacher')}`,
    ...overrides,
  ]);

const logged = (directory: string): Line[] =>
  readFileSync(workspace.file(`${directory}/metrics.jsonl`), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
    .filter((line) => 'distillation/loss' in line);

async function train(directory: string, overrides: readonly string[]): Promise<Line[]> {
  await new Trainer(configOf(directory, overrides)).fit();
  return logged(directory);
}

const ALONE = [
  `${LOSS}.use_task_rewards=false`,
  'actor_rollout_ref.actor.use_kl_loss=false',
  'data.train_batch_size=10',
  'actor_rollout_ref.actor.ppo_mini_batch_size=10',
  'trainer.save_freq=-1',
];

test.each([
  [['loss_mode=k3'], 'distillation/loss'],
  [['loss_mode=forward_kl_topk', 'topk=8'], 'distillation/loss'],
  // Minus k1 is the advantage: its mean over sampled tokens is the KL, of which the absolute value is told.
  [['loss_mode=k1', 'use_policy_gradient=true'], 'distillation/abs_loss'],
])(
  'a policy comes near its teacher: %j',
  async (keys, name) => {
    const lines = await train(`near_${keys[0]}`, [
      ...ALONE,
      'trainer.total_training_steps=24',
      ...keys.map((key) => `${LOSS}.${key}`),
    ]);
    const mean = (of: Line[]): number =>
      of.reduce((sum, line) => sum + (line[name] as number), 0) / of.length;
    expect(lines).toHaveLength(24);
    expect(mean(lines.slice(-4))).toBeLessThan(0.7 * mean(lines.slice(0, 4)));
  },
  240_000,
);

test.each(['k3', 'forward_kl_topk'])(
  'a policy has nothing to learn from itself: %s',
  async (mode) => {
    const [first] = await train(`itself_${mode}`, [
      ...ALONE,
      'trainer.total_training_steps=1',
      `${LOSS}.loss_mode=${mode}`,
      `${LOSS}.topk=8`,
      `distillation.teacher_models.teacher_model.model_path=${workspace.file('model')}`,
    ]);
    expect(first?.['distillation/loss']).toBe(0);
    if (mode === 'forward_kl_topk') expect(first?.['distillation/overlap_ratio']).toBe(1);
    else expect(first?.['actor/grad_norm']).toBe(0);
  },
  120_000,
);

describe.each(['k3', 'forward_kl_topk'])('beside the rewards, by %s', (mode) => {
  const keys = [`${LOSS}.loss_mode=${mode}`, `${LOSS}.topk=8`, `${LOSS}.distillation_loss_coef=0.3`];

  test('a run that was stopped and goes on has the numbers of one that was not', async () => {
    const whole = await train(`whole_${mode}`, keys);
    expect(whole).toHaveLength(4);
    const trainer: Trainer = new Trainer(configOf(`parts_${mode}`, keys), {
      onStep: (step) => {
        if (step === 2) trainer.requestStop('test');
      },
    });
    await trainer.fit();
    expect(logged(`parts_${mode}`)).toEqual(whole.slice(0, 2));
    expect(await train(`parts_${mode}`, keys)).toEqual(whole);
  }, 240_000);

  const MEGATRON = 'actor_rollout_ref.actor';
  test.each([
    ['two workers', []],
    [
      'two that share every matrix of the policy, the teacher sharded',
      [`${MEGATRON}.strategy=megatron`, `${MEGATRON}.megatron.tensor_model_parallel_size=2`],
    ],
    ['two that share micro-batches', [`${MEGATRON}.ulysses_sequence_parallel_size=2`]],
  ])(
    '%s have the numbers of one',
    async (_name, layout) => {
      const step = [...keys, 'trainer.total_training_steps=1', 'actor_rollout_ref.rollout.n=3'];
      const one = await train(`one_${mode}`, step);
      const two = await train(`two_${mode}`, [
        ...step,
        ...layout,
        'trainer.n_gpus_per_node=2',
        'trainer.resume_mode=disable',
      ]);
      const names = Object.keys(one[0] as Line).filter((name) => /^(distillation|actor)\//.test(name));
      expect(names).toContain('distillation/loss_max');
      for (const name of names)
        expect([name, two[0]?.[name]]).toEqual([name, expect.closeTo(one[0]?.[name] as number, 4)]);
    },
    240_000,
  );
});

test('with the rollout’s log-probs as the old ones', async () => {
  const keys = [...ALONE, 'trainer.total_training_steps=2', `${LOSS}.use_task_rewards=true`];
  const bypass = await train('bypass', [...keys, 'algorithm.rollout_correction.bypass_mode=true']);
  const usual = await train('no_bypass', keys);
  // On this device both have the same bits.
  for (const [step, line] of usual.entries())
    expect(bypass[step]?.['distillation/loss']).toBeCloseTo(line['distillation/loss'] as number, 5);
}, 120_000);

describe('several teachers', () => {
  const teacher = (name: string, key: string, model: string): string[] => [
    `distillation.teacher_models.${name}.key=${key}`,
    `distillation.teacher_models.${name}.model_path=${workspace.file(model)}`,
  ];
  const ONE_STEP = [...ALONE, 'trainer.total_training_steps=1', `${LOSS}.topk=8`];
  const NO_SINGLE = 'distillation.teacher_models.teacher_model.model_path=null';
  /** The prompts of the workspace, every other one from another source. */
  const mixed = (): string => {
    const rows = readFileSync(workspace.file('train.jsonl'), 'utf8').trim().split('\n');
    const text = rows.map((row, i) =>
      JSON.stringify({ ...JSON.parse(row), ...(i % 2 === 0 ? {} : { data_source: 'others' }) }),
    );
    writeFileSync(workspace.file('mixed.jsonl'), `${text.join('\n')}\n`);
    return `data.train_files=${workspace.file('mixed.jsonl')}`;
  };

  test.each(['k3', 'forward_kl_topk'])(
    'each is for the prompts of its data_source: %s',
    async (mode) => {
      const keys = [...ONE_STEP, mixed(), NO_SINGLE, `${LOSS}.loss_mode=${mode}`];
      const own = teacher('a', 'sums', 'model');
      const other = teacher('b', 'others', 'teacher');
      const [both] = await train(`both_${mode}`, [...keys, ...own, ...other]);
      const [same] = await train(`same_${mode}`, [...keys, ...teacher('a', 'sums', 'teacher'), ...other]);
      const [one] = await train(`single_${mode}`, [...keys, ...other]);
      // One teacher under two names is that teacher.
      expect(same).toEqual(one);
      // Half of the prompts have nothing to learn from.
      expect(both?.['distillation/loss']).toBeGreaterThan(0);
      expect(both?.['distillation/loss']).toBeLessThan(0.8 * (one?.['distillation/loss'] as number));
      expect(both?.['distillation/loss_min']).toBe(0);
    },
    120_000,
  );

  const noWorkers = async (): Promise<never> => {
    throw new Error('workers were started');
  };
  test.each<[string, Partial<TrainerOptions>]>([
    ['before workers are started', { engines: noWorkers }],
    [
      'in its step where the data are not known before',
      { data: async (...given) => ({ ...(await loadTrainingData(...given)), trainedSources: new Set() }) },
    ],
  ])(
    'a prompt that no teacher is for ends the run %s',
    async (_, options) => {
      const keys = [...ONE_STEP, mixed(), NO_SINGLE];
      const config = configOf('stray', [
        ...keys,
        ...teacher('a', 'sums', 'model'),
        ...teacher('b', 'more', 'teacher'),
      ]);
      await expect(new Trainer(config, options).fit()).rejects.toMatchObject({
        code: 'INVALID_CONFIG',
        message: expect.stringMatching(
          /no teacher is for the data_source "others" of training prompts: the teachers have the keys "sums", "more"/,
        ),
      });
    },
    120_000,
  );
});

describe('models of other sizes', () => {
  const LARGE = 32;
  const TEACHER = 'distillation.teacher_models.teacher_model.model_path';
  beforeAll(async () => {
    const tensors = modelTensors().map((tensor) => {
      const [rows, columns] = tensor.shape as [number, number];
      if (!tensor.name.includes('embed')) return tensor;
      const data = Float32Array.from({ length: LARGE * columns }, (_, i) =>
        i < rows * columns ? (tensor.data[i] as number) : Math.sin(i),
      );
      return { ...tensor, shape: [LARGE, columns], data };
    });
    await writeModel(workspace.file('large'), { tensors, config: { vocab_size: LARGE } });
    await writeModel(workspace.file('short'), { config: { max_position_embeddings: 15 } });
  });

  test.each([
    [
      'short',
      [],
      /model_path: .* 8 \+ .* 8 = 16 tokens are more than the 15 positions of the teacher in .*short/,
    ],
    [
      'model',
      ['loss_mode=forward_kl_topk', 'topk=16'],
      /topk: expected at most 15, the vocabulary of .*model, got 16/,
    ],
    [
      'large',
      ['loss_mode=forward_kl_topk', 'topk=15'],
      /column 'teacherTopIds', sequence 0: token id \d+ is outside the vocabulary of the model in .*model \(0 to 14\): the teacher's is larger/,
    ],
  ])('a teacher: %s %j', async (teacher, keys, message) => {
    const overrides = [...keys.map((key) => `${LOSS}.${key}`), `${TEACHER}=${workspace.file(teacher)}`];
    await expect(train('sizes', [...ALONE, ...overrides])).rejects.toThrow(message);
  });

  test('a policy whose responses have tokens that its teacher does not know', async () => {
    const policy = `actor_rollout_ref.model.path=${workspace.file('large')}`;
    await expect(
      train('sizes', [...ALONE, policy, `${LOSS}.loss_mode=k3`, `${TEACHER}=${workspace.file('model')}`]),
    ).rejects.toThrow(/token id \d+ is outside the vocabulary of the model in .*model \(0 to 14\)/);
  });
});

test('a teacher with other token ids is refused', async () => {
  const directory = await writeModel(workspace.file('shuffled'));
  const file = `${directory}/tokenizer.json`;
  const tokenizer = JSON.parse(readFileSync(file, 'utf8'));
  for (const [token, id] of Object.entries(tokenizer.model.vocab as Record<string, number>))
    if (id > 1) tokenizer.model.vocab[token] = 16 - id;
  writeFileSync(file, JSON.stringify(tokenizer));
  const key = 'distillation.teacher_models.teacher_model.model_path';
  await expect(train('refused', [`${key}=${directory}`])).rejects.toThrow(
    /the teacher in .*shuffled has another tokenizer than the policy .*: ".*" has id \d+ there, and the teacher's has id \d+/,
  );
});

describe('the likeliest tokens', () => {
  const batch = raggedBatch(7, 3);
  const withActor = async <T>(o: Partial<ActorOptions>, body: (actor: Actor) => Promise<T>): Promise<T> => {
    const optim = { lr: 1e-3 };
    const actor = await Actor.create({
      model: SHARDED_MODEL,
      maxTokensPerMicroBatch: 96,
      numThreads: 1,
      optim,
      ...o,
    });
    try {
      return await body(actor);
    } finally {
      await actor.close();
    }
  };
  const flat = (rows: readonly ArrayLike<number>[] | undefined): number[] =>
    (rows ?? []).flatMap((row) => [...Array.from(row)]);
  /** Metrics of two updates of a batch whose teacher are six tokens of each position that it finds likely. */
  const taught = async (actor: Actor, distillation: DistillationOptions) => {
    const found = await actor.computeLogProb(batch, { topK: 6 });
    const lower = (row: Float32Array) => row.map((lp, i) => lp - 0.4 * (i % 5));
    const columns: Batch = batch.with({
      teacherTopLogProbs: found.topLogProbs?.map(lower),
      teacherTopIds: found.topIds,
    });
    const metrics = [];
    for (let i = 0; i < 2; i++)
      metrics.push(await actor.updatePolicy(columns, { loss: { distillation }, miniBatchSize: 7 }));
    return { found, metrics };
  };
  const distillation = { mode: 'forward_kl_topk', topK: 6, usePolicyGradient: false } as const;

  test('are those of all log-probs', async () => {
    await withActor({}, async (actor) => {
      const { logProbs, topLogProbs, topIds } = await actor.computeLogProb(batch, { topK: 160 });
      const tokens = Array.from({ length: batch.size }, (_, i) => [...batch.response(i)]).flat();
      const [lps, ids] = [flat(topLogProbs), flat(topIds)];
      for (const [t, token] of tokens.entries()) {
        const own = lps.slice(160 * t, 160 * (t + 1));
        const order = ids.slice(160 * t, 160 * (t + 1));
        expect(own).toEqual([...own].sort((a, b) => b - a));
        expect(new Set(order).size).toBe(160);
        expect(own[order.indexOf(token)]).toBeCloseTo(logProbs[t] as number, 5);
        expect(own.reduce((sum, lp) => sum + Math.exp(lp), 0)).toBeCloseTo(1, 5);
      }
    });
  });

  test.each<Partial<ActorOptions>>([
    { worldSize: 2 },
    { worldSize: 2, parallel: { tp: 2 } },
    { worldSize: 2, parallel: { tp: 2, sequenceParallel: true } },
    { worldSize: 2, parallel: { pp: 2 } },
    { worldSize: 2, parallel: { cp: 2 } },
    { worldSize: 2, parallel: { ulysses: 2 } },
    { worldSize: 4, parallel: { tp: 2, pp: 2 } },
    { maxTokensPerMicroBatch: 48 },
  ])(
    'and what is learnt from them on %j are those of one worker',
    async (layout) => {
      const one = await withActor({}, (actor) => taught(actor, distillation));
      const other = await withActor(layout, (actor) => taught(actor, distillation));
      expect(flat(other.found.topIds)).toEqual(flat(one.found.topIds));
      for (const [i, lp] of flat(one.found.topLogProbs).entries())
        expect(flat(other.found.topLogProbs)[i]).toBeCloseTo(lp, 4);
      for (const [step, record] of one.metrics.entries())
        for (const [name, value] of Object.entries(record)) {
          if (name.startsWith('perf/')) continue;
          const own = (other.metrics[step] as Line)[name] as number;
          expect([name, Math.abs(own - value) / Math.max(1, Math.abs(value)) < 2e-5]).toEqual([name, true]);
        }
    },
    120_000,
  );

  test('a teacher’s columns of another length are refused', async () => {
    await withActor({}, async (actor) => {
      const { topIds, topLogProbs } = await actor.computeLogProb(batch, { topK: 5 });
      const short = batch.with({ teacherTopLogProbs: topLogProbs, teacherTopIds: topIds });
      await expect(actor.updatePolicy(short, { loss: { distillation } })).rejects.toThrow(
        /column 'teacherTopLogProbs', sequence 0: expected Float32Array of 240 \(40 response tokens x 6\) but got Float32Array of 200/,
      );
      const broken = batch.with({
        teacherTopLogProbs: topLogProbs?.map((own) => own.with(7, Number.NaN)),
        teacherTopIds: topIds,
      });
      await expect(actor.updatePolicy(broken, { loss: { distillation } })).rejects.toThrow(
        /column 'teacherTopLogProbs', sequence 0: expected log-probs, got NaN at place 7/,
      );
    });
  });
});
