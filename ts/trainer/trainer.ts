import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { createKlController, type KlController } from '../algorithms/kl';
import type { ResolvedConfig } from '../config/config';
import { needsCritic, needsReference, needsRewardModel } from '../config/derived/roles';
import type { Launcher, LauncherOptions } from '../controller/launcher';
import { TroupeError } from '../errors';
import { createLoggers, type Loggers } from '../logging/loggers';
import type { BatchRewardFunction, RewardFunction, RewardManager } from '../reward/contract/types';
import { usesLora } from '../roles/lora';
import { type Checkpoint, CheckpointStore } from '../run/checkpoint_store';
import { RunDirectory, writableDirectory, writeDump } from '../run/run_directory';
import { findCheckpoint, type TrainerState, trainerState } from '../run/trainer_state';
import { configuredReward } from './configured_reward';
import { type CreateEngines, createEngines, type Engines } from './engines';
import { type Metrics, PhaseTimer, timingMetrics } from './metrics/metrics';
import { dumpRows } from './rollout';
import { type StepResult, trainStep } from './step';
import { type LoadTrainingData, loadTrainingData, type TrainingData } from './training_data';
import { validate } from './validation';

export interface TrainerOptions {
  /** Scores responses. Default: `reward.custom_reward_function`, else the function registered for each data source. */
  reward?: RewardFunction;
  /** The same for the manager `batch`: scores all responses of a batch at once. */
  batchReward?: BatchRewardFunction;
  /** How worker processes start. Default: on this machine. */
  launcher?: LauncherOptions | Launcher;
  /** Receives what is worth a line to people. Default: none. */
  log?: (line: string) => void;
  /** Makes the engines; tests give fakes. */
  engines?: CreateEngines;
  /** Makes the prompts and the tokenizer; tests give fakes. */
  data?: LoadTrainingData;
}

export interface FitResult {
  /** Steps done since the beginning of the run, earlier sessions included. */
  step: number;
  /** True when `requestStop` ended the run early; a checkpoint of `step` is on disk then (none for step 0). */
  interrupted: boolean;
  stopReason: string | null;
  /** Of the last step of this session. */
  metrics: Metrics;
  /** Of the last validation of this session. */
  validation: Metrics;
  runDirectory: string;
  /** Hugging Face directory of the trained model; null when interrupted or `trainer.val_only`. */
  finalModel: string | null;
}

/** Thrown between phases to give up a step that has not changed anything yet. */
class StepAbandoned extends Error {}

/** All that a run holds while it runs. */
interface Run {
  data: TrainingData;
  engines: Engines;
  reward: RewardManager;
  kl: KlController;
  loggers: Loggers;
  totalSteps: number;
  /** Steps done, and the loader's position and the KL coefficient after them. */
  state: TrainerState;
  /** Step of the newest checkpoint on disk. */
  savedStep: number;
  metrics: Metrics;
  validation: Metrics;
}

/**
 * Trains a policy by reinforcement learning as the configuration says: GRPO, PPO and their relatives. Files go to
 * `trainer.default_local_dir`: config.json, metrics.jsonl (reproducible bitwise), timings.jsonl, samples/, checkpoints, final_model/.
 */
export class Trainer {
  private stopReason: string | null = null;

  constructor(
    private readonly config: ResolvedConfig,
    private readonly options: TrainerOptions = {},
  ) {}

  /** Ends `fit` soon, with a checkpoint: at once between the phases of a step that has not updated anything, else after it. */
  requestStop(reason: string): void {
    this.stopReason ??= reason;
  }

  /**
   * Runs to the end, or until `requestStop`. On any error everything is closed and the newest checkpoint stays.
   * @throws WorkerDiedError within seconds of a worker's death; TroupeError with a code for all else
   */
  async fit(): Promise<FitResult> {
    const { config, options } = this;
    const { default_local_dir, max_actor_ckpt_to_keep } = config.trainer;
    const store = new CheckpointStore<TrainerState>(default_local_dir, max_actor_ckpt_to_keep);
    store.checkForeign();
    const resumed = findCheckpoint(config, store);
    const { reward, prepare } = configuredReward(config, options.reward ?? options.batchReward);
    let engines: Engines | null = null;
    let loggers: Loggers | null = null;
    try {
      const data = await (options.data ?? loadTrainingData)(config);
      for (const note of data.notes ?? []) this.log(note);
      await prepare(data.dataSources ?? []);
      const totalSteps =
        config.trainer.total_training_steps ?? data.train.batchesPerEpoch * config.trainer.total_epochs;
      const kl = createKlController(klOptions(config));
      restore(resumed, data, kl);
      const directory = new RunDirectory(default_local_dir);
      for (const key of ['rollout_data_dir', 'validation_data_dir'] as const) {
        const path = config.trainer[key];
        if (path !== null) writableDirectory(`trainer.${key}`, path);
      }
      engines = await (options.engines ?? createEngines)(config, {
        reference: needsReference(config),
        critic: needsCritic(config),
        rewardModel: needsRewardModel(config),
        totalSteps,
        launcher: options.launcher,
      });
      if (resumed) await loadEngines(resumed, engines);
      const step = resumed?.step ?? 0;
      // All that can be wrong with the input has shown itself: only now are files of an earlier run touched.
      store.removeLeftovers();
      if (!config.trainer.val_only) store.beginFrom(resumed);
      directory.writeJson('config.json', config);
      for (const log of ['metrics.jsonl', 'timings.jsonl']) directory.rewindLog(log, step);
      loggers = createLoggers(config, directory.path, {
        length: { firstStep: step, totalSteps },
        say: (line) => this.log(line),
      });
      const state = trainerState(step, config, data.train.state(), kl.state());
      this.log(
        resumed
          ? `resuming after step ${step} from ${resumed.directory}`
          : `training for ${totalSteps} steps`,
      );
      const run: Run = {
        data,
        engines,
        reward,
        kl,
        loggers,
        totalSteps,
        state,
        savedStep: step,
        metrics: {},
        validation: {},
      };
      const result = await unlessFailed(this.run(run, directory, store), engines.failed);
      await engines.close();
      await loggers.close(result.interrupted ? 'interrupted' : 'finished');
      await reward.close?.();
      return result;
    } catch (error) {
      // What went wrong first is what the caller must see, whatever closing says.
      await Promise.allSettled([engines?.close(), loggers?.close('failed'), reward.close?.()]);
      throw error;
    }
  }

  private async run(
    run: Run,
    directory: RunDirectory,
    store: CheckpointStore<TrainerState>,
  ): Promise<FitResult> {
    const { config } = this;
    const { val_only, val_before_train, save_freq, test_freq } = config.trainer;
    const first = val_before_train && run.state.step === 0 && this.stopReason === null;
    if (val_only || first) await this.validateAndLog(run, directory);
    const result = (finalModel: string | null): FitResult => ({
      step: run.state.step,
      interrupted: this.stopped(run),
      stopReason: this.stopReason,
      metrics: run.metrics,
      validation: run.validation,
      runDirectory: directory.path,
      finalModel,
    });
    if (val_only) return result(null);

    while (run.state.step < run.totalSteps && this.stopReason === null) {
      const step = run.state.step + 1;
      const last = step === run.totalSteps;
      const due = (frequency: number): boolean => frequency > 0 && (last || step % frequency === 0);
      const timer = new PhaseTimer();
      const done = await this.step(run, step, timer);
      if (!done) break;
      run.state = trainerState(step, config, run.data.train.state(), run.kl.state());
      const metrics = { ...done.metrics, 'training/global_step': step, 'training/epoch': done.epoch };
      this.writeGenerations(directory, done, step);
      if (due(test_freq))
        Object.assign(metrics, await timer.time('testing', () => this.validate(run, directory)));
      // Logged before it is saved: a run killed in between repeats the step, so that no line is lost or doubled.
      const timings = timingMetrics(timer, done.batch, run.engines.worldSize, done.generatedTokens);
      await run.loggers.log({ ...metrics, ...timings }, step);
      run.metrics = { ...metrics, ...timings };
      if (due(save_freq)) await this.save(run, store);
    }

    if (this.stopped(run)) {
      if (run.savedStep !== run.state.step) await this.save(run, store);
      return result(null);
    }
    const finalModel = directory.file('final_model');
    await run.engines.actor.saveModel(finalModel);
    if (usesLora(config.actor_rollout_ref.model))
      await run.engines.actor.saveAdapter(directory.file('final_adapter'));
    return result(finalModel);
  }

  /** A request that comes when all steps are done stops nothing. */
  private stopped({ state, totalSteps }: Run): boolean {
    return this.stopReason !== null && state.step < totalSteps;
  }

  /** One training step; null when a stop request came before it had changed anything. */
  private async step(run: Run, step: number, timer: PhaseTimer): Promise<StepResult | null> {
    const { config } = this;
    const pause = (): void => {
      if (this.stopReason !== null) throw new StepAbandoned();
    };
    const { engines, reward, kl, data } = run;
    const context = { config, engines, decoder: data.decoder, reward, kl, timer, pause };
    try {
      return await timer.time('step', () => trainStep(context, data.train, step));
    } catch (error) {
      if (error instanceof StepAbandoned) return null;
      throw error;
    }
  }

  private async save(run: Run, store: CheckpointStore<TrainerState>): Promise<void> {
    const { step } = run.state;
    const { actor, critic } = run.engines;
    run.engines.setPhase(`saving step ${step}`);
    const timer = new PhaseTimer();
    await timer.time('save_checkpoint', () =>
      store.save(step, run.state, async (temporary) => {
        await actor.saveCheckpoint(join(temporary, 'actor'));
        await critic?.saveCheckpoint(join(temporary, 'critic'));
      }),
    );
    run.engines.setPhase(null);
    run.savedStep = step;
    await run.loggers.log(timer.metrics(), step);
  }

  private async validate(run: Run, directory: RunDirectory): Promise<Metrics> {
    const { validation } = run.data;
    if (validation.length === 0) return {};
    const { step } = run.state;
    const { engines, reward, data } = run;
    const context = { config: this.config, engines, decoder: data.decoder, reward };
    const { metrics, rows } = await validate(context, validation, step);
    directory.writeSamples(`validation_${step}`, rows);
    await run.loggers.logGenerations(rows, step);
    if (this.config.trainer.validation_data_dir)
      writeDump(this.config.trainer.validation_data_dir, String(step), rows);
    run.validation = metrics;
    return metrics;
  }

  private async validateAndLog(run: Run, directory: RunDirectory): Promise<void> {
    const metrics = await this.validate(run, directory);
    if (Object.keys(metrics).length > 0) await run.loggers.log(metrics, run.state.step);
  }

  private writeGenerations(directory: RunDirectory, done: StepResult, step: number): void {
    const rows = dumpRows(step, done.scored);
    directory.writeSamples(String(step), rows);
    if (this.config.trainer.rollout_data_dir)
      writeDump(this.config.trainer.rollout_data_dir, String(step), rows);
  }

  private log(line: string): void {
    this.options.log?.(line);
  }
}

/** A worker's death ends the run at once, also while it waits for something else, such as a reward. */
function unlessFailed<T>(work: Promise<T>, failed: Promise<Error> | undefined): Promise<T> {
  if (!failed) return work;
  const failure = failed.then((error): never => {
    throw error;
  });
  return Promise.race([work, failure]);
}

function klOptions(config: ResolvedConfig): Parameters<typeof createKlController>[0] {
  const { type, kl_coef, target_kl, horizon } = config.algorithm.kl_ctrl;
  return { type, klCoef: kl_coef, targetKl: target_kl, horizon };
}

function restore(checkpoint: Checkpoint<TrainerState> | null, data: TrainingData, kl: KlController): void {
  if (!checkpoint) return;
  data.train.restore(checkpoint.state.loader);
  kl.restore(checkpoint.state.klController);
}

async function loadEngines({ directory }: Checkpoint<TrainerState>, engines: Engines): Promise<void> {
  const load = async (
    role: string,
    engine: { loadCheckpoint(dir: string): Promise<void> },
  ): Promise<void> => {
    const path = join(directory, role);
    if (!existsSync(path)) {
      throw new TroupeError(
        'IO',
        `[checkpoint] ${directory} has no ${role}, which this configuration trains: resume with the configuration it was ` +
          'made with, or set trainer.resume_mode=disable',
      );
    }
    await engine.loadCheckpoint(path);
  };
  await load('actor', engines.actor);
  if (engines.critic) await load('critic', engines.critic);
}
