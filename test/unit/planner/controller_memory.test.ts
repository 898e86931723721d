// The memory of the trainer's process that is planned for a step, against the bytes of arrays that real steps hold: 16,384 sequences.
import { setTimeout } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { ValidTokens } from '../../../ts/algorithms/rollout_correction/valid_tokens';
import { Batch } from '../../../ts/batch/batch';
import { ColumnMemory } from '../../../ts/batch/column_memory';
import type { PromptImage } from '../../../ts/batch/prompt_image';
import type { ResolvedConfig } from '../../../ts/config/config';
import { asynchrony } from '../../../ts/config/derived/asynchrony';
import { needsCritic, needsReference } from '../../../ts/config/derived/roles';
import { planController } from '../../../ts/planner/controller_memory';
import { controllerSpec } from '../../../ts/planner/controller_request';
import { ONE_MODEL } from '../../../ts/planner/places';
import type { PlanSpec } from '../../../ts/planner/plan';
import type { ImageLimits } from '../../../ts/planner/prompt_images';
import { controllerWarnings } from '../../../ts/planner/render_controller';
import type { RewardManager } from '../../../ts/reward/contract/types';
import type { BatchRequest } from '../../../ts/rollout/engine';
import { SampledColumns } from '../../../ts/rollout/sampled_columns';
import { AsyncCollector } from '../../../ts/trainer/async_collector';
import { BatchCollector } from '../../../ts/trainer/collect';
import type { Engines } from '../../../ts/trainer/engines';
import { PhaseTimer } from '../../../ts/trainer/metrics/metrics';
import { PromptStream } from '../../../ts/trainer/prompt_stream';
import type { Prompt } from '../../../ts/trainer/rollout';
import { type StepContext, trainStep } from '../../../ts/trainer/step';
import { fakeRollout } from '../../helpers/fake_rollout';
import { runConfig, runDirectory } from '../../helpers/fake_run';

const [PROMPTS, N, PROMPT, RESPONSE] = [1024, 16, 16, 112];
/** Prompts where another way of a step is what is looked at. */
const FEW = 256;

/** A step of so many prompts. */
const sized = (prompts: number): string[] => [
  `data.train_batch_size=${prompts}`,
  `actor_rollout_ref.actor.ppo_mini_batch_size=${prompts}`,
  `critic.ppo_mini_batch_size=${prompts}`,
];

const configOf = (overrides: readonly string[]): ResolvedConfig =>
  runConfig(runDirectory(), [
    ...sized(PROMPTS),
    `data.max_prompt_length=${PROMPT}`,
    `data.max_response_length=${RESPONSE}`,
    `actor_rollout_ref.rollout.n=${N}`,
    ...overrides,
  ]);

/** A pool of two ranks, so that results come in parts. */
const policyOf = (images?: ImageLimits): PlanSpec =>
  ({
    worldSize: 2,
    roles: ['actor', 'reference', 'critic'].map((name) => ({
      name,
      ulysses: 1,
      layout: ONE_MODEL,
      model: { moe: null, maxPositions: 1024 },
      ...(images === undefined ? {} : { images }),
    })),
  }) as unknown as PlanSpec;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

/** Bytes of all arrays; a second collection waits for what the first has freed. */
function arrayBytes(): number {
  collect();
  collect();
  return process.memoryUsage().arrayBuffers;
}

/** The same when nothing more is freed of what was there before: earlier test files of this process leave arrays behind for some turns. */
async function settledBytes(): Promise<number> {
  for (let last = arrayBytes(); ; ) {
    await setTimeout(50);
    const bytes = arrayBytes();
    if (bytes === last) return bytes;
    last = bytes;
  }
}

/** The most that was seen in each phase, of the step that is looked at. */
class Measured {
  readonly phases = new Map<string, number>();
  phase = '';
  looks = false;

  constructor(private readonly before: number) {}

  see(): void {
    if (!this.looks) return;
    const bytes = arrayBytes() - this.before;
    this.phases.set(this.phase, Math.max(bytes, this.phases.get(this.phase) ?? 0));
  }
}

class MeasuringTimer extends PhaseTimer {
  constructor(private readonly measured: Measured) {
    super();
  }

  override async time<T>(phase: string, work: () => Promise<T> | T): Promise<T> {
    this.measured.phase = phase;
    const result = await work();
    this.measured.phase = phase;
    this.measured.see();
    return result;
  }
}

/** Engines whose results come in parts: into memory that goes from step to step. */
function enginesOf(config: ResolvedConfig, measured: Measured): Engines {
  const [actor, reference, critic] = [new ColumnMemory(), new ColumnMemory(), new ColumnMemory()];
  const column = (memory: ColumnMemory, batch: Batch, value: number): Float32Array =>
    memory.float32(batch.numResponseTokens).fill(value);
  const update = async (): Promise<Record<string, number>> => {
    measured.see();
    return {};
  };
  const logProbs = async (batch: Batch) => ({
    logProbs: column(actor, batch, -1),
    entropy: column(actor, batch, 1),
    sumPiSquared: null,
  });
  return {
    worldSize: 2,
    dataParallelSize: 2,
    actor: { computeLogProb: logProbs, updatePolicy: update },
    rollout: {
      ...fakeRollout(() => []),
      submitBatch: async ({ prompts, n, versions }: BatchRequest) => {
        const lengths = new Int32Array(prompts.size * n).fill(RESPONSE);
        if (versions) await new Promise((done) => setImmediate(done));
        const columns = new SampledColumns(prompts, n, lengths, versions ? new ColumnMemory() : actor);
        columns.rolloutLogProbs.fill(-1);
        const batch = columns.batch(null);
        if (!versions) return batch;
        const version = new Int32Array(batch.numResponseTokens);
        return batch.with({ version }, { granularity: { version: 'response' }, adopt: true });
      },
    },
    reference: needsReference(config)
      ? {
          computeLogProb: async (batch: Batch) => ({
            logProbs: column(reference, batch, -1),
            entropy: null,
            sumPiSquared: null,
          }),
        }
      : null,
    critic: needsCritic(config)
      ? {
          computeValues: async (batch: Batch) => ({ values: column(critic, batch, 0) }),
          updateCritic: update,
        }
      : null,
    rewardModel: null,
    setPhase: () => undefined,
    close: async () => undefined,
  } as unknown as Engines;
}

function rewardOf(measured: Measured): RewardManager {
  return {
    score: async (samples) => {
      // A part of the prompts has responses that are all alike.
      const scores = Float64Array.from(samples, (_, i) => (Math.floor(i / N) % 4 === 0 ? 1 : i % 2));
      let read = false;
      return {
        get scores() {
          // The place of the scores is there, and what was scored still is.
          if (!read) measured.see();
          read = true;
          return scores;
        },
        extras: {},
        failures: 0,
      };
    },
  };
}

/** Of a model of which a token stands for 28 x 28 pixels. */
const SIDE = 28;
const LIMITS: ImageLimits = { leastTokens: 1, mostTokens: 100, tokenBytes: 3 * SIDE ** 2 };

/** One image in the place of all tokens, with pixels of its own. */
function imageOf(): PromptImage[] {
  const [height, width] = [(SIDE * PROMPT) / 4, SIDE * 4];
  return [{ height, width, pixels: new Uint8Array(height * width * 3) }];
}

const promptOf = (i: number, images: boolean): Prompt => ({
  tokens: Int32Array.from({ length: PROMPT }, (_, t) => (i >> (4 * t)) % 16),
  dataSource: 'made',
  groundTruth: '',
  extraInfo: {},
  // Read when they are wanted, as those of data are.
  ...(images ? { images: async () => imageOf() } : {}),
});

/** The second step of a run, phase by phase. */
async function measuredStep(config: ResolvedConfig, measured: Measured, images: boolean): Promise<void> {
  const given = Array.from({ length: config.data.gen_batch_size }, (_, i) => promptOf(i, images));
  const kl = { value: 0.1, update: () => undefined, state: () => ({ value: 0.1 }), restore: () => undefined };
  const context: StepContext = {
    config,
    engines: enginesOf(config, measured),
    decoder: { decode: () => '' },
    agents: null,
    reward: rewardOf(measured),
    kl,
    timer: new MeasuringTimer(measured),
    pause: () => undefined,
  };
  const source = {
    batchesPerEpoch: 100,
    next: async () => ({ prompts: given, epoch: 0 }),
    state: () => null,
    restore: () => undefined,
  };
  const ahead = asynchrony(config);
  const collector =
    ahead === null
      ? new BatchCollector(context, { ...source, position: () => ({ loader: null }) })
      : new AsyncCollector(context, new PromptStream(source, 0), {
          ...ahead,
          totalSteps: 9,
          batchesPerEpoch: 100,
        });
  const step = async (number: number): Promise<void> => {
    (await trainStep(context, collector, number)).batch.recycle();
    await collector.learnt();
  };
  await step(1);
  await setTimeout(10); // as between steps of a run; what was asked for by a weak reference lives until then
  // Counted from before the first step: what that leaves belongs to the second.
  measured.looks = true;
  await step(2);
  await collector.close();
}

// Without the room for longer columns, to which nobody writes.
beforeEach(() => {
  const memory = ColumnMemory.prototype as unknown as { fresh(bytes: number): ArrayBuffer };
  jest.spyOn(memory, 'fresh').mockImplementation((bytes) => new ArrayBuffer(bytes));
});
afterEach(() => jest.restoreAllMocks());

const WEIGHED = [
  'algorithm.rollout_correction={rollout_is: token, rollout_rs: token_k1, rollout_rs_threshold: "0.5_2"}',
  ...sized(FEW),
];

const STEPS: [string, string[], ImageLimits?][] = [
  ['images', ['actor_rollout_ref.actor.use_kl_loss=true', ...sized(FEW)], LIMITS],
  [
    'images of prompts that are left out',
    [
      'algorithm.filter_groups={enable: true, metric: seq_reward}',
      ...sized(FEW / 16),
      `data.gen_batch_size=${FEW}`,
    ],
    LIMITS,
  ],
  [
    'images of sequences that are drawn anew',
    ['algorithm={adv_estimator: gae, use_pf_ppo: true}', ...sized(FEW)],
    LIMITS,
  ],
  ['GRPO with a reference', ['actor_rollout_ref.actor.use_kl_loss=true']],
  [
    'PPO with a critic, KL in the reward and sequences that are drawn anew',
    ['algorithm={adv_estimator: gae, use_kl_in_reward: true, use_pf_ppo: true}', ...sized(FEW)],
  ],
  ['weights and rejected tokens', WEIGHED],
  ['greedy answers as baselines', ['algorithm.adv_estimator=remax', ...sized(FEW)]],
  [
    'prompts that are left out',
    [
      'algorithm.filter_groups={enable: true, metric: seq_reward}',
      ...sized(FEW / 16),
      `data.gen_batch_size=${FEW}`,
    ],
  ],
  [
    'prompts ahead',
    ['trainer.v1.trainer_mode=colocate_async', 'actor_rollout_ref.actor.use_kl_loss=true', ...sized(FEW)],
  ],
];

// A row has three parts: Jest gives a function with one more a callback in its place.
test.each(STEPS.map(([name, overrides, images]) => [name, overrides, images ?? null] as const))(
  '%s: what each phase of a step holds is what is planned, within 10 %%',
  async (_, overrides, images) => {
    const config = configOf(overrides);
    const spec = controllerSpec(config, policyOf(images ?? undefined));
    const plan = planController(spec);
    const measured = new Measured(await settledBytes());
    // What rollout correction takes is seen in the middle of it. Not by a spy of Jest, which holds all that it is given.
    const { clampedDeviation } = ValidTokens.prototype;
    const { concat } = Batch;
    Batch.concat = (batches): Batch => {
      const whole = concat.call(Batch, batches);
      if (spec.ahead !== null) measured.see();
      return whole;
    };
    ValidTokens.prototype.clampedDeviation = function (this: ValidTokens, ...args) {
      measured.see();
      return clampedDeviation.apply(this, args);
    };
    try {
      await measuredStep(config, measured, images !== null);
    } finally {
      ValidTokens.prototype.clampedDeviation = clampedDeviation;
      Batch.concat = concat;
    }
    const compared = plan.phases.filter(({ phase }) => measured.phases.has(phase));
    const ratios = compared.map(({ phase, columns, kept, work }) => [
      phase,
      (columns + kept + work) / (measured.phases.get(phase) as number),
    ]);
    expect(compared.length).toBeGreaterThanOrEqual(5);
    // The newest of those ahead are still being worked on when a step takes its own.
    const spare = (phase: string): number => (phase === 'gen' && spec.ahead !== null ? 0.2 : 0.1);
    const off = ratios.filter(([phase, ratio]) => {
      const over = (ratio as number) - 1;
      return over > spare(phase as string) || over < -0.1;
    });
    expect(off).toEqual([]);
  },
  120_000,
);

const longer = (prompts: number, length: number): string[] => [
  ...sized(prompts),
  `data.max_prompt_length=${length / 2}`,
  `data.max_response_length=${length / 2}`,
];

test('131,072 sequences of 2,048 tokens fit into 16 GB; 1,600,000 are more than a batch may have, and than 32 GiB', () => {
  const warningsOf = (prompts: number, memory: number): string[] => {
    const spec = controllerSpec(configOf(longer(prompts, 2048)), policyOf());
    return controllerWarnings(spec, planController(spec), { memory, given: true });
  };
  expect(warningsOf(8192, 16e9)).toEqual([]);
  const [tokens, memory, ...others] = warningsOf(100_000, 32 * 2 ** 30);
  expect(tokens).toMatch(/^a batch of 3\.28 B tokens is more than the 2\^31-1 that one may have/);
  expect(memory).toMatch(
    /^the trainer's process takes [\d.]+ GiB in \w+ .*its machine has 32\.00 GiB: lower /,
  );
  expect(others).toEqual([]);
});

test('what one rank computes is not received in parts, and is not kept', () => {
  const config = configOf(['actor_rollout_ref.actor.use_kl_loss=true']);
  const kept = (worldSize: number): number =>
    planController(controllerSpec(config, { ...policyOf(), worldSize })).phases[0]?.kept as number;
  // oldLogProbs, entropy and refLogProbs
  expect([kept(1), kept(2)]).toEqual([0, 3 * 4 * PROMPTS * N * RESPONSE]);
});
