import { join } from 'node:path';
import { Actor } from '../actor/actor';
import { Batch } from '../batch/batch';
import type { ResolvedSftConfig } from '../config/config';
import { checkGpus, policyRanks } from '../config/derived/pools';
import { sftProfilePlan } from '../config/derived/profile';
import { usesLora } from '../config/derived/roles';
import { CallLog } from '../controller/call';
import { machineOf } from '../controller/default_device';
import type { Launcher, LauncherOptions } from '../controller/launcher';
import { ResourcePools } from '../controller/resource_pools';
import type { SftSample } from '../data/sft_dataset';
import { TroupeError } from '../errors';
import type { Loggers } from '../logging/loggers';
import { planSft } from '../planner/from_config';
import type { PlanSpec } from '../planner/plan';
import { planFile } from '../planner/plan_file';
import type { Observed } from '../records/run_records';
import { checkSftModel } from '../roles/check_models';
import { decideImages } from '../roles/images_of_data';
import { engineOptions, trainedOptions } from '../roles/role_options';
import { sftSettings } from '../roles/role_settings';
import { checkRouterKeys } from '../roles/router_keys';
import { workerLogs, workerTimeouts } from '../roles/worker_options';
import { writableDirectory } from '../run/run_directory';
import { checkSftTrainer } from './check_given';
import { chosenDevice } from './device';
import { FitLoop, type FitResult, StopRequest, type Training } from './fit_loop';
import type { Metrics } from './metrics/metrics';
import { RankTimes } from './metrics/stragglers';
import { ProfiledPools, type Recorder } from './profiled_pools';
import { imagesOf } from './rollout';
import { Session } from './session';
import { loadSftData, type SftData } from './sft_data';
import { StepProfiler } from './step_profiler';

/** The model being trained, as the SFT trainer uses it. */
export type SftEngine = Pick<
  Actor,
  'updateSft' | 'computeLogProb' | 'saveModel' | 'saveAdapter' | 'saveCheckpoint' | 'loadCheckpoint' | 'close'
> & {
  /** What the ranks did since it was last asked; absent: not known. */
  observe?(): Promise<Observed>;
  /** straggler/* of what the ranks have done since this was last called; absent: not known. */
  stragglers?(): Metrics;
  /** Records the workers that the configuration profiles; absent: it profiles none. */
  recorder?: Recorder;
  /** Named in the error when a worker dies. */
  setPhase?(phase: string | null): void;
};

export interface SftTrainerOptions {
  launcher?: LauncherOptions | Launcher;
  /** Receives what is worth a line to people. Default: none. */
  log?: (line: string) => void;
  /** Called after each step, when it has been logged. */
  onStep?: (step: number) => void;
  /** Called when a state of the run is held, on the disk or in memory, that another start can go on from. */
  onSaved?: () => void;
  /** What is logged of the run as a whole with a step that was done `seconds` after the one before it. */
  runMetrics?: (step: number, seconds: number) => Metrics;
  /** Makes the engine; tests give fakes. */
  engine?: (config: ResolvedSftConfig, totalSteps: number) => Promise<SftEngine>;
  data?: (config: ResolvedSftConfig) => Promise<SftData>;
}

const NAMES: Record<string, string> = {
  'actor/loss': 'train/loss',
  'actor/grad_norm': 'train/grad_norm',
  'actor/lr': 'train/lr',
  'actor/update_skipped': 'train/update_skipped',
};
const sftName = (name: string): string => NAMES[name] ?? name.replace(/^actor(?=\/mtp_losses\/)/, 'train');

/**
 * Supervised fine-tuning: cross-entropy of the response tokens, averaged over the tokens of each batch; one optimiser
 * step per batch. Writes metrics.jsonl (train/*, val/loss), checkpoints, and the model as final_model/.
 */
export class SftTrainer {
  private readonly stop = new StopRequest();
  #atSteps = false;

  /** @throws TroupeError INVALID_ARGUMENT: no configuration of `loadSftConfig`; an option that does not exist or is of another kind */
  constructor(
    private readonly config: ResolvedSftConfig,
    private readonly options: SftTrainerOptions = {},
  ) {
    checkSftTrainer(config, options);
  }

  /** Ends `fit` after the running step, with a checkpoint. @returns false: no step has begun */
  requestStop(reason: string): boolean {
    this.stop.make(reason);
    return this.#atSteps;
  }

  /** Runs to the end, or until `requestStop`. On any error everything is closed and the newest checkpoint stays. */
  async fit(): Promise<FitResult> {
    const say = (line: string): void => this.options.log?.(line);
    // Of data of a program's own there are no files to look at.
    const config = this.options.data ? this.config : await decideImages(this.config, say);
    checkRouterKeys(config);
    return await Session.during(config, config.trainer.max_ckpt_to_keep, say, (session) =>
      this.fitIn(session, config),
    );
  }

  private async fitIn(session: Session, config: ResolvedSftConfig): Promise<FitResult> {
    const { options } = this;
    const { trainer } = config;
    const { say } = session;
    const data = await (options.data ?? loadSftData)(config);
    let engine: SftEngine | null = null;
    let loggers: Loggers | null = null;
    let planned: Promise<void> | undefined;
    const noPlan = new AbortController();
    try {
      const totalSteps = trainer.total_training_steps ?? data.train.batchesPerEpoch * trainer.total_epochs;
      if (session.checkpoint) data.train.restore(session.checkpoint.state.loader);
      const directory = session.prepareDirectory();
      const profiled = sftProfilePlan(config);
      if (profiled !== null) writableDirectory('profiler.save_path', profiled.directory);
      engine = await (options.engine ?? this.createEngine)(config, totalSteps);
      await session.load({ actor: engine });
      loggers = session.begin(directory, totalSteps, false);
      await session.showPage();
      planned = session.records?.plan(() => planFile(async () => [this.plan(config)], noPlan.signal));
      say(session.opening('fine-tuning', totalSteps));
      const every = (steps: number | 'after_each_epoch'): number =>
        steps === 'after_each_epoch' ? data.train.batchesPerEpoch : steps;
      const schedule = {
        totalSteps,
        saveEvery: every(trainer.save_freq),
        validateEvery: every(trainer.test_freq),
        validateFirst: false,
        validateOnly: false,
      };
      const training = this.training(engine, data, session.checkpoint?.state.tokens ?? 0);
      this.#atSteps = true;
      const result = await new FitLoop(training, session, directory, loggers, schedule, this.stop).run();
      await Promise.all([planned, engine.close()]);
      await loggers.close(result.interrupted ? 'interrupted' : 'finished');
      return result;
    } catch (error) {
      session.failed(error);
      noPlan.abort();
      await Promise.allSettled([planned, engine?.close(), loggers?.close('failed')]);
      throw error;
    } finally {
      await data.close?.();
    }
  }

  /** `tokens`: that the run has trained on before. */
  private training(engine: SftEngine, data: SftData, tokens: number): Training {
    let total = tokens;
    const plan = sftProfilePlan(this.config);
    return {
      step: async (step, timer) => {
        const { examples, epoch } = await data.train.next();
        engine.setPhase?.(`update of step ${step}`);
        const batch = await sftBatch(examples);
        const update = await timer.time('step', () =>
          engine.updateSft(batch, { routerZLossCoef: this.config.model.router_z_loss_coef }),
        );
        engine.setPhase?.(null);
        const named = Object.entries(update).map(([name, value]) => [sftName(name), value]);
        const { length } = batch.get('tokens');
        total += length;
        const counts = { 'train/global_tokens': length, 'train/total_tokens(B)': total / 1e9 };
        return { metrics: { ...(Object.fromEntries(named) as Metrics), ...counts }, epoch };
      },
      validate: () => this.validate(engine, data.validation),
      position: () => ({ loader: data.train.state(), tokens: total }),
      saveCheckpoint: (temporary) => engine.saveCheckpoint(join(temporary, 'actor')),
      saveModel: (target) => engine.saveModel(target),
      saveAdapter: usesLora(this.config.model) ? (target) => engine.saveAdapter(target) : null,
      stepDone: (step) => this.options.onStep?.(step),
      saved: () => this.options.onSaved?.(),
      runMetrics: (step, seconds) => ({
        ...engine.stragglers?.(),
        ...this.options.runMetrics?.(step, seconds),
      }),
      setPhase: (phase) => engine.setPhase?.(phase),
      ...(engine.observe ? { observe: engine.observe } : {}),
      ...(plan && engine.recorder ? { profiler: new StepProfiler(plan, engine.recorder) } : {}),
    };
  }

  /** Token-mean cross-entropy over all validation examples. */
  private async validate(engine: SftEngine, examples: readonly SftSample[]): Promise<Metrics> {
    const size = this.config.data.train_batch_size;
    let loss = 0;
    let tokens = 0;
    for (let start = 0; start < examples.length; start += size) {
      const batch = await sftBatch(examples.slice(start, start + size));
      const { logProbs } = await engine.computeLogProb(batch);
      const mask = batch.get('responseMask');
      for (let t = 0; t < logProbs.length; t++) {
        if (!mask[t]) continue;
        loss -= logProbs[t] as number;
        tokens++;
      }
    }
    return tokens === 0 ? {} : { 'val/loss': loss / tokens };
  }

  private plan(config: ResolvedSftConfig): PlanSpec {
    const device = chosenDevice(config, this.options.launcher, () => {});
    return planSft(config, { device, worldSize: policyRanks(config), memory: null });
  }

  private readonly createEngine = async (
    config: ResolvedSftConfig,
    totalSteps: number,
  ): Promise<SftEngine> => {
    const { trainer } = config;
    const { launcher } = this.options;
    checkSftModel(config);
    const device = chosenDevice(config, launcher, (line) => this.options.log?.(line));
    if (device === 'cuda') checkGpus(config, machineOf(launcher)?.gpus() ?? null);
    const calls = config.logging?.trace ? new CallLog() : null;
    const times = new RankTimes();
    const pools = await ResourcePools.launch<'policy'>({
      pools: { policy: policyRanks(config) },
      hosts: { policy: trainer.nnodes },
      device,
      onCall: (call) => {
        times.add(call);
        calls?.add(call);
      },
      ...workerTimeouts(config),
      ...workerLogs(config),
      ...(trainer.num_threads ? { numThreads: trainer.num_threads } : {}),
      ...(launcher ? { launcher } : {}),
    });
    const group = pools.group('policy');
    try {
      const role = sftSettings(config);
      const { gradient_reduction: reduction } = config.model.fsdp_config;
      const actor = await Actor.create({
        ...engineOptions(role, group, config, reduction),
        ...trainedOptions(role, totalSteps),
      });
      const profile = sftProfilePlan(config);
      return Object.assign(actor, {
        ...(profile === null ? {} : { recorder: new ProfiledPools(profile, pools) }),
        close: () => pools.close(),
        setPhase: (phase: string | null) => pools.setPhase(phase),
        stragglers: () => times.take(),
        ...(calls
          ? { observe: async () => ({ memory: await pools.memoryInfo(), calls: calls.take() }) }
          : {}),
      });
    } catch (error) {
      // What went wrong first is what the caller must see, whatever closing says.
      await pools.close().catch(() => undefined);
      throw error;
    }
  };
}

async function sftBatch(examples: readonly SftSample[]): Promise<Batch> {
  if (examples.length === 0) {
    throw new TroupeError('INVALID_DATA', '[sft] expected at least one example per batch but got none');
  }
  const images = await imagesOf(examples);
  return Batch.fromSequences(
    examples.map((example) => example.prompt),
    examples.map((example) => example.response),
    {
      responseMask: examples.flatMap((example) => Array.from(example.lossMask)),
      ...(images === null ? {} : { images }),
    },
  );
}
