// Where a step gets the responses that it learns from.
import type { Trajectory } from '../agent/trajectory/trajectory';
import { deriveSeed } from '../base/seed';
import type { ResolvedConfig } from '../config/config';
import type { RewardManager } from '../reward/contract/types';
import { trainSampling } from '../roles/settings';
import type { RolloutEngine } from '../rollout/engine';
import { type AgentRollout, type Collected, collectBatch, scoreTrajectories } from './agent_rollout';
import { type Generation, type Sampled, sampleGroups } from './dynamic_sampling';
import type { Engines } from './engines';
import { DraftMetrics } from './metrics/draft_metrics';
import type { Metrics } from './metrics/metrics';
import { type Decoder, generateResponses, type Prompt, type Scored, scoreResponses } from './rollout';
import { type RolloutRecordings, type StepRollout, unrecorded } from './rollout_recordings';
import type { Position } from './session';
import type { PromptSource } from './training_data';

/** Runs one phase of a step: named in errors and timed. */
export type Phase = <T>(name: string, work: () => Promise<T> | T) => Promise<T>;

/** What responses are made and scored with. */
export interface CollectContext {
  config: ResolvedConfig;
  engines: Pick<Engines, 'rollout' | 'rewardModel' | 'releaseRollout'>;
  decoder: Decoder;
  /** null: prompts are answered once each. */
  agents: AgentRollout | null;
  reward: RewardManager;
}

/** What a step learns from. */
export interface Taken extends Sampled {
  trajectories: readonly Trajectory[];
  /** What differs from run to run, and no phase tells: shares of time, how well drafts were. */
  timings: Metrics;
}

export interface Collector {
  /** The responses of step `step`. `pause` is called between phases; it throws when the step is to be given up. */
  take(step: number, phase: Phase, pause: () => void): Promise<Taken>;
  /** What `pause` of {@link take} looks at has changed: a take that waits calls it. */
  nudge(): void;
  /** The workers are needed for something else than responses, until {@link learnt}. */
  beforeLearning(): Promise<void>;
  /** The policy has the weights of step `step`, the rollout knows, and nothing else is computed for the step. */
  learnt(step: number): Promise<void>;
  /** Of the prompts, after the last step. */
  position(): Pick<Position, 'loader' | 'queue'>;
  /** Gives up what is under way. */
  close(): Promise<void>;
  /** Resolves when nothing of it goes on after {@link close}, such as a reward that was being computed. */
  settled(): Promise<void>;
}

/** Scored responses with what their agents left. */
export const scored = (
  { engines, decoder, reward }: Pick<CollectContext, 'engines' | 'decoder' | 'reward'>,
  { batch, trajectories }: Collected,
): Promise<Scored> =>
  trajectories
    ? scoreTrajectories({ batch, trajectories }, decoder, reward, engines.rewardModel)
    : scoreResponses(batch, decoder, reward, engines.rewardModel);

/** Where batches come from. */
export interface BatchSource extends Pick<PromptSource, 'batchesPerEpoch' | 'next'> {
  position(): Pick<Position, 'loader' | 'queue'>;
}

/** The next batch of prompts for every step, or with dynamic sampling as many as it takes: nothing else is worked on. */
export class BatchCollector implements Collector {
  private readonly drafts: DraftMetrics;
  /** Of a take whose agents work. */
  private giveUp: (() => void) | null = null;

  constructor(
    private readonly context: CollectContext,
    private readonly source: BatchSource,
    private readonly recordings: RolloutRecordings | null = null,
  ) {
    this.drafts = new DraftMetrics(context.engines.rollout);
  }

  async take(step: number, phase: Phase, pause: () => void): Promise<Taken> {
    const { rollout } = this.context.engines;
    const from = (await this.recordings?.of(step, rollout)) ?? unrecorded(rollout);
    try {
      await this.drafts.take(); // of a validation before
      const taken = await this.takeFrom(from, step, phase, pause);
      return { ...taken, timings: await this.drafts.take() };
    } finally {
      from.close();
    }
  }

  private async takeFrom(
    rollout: StepRollout,
    step: number,
    phase: Phase,
    pause: () => void,
  ): Promise<Omit<Taken, 'timings'>> {
    const { config } = this.context;
    const trajectories: Trajectory[] = [];
    const generate = async (index: number): Promise<Generation> => {
      const { prompts, epoch } = await this.source.next();
      const collected = await phase('gen', () => this.collect(rollout.engine, prompts, step, index, pause));
      pause();
      const whole = await phase('reward', () => scored(this.context, collected));
      for (const trajectory of collected.trajectories ?? []) trajectories.push(trajectory);
      pause();
      return { prompts, epoch, scored: whole };
    };
    const { enable, metric, max_num_gen_batches } = config.algorithm.filter_groups;
    if (!enable || metric === null) {
      const generation = await generate(0);
      const { numResponseTokens: generatedTokens } = generation.scored.batch;
      return { ...generation, metrics: rollout.metrics(), generatedTokens, trajectories };
    }
    const sampled = await sampleGroups(generate, {
      wanted: config.data.train_batch_size,
      metric,
      maxGenBatches: max_num_gen_batches,
      batchesPerEpoch: this.source.batchesPerEpoch,
      onError: config.reward.on_error,
    });
    return { ...sampled, metrics: { ...sampled.metrics, ...rollout.metrics() }, trajectories };
  }

  nudge(): void {
    this.giveUp?.();
  }

  async beforeLearning(): Promise<void> {
    await this.context.engines.releaseRollout?.();
  }

  async learnt(): Promise<void> {}

  position(): Pick<Position, 'loader' | 'queue'> {
    return this.source.position();
  }

  async close(): Promise<void> {}

  async settled(): Promise<void> {}

  /** `index`: of the generation batch in the step; the first has the seed that it has without dynamic sampling. */
  private async collect(
    rollout: RolloutEngine,
    prompts: readonly Prompt[],
    step: number,
    index: number,
    pause: () => void,
  ): Promise<Collected> {
    const { config, agents } = this.context;
    const place = index === 0 ? [step] : [step, index];
    const seed = deriveSeed(config.trainer.seed, 'rollout', ...place);
    const sampling = { ...trainSampling(config), seed };
    const uid = place.join('.');
    if (agents)
      return await this.whilePauses(pause, (signal) =>
        collectBatch(agents, rollout, prompts, sampling, uid, false, { signal }),
      );
    return { batch: await generateResponses(rollout, prompts, sampling, uid), trajectories: null };
  }

  /** Work that is given up where `pause` throws: an agent's tool may take any time. */
  private async whilePauses<T>(pause: () => void, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const given = new AbortController();
    this.giveUp = () => {
      try {
        pause();
      } catch (error) {
        given.abort(error);
      }
    };
    try {
      return await work(given.signal);
    } finally {
      this.giveUp = null;
    }
  }
}
