// A run without models: engines whose "weights" are one number that every update changes, prompts that are
// numbers, and a configuration that fits them.
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { PolicyUpdateOptions } from '../../ts/actor/actor';
import { deriveSeed } from '../../ts/base/seed';
import type { Batch } from '../../ts/batch/batch';
import { loadConfig, type ResolvedConfig } from '../../ts/config/config';
import type { RewardFunction } from '../../ts/reward/contract/types';
import type { RolloutRequest } from '../../ts/rollout/request';
import type { CreateEngines, EngineNeeds, Engines } from '../../ts/trainer/engines';
import type { Prompt } from '../../ts/trainer/rollout';
import { Trainer, type TrainerOptions } from '../../ts/trainer/trainer';
import type { TrainingData } from '../../ts/trainer/training_data';
import { fakeRollout } from './fake_rollout';

/** 0 <= x < 1, a pure function of its arguments. */
const noise = (...parts: (number | string)[]): number => deriveSeed(...parts) / 2 ** 53;

/** One score per response token, from the weights and the token. */
const perToken = (batch: Batch, weights: number, purpose: string): Float32Array =>
  Float32Array.from({ length: batch.numResponseTokens }, (_, t) => -noise(purpose, weights * 1e9, t));

/** What a mixture with one layer, of which a token chooses one expert, might record. */
export const expertsOf = (batch: Batch): Uint8Array[] =>
  Array.from({ length: batch.size }, (_, i) =>
    Uint8Array.from([...batch.prompt(i), ...batch.response(i)], (id) => id % 4),
  );

/** What the reward model gives: the sum of the response's tokens. */
export const modelScores = (batch: Batch): Float32Array =>
  Float32Array.from({ length: batch.size }, (_, i) => batch.response(i).reduce((sum, id) => sum + id, 0));

export class FakeEngines {
  /** Names of the calls made, in order. */
  readonly calls: string[] = [];
  weights = 0.5;
  criticWeights = 0.25;
  /** Parts that the actor's batches are said to be split into. */
  dataParallelSize = 1;
  /** Responses come from processes of their own. */
  apart = false;
  updateOptions: unknown = null;
  criticOptions: unknown = null;
  logProbOptions: unknown = null;
  /** A copy of the batch of every updatePolicy, in order. */
  readonly updates: Batch[] = [];
  /** The miniBatchSize of every updatePolicy. */
  readonly miniBatches: PolicyUpdateOptions['miniBatchSize'][] = [];
  /** Of every rollout request. */
  readonly priorities: (number | undefined)[] = [];
  /** The same. */
  readonly mostNewTokens: number[] = [];
  closeError: Error | null = null;
  /** Sees every call before it is made, with its number from 1; may throw. */
  onCall: (count: number, name: string) => void = () => {};

  failAt(count: number, error: Error): void {
    this.onCall = (call) => {
      if (call === count) throw error;
    };
  }

  async create(needs: EngineNeeds): Promise<Engines> {
    return {
      worldSize: 1,
      dataParallelSize: this.dataParallelSize,
      actor: {
        computeLogProb: async (batch, options) => {
          this.call('actor.computeLogProb');
          this.logProbOptions = options;
          const entropy = perToken(batch, this.weights, 'entropy').map((x) => -x);
          const routed = options?.recordExperts ? { routedExperts: expertsOf(batch) } : {};
          return { logProbs: perToken(batch, this.weights, 'actor'), entropy, sumPiSquared: null, ...routed };
        },
        updatePolicy: async (batch, options) => {
          this.call('updatePolicy');
          this.updateOptions = options;
          this.updates.push(batch.slice());
          this.miniBatches.push(options?.miniBatchSize);
          this.weights += batch.get('advantages').reduce((sum, x, t) => sum + x * 0.001 * (t + 1), 0);
          return { 'actor/pg_loss': this.weights, 'perf/mfu/actor': performance.now() };
        },
        saveModel: async () => this.call('saveModel'),
        saveAdapter: async () => this.call('saveAdapter'),
        saveCheckpoint: async (dir) => {
          this.call('actor.saveCheckpoint');
          this.write(dir, this.weights);
        },
        loadCheckpoint: async (dir) => {
          this.weights = this.read(dir);
        },
      },
      rollout: fakeRollout((requests) => this.generate(requests)),
      ...(this.apart
        ? {
            syncRollout: async () => this.call('syncRollout'),
            releaseRollout: async () => this.call('releaseRollout'),
          }
        : {}),
      reference: needs.reference
        ? {
            computeLogProb: async (batch) => {
              this.call('ref.computeLogProb');
              return { logProbs: perToken(batch, 0.5, 'actor'), entropy: null, sumPiSquared: null };
            },
          }
        : null,
      critic: needs.critic
        ? {
            computeValues: async (batch) => {
              this.call('computeValues');
              return { values: perToken(batch, this.criticWeights, 'values') };
            },
            updateCritic: async (batch, options) => {
              this.criticOptions = options;
              this.call('updateCritic');
              this.criticWeights += batch.get('returns').reduce((sum, x) => sum + x * 0.001, 0);
              return { 'critic/vf_loss': this.criticWeights };
            },
            saveModel: async () => this.call('critic.saveModel'),
            saveCheckpoint: async (dir) => {
              this.call('critic.saveCheckpoint');
              this.write(dir, this.criticWeights);
            },
            loadCheckpoint: async (dir) => {
              this.criticWeights = this.read(dir);
            },
          }
        : null,
      rewardModel: needs.rewardModel
        ? {
            score: async (batch) => {
              this.call('rewardModel.score');
              return modelScores(batch);
            },
          }
        : null,
      setPhase: () => {},
      close: async () => {
        this.calls.push('close');
        if (this.closeError) throw this.closeError;
      },
    };
  }

  private call(name: string): void {
    this.calls.push(name);
    this.onCall(this.calls.length, name);
  }

  private generate(requests: readonly RolloutRequest[]): { tokens: number[]; logProbs: number[] }[] {
    this.call('generate');
    this.priorities.push(...requests.map(({ priority }) => priority));
    this.mostNewTokens.push(...requests.map(({ sampling }) => sampling.maxNewTokens));
    let at = 0;
    return requests.map(({ promptIds, sampling }, i) => {
      const key = [String(sampling.seed), i, promptIds[0] as number, this.weights * 1e9] as const;
      const length = 1 + Math.floor(noise('length', ...key) * sampling.maxNewTokens);
      const tokens = Array.from({ length }, (_, t) => Math.floor(noise('token', t, ...key) * 10));
      const logProbs = tokens.map(() => -noise('actor', this.weights * 1e9, at++));
      return { tokens, logProbs };
    });
  }

  private write(dir: string, weights: number): void {
    mkdirSync(dir, { recursive: true });
    writeFileSync(join(dir, 'weights'), String(weights));
  }

  private read(dir: string): number {
    return Number(readFileSync(join(dir, 'weights'), 'utf8'));
  }
}

const prompt = (i: number): Prompt => ({
  tokens: [i + 1],
  dataSource: 'fake',
  groundTruth: String(i),
  extraInfo: {},
});

/** Two prompts per batch, three batches per epoch. */
export function fakeData(): TrainingData {
  let position = 0;
  return {
    train: {
      batchesPerEpoch: 3,
      next: async () => {
        const epoch = Math.floor(position / 3);
        return { prompts: [prompt(2 * position++), prompt(2 * position)], epoch };
      },
      state: () => ({ position }),
      restore: (state) => {
        position = (state as { position: number }).position;
      },
    },
    validation: [prompt(100), prompt(101), prompt(102)],
    decoder: { decode: (tokens) => Array.from(tokens).join(' ') },
  };
}

/** Longer answers score more, even first tokens most. */
export const lengthReward: RewardFunction = ({ responseTokens }) =>
  responseTokens.length / 4 + ((responseTokens[0] as number) % 2 === 0 ? 1 : 0);

/** Two prompts x four responses per step. */
export function runConfig(directory: string, overrides: readonly string[]): ResolvedConfig {
  const file = join(mkdtempSync(join(tmpdir(), 'config-')), 'run.yaml');
  writeFileSync(
    file,
    `
data: { train_files: none.jsonl, val_files: none.jsonl, train_batch_size: 2, max_prompt_length: 4, max_response_length: 4 }
actor_rollout_ref:
  model: { path: none }
  actor: { ppo_mini_batch_size: 1 }
  rollout: { n: 4 }
critic: { model: { path: none }, ppo_mini_batch_size: 1 }
algorithm: { adv_estimator: grpo }
trainer: { default_local_dir: ${JSON.stringify(directory)}, total_epochs: 2, logger: [] }
`,
  );
  return loadConfig(file, [...overrides]);
}

/** A new one, empty. */
/** What makes a run learn with a critic, and with KL in the reward whose coefficient moves. */
export const ppo = [
  'algorithm.adv_estimator=gae',
  'algorithm.use_kl_in_reward=true',
  'algorithm.kl_ctrl.type=adaptive',
];

export const runDirectory = (): string => mkdtempSync(join(tmpdir(), 'trainer-'));

export const read = (directory: string, name: string): string => readFileSync(join(directory, name), 'utf8');

export interface Setup {
  directory?: string;
  overrides?: string[];
  engines?: FakeEngines;
  options?: TrainerOptions;
}

/** A trainer over fakes; `engines` counts and disturbs its calls. */
export function trainer({
  directory = runDirectory(),
  overrides = [],
  engines = new FakeEngines(),
  options = {},
}: Setup = {}) {
  const create: CreateEngines = async (_, needs) => engines.create(needs);
  const config = runConfig(directory, overrides);
  return {
    directory,
    engines,
    trainer: new Trainer(config, {
      reward: lengthReward,
      engines: create,
      data: async () => fakeData(),
      ...options,
    }),
  };
}

/** Lines of a log of a run. */
export const lines = (directory: string, file = 'metrics.jsonl'): Record<string, number>[] =>
  read(directory, file)
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
/** Lines of metrics.jsonl that are of training steps. */
export const steps = (directory: string): Record<string, number>[] =>
  lines(directory).filter((line) => 'critic/score/mean' in line);
export const checkpoints = (directory: string): string[] =>
  readdirSync(directory)
    .filter((name) => name.startsWith('global_step'))
    .sort();

/** Right in one of five responses: of two prompts out of five, all four responses are alike. */
export const rareReward: RewardFunction = ({ responseTokens }) => {
  const right = (responseTokens[0] as number) < 2;
  return { score: right ? 1 : 0, acc: right, length: responseTokens.length };
};

/** Runs to the end, then again with a death at every `stride`-th call: metrics and weights must not tell. */
export async function expectNoTrace(
  overrides: string[],
  reward: RewardFunction,
  stride: number,
): Promise<string> {
  const whole = trainer({ overrides, options: { reward } });
  await whole.trainer.fit();
  const metrics = read(whole.directory, 'metrics.jsonl');
  for (let deadAt = 1; deadAt < whole.engines.calls.length - 1; deadAt += stride) {
    const directory = runDirectory();
    const dying = new FakeEngines();
    dying.failAt(deadAt, new Error('killed'));
    const killed = trainer({ directory, overrides, engines: dying, options: { reward } });
    await expect(killed.trainer.fit()).rejects.toThrow('killed');
    const resumed = trainer({ directory, overrides, options: { reward } });
    await resumed.trainer.fit();
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
    expect(resumed.engines.weights).toBe(whole.engines.weights);
    rmSync(directory, { recursive: true });
  }
  return whole.directory;
}
