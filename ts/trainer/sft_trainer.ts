import { join } from 'node:path';
import { Actor } from '../actor/actor';
import { Batch } from '../batch/batch';
import type { ResolvedSftConfig } from '../config/config';
import type { Launcher, LauncherOptions } from '../controller/launcher';
import type { SftSample } from '../data/sft_dataset';
import { TroupeError } from '../errors';
import { createLoggers, type Loggers } from '../logging/loggers';
import { parallelOptions } from '../roles/fsdp_options';
import { loraOptions, usesLora } from '../roles/lora';
import { CheckpointStore } from '../run/checkpoint_store';
import { RunDirectory } from '../run/run_directory';
import { checkSeed } from '../run/trainer_state';
import { optimOptions } from './engines';
import { type Metrics, PhaseTimer } from './metrics/metrics';
import { loadSftData, type SftData } from './sft_data';
import type { FitResult } from './trainer';

/** The model being trained, as the SFT trainer uses it. */
export type SftEngine = Pick<
  Actor,
  'updateSft' | 'computeLogProb' | 'saveModel' | 'saveAdapter' | 'saveCheckpoint' | 'loadCheckpoint' | 'close'
>;

export interface SftTrainerOptions {
  launcher?: LauncherOptions | Launcher;
  /** Receives what is worth a line to people. Default: none. */
  log?: (line: string) => void;
  /** Makes the engine; tests give fakes. */
  engine?: (config: ResolvedSftConfig, totalSteps: number) => Promise<SftEngine>;
  data?: (config: ResolvedSftConfig) => Promise<SftData>;
}

interface SftState {
  version: 1;
  step: number;
  seed: number;
  loader: unknown;
  config: unknown;
}

interface Run {
  engine: SftEngine;
  data: SftData;
  loggers: Loggers;
  totalSteps: number;
  state: SftState;
  savedStep: number;
  metrics: Metrics;
  validation: Metrics;
}

const NAMES: Record<string, string> = {
  'actor/loss': 'train/loss',
  'actor/grad_norm': 'train/grad_norm',
  'actor/lr': 'train/lr',
  'actor/update_skipped': 'train/update_skipped',
};

/**
 * Supervised fine-tuning: cross-entropy of the response tokens, averaged over the tokens of each batch; one optimiser
 * step per batch. Writes metrics.jsonl (train/*, val/loss), checkpoints, and the model as final_model/.
 */
export class SftTrainer {
  private stopReason: string | null = null;

  constructor(
    private readonly config: ResolvedSftConfig,
    private readonly options: SftTrainerOptions = {},
  ) {}

  /** Ends `fit` after the running step, with a checkpoint. */
  requestStop(reason: string): void {
    this.stopReason ??= reason;
  }

  /** Runs to the end, or until `requestStop`. On any error everything is closed and the newest checkpoint stays. */
  async fit(): Promise<FitResult> {
    const { config, options } = this;
    const { trainer } = config;
    const store = new CheckpointStore<SftState>(trainer.default_local_dir, trainer.max_ckpt_to_keep);
    store.checkForeign();
    const resumed = trainer.resume_mode === 'disable' ? null : store.latest();
    if (resumed && 'klController' in resumed.state) {
      throw new TroupeError(
        'IO',
        `[checkpoint] ${resumed.directory} was made by troupe train: choose another trainer.default_local_dir`,
      );
    }
    if (resumed) checkSeed(resumed, trainer.seed);
    const data = await (options.data ?? loadSftData)(config);
    const totalSteps = trainer.total_training_steps ?? data.train.batchesPerEpoch * trainer.total_epochs;
    if (resumed) data.train.restore(resumed.state.loader);
    const step = resumed?.step ?? 0;
    const directory = new RunDirectory(trainer.default_local_dir);

    let engine: SftEngine | null = null;
    let loggers: Loggers | null = null;
    try {
      engine = await (options.engine ?? this.createEngine)(config, totalSteps);
      if (resumed) await engine.loadCheckpoint(join(resumed.directory, 'actor'));
      // All that can be wrong with the input has shown itself: only now are files of an earlier run touched.
      store.removeLeftovers();
      store.beginFrom(resumed);
      directory.writeJson('config.json', config);
      for (const log of ['metrics.jsonl', 'timings.jsonl']) directory.rewindLog(log, step);
      loggers = createLoggers(config, directory.path, {
        length: { firstStep: step, totalSteps },
        say: (line) => options.log?.(line),
      });
      options.log?.(resumed ? `resuming after step ${step}` : `fine-tuning for ${totalSteps} steps`);
      const { seed } = trainer;
      const state: SftState = { version: 1, step, seed, loader: data.train.state(), config };
      const run: Run = {
        engine,
        data,
        loggers,
        totalSteps,
        state,
        savedStep: step,
        metrics: {},
        validation: {},
      };
      const finalModel = await this.run(run, directory, store);
      await engine.close();
      await loggers.close(finalModel === null ? 'interrupted' : 'finished');
      return {
        step: run.state.step,
        interrupted: finalModel === null,
        stopReason: this.stopReason,
        metrics: run.metrics,
        validation: run.validation,
        runDirectory: directory.path,
        finalModel,
      };
    } catch (error) {
      await Promise.allSettled([engine?.close(), loggers?.close('failed')]);
      throw error;
    }
  }

  private async run(
    run: Run,
    directory: RunDirectory,
    store: CheckpointStore<SftState>,
  ): Promise<string | null> {
    const { save_freq, test_freq } = this.config.trainer;
    while (run.state.step < run.totalSteps && this.stopReason === null) {
      const step = run.state.step + 1;
      const last = step === run.totalSteps;
      const due = (frequency: number): boolean => frequency > 0 && (last || step % frequency === 0);
      const timer = new PhaseTimer();
      const { examples, epoch } = await run.data.train.next();
      const update = await timer.time('step', () => run.engine.updateSft(sftBatch(examples)));
      run.state = { ...run.state, step, loader: run.data.train.state() };
      const metrics: Metrics = { 'training/global_step': step, 'training/epoch': epoch };
      for (const [name, value] of Object.entries(update)) metrics[NAMES[name] ?? name] = value;
      if (due(test_freq) && run.data.validation.length > 0) {
        run.validation = await timer.time('testing', () => this.validate(run));
        Object.assign(metrics, run.validation);
      }
      run.metrics = { ...metrics, ...timer.metrics() };
      await run.loggers.log(run.metrics, step);
      if (due(save_freq)) await this.save(run, store);
    }
    if (run.state.step < run.totalSteps) {
      if (run.savedStep !== run.state.step) await this.save(run, store);
      return null;
    }
    const finalModel = directory.file('final_model');
    await run.engine.saveModel(finalModel);
    if (usesLora(this.config.model)) await run.engine.saveAdapter(directory.file('final_adapter'));
    return finalModel;
  }

  private async save(run: Run, store: CheckpointStore<SftState>): Promise<void> {
    const { step } = run.state;
    await store.save(step, run.state, (temporary) => run.engine.saveCheckpoint(join(temporary, 'actor')));
    run.savedStep = step;
  }

  /** Token-mean cross-entropy over all validation examples. */
  private async validate(run: Run): Promise<Metrics> {
    const size = this.config.data.train_batch_size;
    let loss = 0;
    let tokens = 0;
    for (let start = 0; start < run.data.validation.length; start += size) {
      const batch = sftBatch(run.data.validation.slice(start, start + size));
      const { logProbs } = await run.engine.computeLogProb(batch);
      const mask = batch.get('responseMask');
      for (let t = 0; t < logProbs.length; t++) {
        if (!mask[t]) continue;
        loss -= logProbs[t] as number;
        tokens++;
      }
    }
    return tokens === 0 ? {} : { 'val/loss': loss / tokens };
  }

  private readonly createEngine = (config: ResolvedSftConfig, totalSteps: number): Promise<SftEngine> => {
    const { model, optim, trainer, data, ulysses_sequence_parallel_size: ulysses } = config;
    const { launcher } = this.options;
    return Actor.create({
      model: model.path,
      worldSize: trainer.n_gpus_per_node * trainer.nnodes,
      device: trainer.device,
      ...(model.dtype ? { dtype: model.dtype } : {}),
      ...parallelOptions(model.fsdp_config, ulysses, model.fsdp_config.gradient_reduction),
      maxTokensPerMicroBatch: data.max_token_len_per_gpu * ulysses,
      gradientCheckpointing: model.enable_gradient_checkpointing,
      optim: optimOptions(optim, optim.clip_grad, totalSteps),
      ...loraOptions(model),
      seed: trainer.seed,
      ...(trainer.num_threads ? { numThreads: trainer.num_threads } : {}),
      ...(launcher ? { launcher } : {}),
    });
  };
}

function sftBatch(examples: readonly SftSample[]): Batch {
  if (examples.length === 0) {
    throw new TroupeError('INVALID_DATA', '[sft] expected at least one example per batch but got none');
  }
  return Batch.fromSequences(
    examples.map((example) => example.prompt),
    examples.map((example) => example.response),
    { responseMask: examples.flatMap((example) => Array.from(example.lossMask)) },
  );
}
