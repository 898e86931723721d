import { join } from 'node:path';
import type { Agent } from '../agent/define';
import type { Tool } from '../agent/tools/tool';
import { trajectoryRows } from '../agent/trajectory/trajectory_batch';
import { createKlController, type KlController } from '../algorithms/kl';
import type { ResolvedConfig } from '../config/config';
import { profilePlan } from '../config/derived/profile';
import { needsCritic, needsReference, needsRewardModel, usesLora } from '../config/derived/roles';
import type { Launcher, LauncherOptions } from '../controller/launcher';
import { TroupeError } from '../errors';
import type { Loggers } from '../logging/loggers';
import { planPools } from '../planner/from_config';
import { planFile } from '../planner/plan_file';
import { spreadRows, tokenRecords } from '../records/token_log';
import type { BatchRewardFunction, RewardFunction, RewardManager } from '../reward/contract/types';
import { decideImages } from '../roles/images_of_data';
import { checkRouterKeys } from '../roles/router_keys';
import type { Checkpoint } from '../run/checkpoint_store';
import { type RunDirectory, writableDirectory, writeDump } from '../run/run_directory';
import type { TrainerState } from '../run/trainer_state';
import type { AgentRollout } from './agent_rollout';
import { ROLLOUT_IDLE } from './async_collector';
import { checkTrainer } from './check_given';
import { closeParts } from './close_parts';
import { codeRunner } from './code_runner';
import type { Collector } from './collect';
import { configuredAgents } from './configured_agents';
import { configuredReward } from './configured_reward';
import { configuredTools, type RunTools } from './configured_tools';
import { createCollector } from './create_collector';
import { chosenDevice } from './device';
import { type CreateEngines, createEngines, type Engines } from './engines';
import {
  FitLoop,
  type FitResult,
  type Schedule,
  type StepDone,
  StopRequest,
  StopRequested,
  stoppedBefore,
  type Training,
} from './fit_loop';
import { type Metrics, type PhaseTimer, timingMetrics } from './metrics/metrics';
import { dumpRows } from './rollout';
import { Session } from './session';
import { type StepResult, trainStep } from './step';
import { StepProfiler } from './step_profiler';
import { checkSources } from './teachers';
import { type LoadTrainingData, loadTrainingData, type TrainingData } from './training_data';
import { unlessFailed } from './unless_failed';
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
  /** Works on the prompts. Default: as `rollout.agent` says. */
  agent?: Agent;
  /** What the agent may use. Default: as `rollout.agent.tools` says. */
  tools?: readonly Tool[];
  /** Called after each step, when it has been logged. */
  onStep?: (step: number) => void;
  /** Called when a state of the run is held, on the disk or in memory, that another start can go on from. */
  onSaved?: () => void;
  /** What is logged of the run as a whole with a step that was done `seconds` after the one before it. */
  runMetrics?: (step: number, seconds: number) => Metrics;
  /** Makes the engines; tests give fakes. */
  engines?: CreateEngines;
  /** Makes the prompts and the tokenizer; tests give fakes. */
  data?: LoadTrainingData;
}

/** Gives up a step between phases, before it has changed anything. */
class StepAbandoned extends Error {}

/** What a session trains with. */
interface Parts {
  data: TrainingData;
  engines: Engines;
  agents: AgentRollout | null;
  reward: RewardManager;
  kl: KlController;
  directory: RunDirectory;
  loggers: Loggers;
  session: Session;
  collector: Collector;
}

/**
 * Trains a policy by reinforcement learning as the configuration says: GRPO, PPO and their relatives. Files go to
 * `trainer.default_local_dir`: config.json, metrics.jsonl (reproducible bitwise), timings.jsonl, samples/, checkpoints, final_model/.
 */
export class Trainer {
  private readonly stop = new StopRequest();
  #running: Promise<unknown> = Promise.resolve();
  #collector: Collector | null = null;

  /** @throws TroupeError INVALID_ARGUMENT: no configuration of `loadConfig`; an option that is none, or that this run would not use */
  constructor(
    private readonly config: ResolvedConfig,
    private readonly options: TrainerOptions = {},
  ) {
    checkTrainer(config, options);
  }

  /** Ends `fit` soon, with a checkpoint: at once between phases of a step that has updated nothing yet, else after it. @returns false: no step has begun */
  requestStop(reason: string): boolean {
    this.stop.make(reason);
    this.#collector?.nudge();
    return this.#collector !== null && !this.config.trainer.val_only;
  }

  /** Resolves when nothing of a `fit` that has ended goes on: what a failure finds waiting for a reward ends when that comes. */
  async settled(): Promise<void> {
    await this.#running.catch(() => undefined);
    await this.#collector?.settled();
  }

  /**
   * Runs to the end, or until `requestStop`. On any error everything is closed and the newest checkpoint stays.
   * @throws WorkerDiedError within seconds of a worker's death; TroupeError with a code for all else
   */
  async fit(): Promise<FitResult> {
    const say = (line: string): void => this.log(line);
    // Of data of a program's own there are no files to look at.
    const config = this.options.data ? this.config : await decideImages(this.config, say);
    checkRouterKeys(config);
    return await Session.during(config, config.trainer.max_actor_ckpt_to_keep, say, (session) =>
      this.fitIn(session, config),
    );
  }

  private async fitIn(session: Session, config: ResolvedConfig): Promise<FitResult> {
    const { options } = this;
    const runner = codeRunner(config);
    const { reward, prepare } = configuredReward(config, runner, options.reward ?? options.batchReward);
    let data: TrainingData | null = null;
    let engines: Engines | null = null;
    let loggers: Loggers | null = null;
    let tools: RunTools | null = null;
    let agents: AgentRollout | null = null;
    let collector: Collector | null = null;
    let planned: Promise<void> | undefined;
    const noPlan = new AbortController();
    try {
      tools = await configuredTools(config, runner, options);
      data = await (options.data ?? loadTrainingData)(config, tools?.shown ?? null, this.stop.signal);
      for (const note of data.notes ?? []) this.log(note);
      await prepare(data.dataSources ?? []);
      checkSources(config, data.trainedSources ?? []);
      agents = await configuredAgents(config, data.tokenizer, options, tools);
      const totalSteps =
        config.trainer.total_training_steps ?? data.train.batchesPerEpoch * config.trainer.total_epochs;
      const kl = createKlController(klOptions(config));
      if (session.checkpoint) restore(session.checkpoint, config, data, kl);
      const directory = session.prepareDirectory();
      for (const key of ['rollout_data_dir', 'validation_data_dir'] as const) {
        const path = config.trainer[key];
        if (path !== null) writableDirectory(`trainer.${key}`, path);
      }
      const profiled = profilePlan(config);
      if (profiled !== null) writableDirectory('global_profiler.save_path', profiled.directory);
      const device = chosenDevice(config, options.launcher, session.say);
      engines = await (options.engines ?? createEngines)(config, {
        reference: needsReference(config),
        critic: needsCritic(config),
        rewardModel: needsRewardModel(config),
        totalSteps,
        device,
        launcher: options.launcher,
        ...(data.tokenizer ? { tokenizer: data.tokenizer } : {}),
        say: session.say,
      });
      await session.load({ actor: engines.actor, critic: engines.critic });
      // Steps before that left the policy alone.
      const version = session.firstStep < config.trainer.critic_warmup ? 0 : session.firstStep;
      if (engines.syncRollout) await engines.syncRollout(version);
      else await engines.rollout.updateWeights({ kind: 'in-place' }, version);
      loggers = session.begin(directory, totalSteps, config.trainer.val_only);
      await session.showPage();
      const target = { device, memory: config.trainer.memory_per_rank };
      planned = session.records?.plan(() =>
        planFile((engines) => planPools(config, target, engines), noPlan.signal),
      );
      this.log(session.opening('training', totalSteps));
      collector = createCollector({ config, engines, decoder: data.decoder, agents, reward }, data.train, {
        firstStep: session.firstStep,
        totalSteps,
        queue: session.checkpoint?.state.queue,
      });
      this.#collector = collector;
      const training = this.training({
        data,
        engines,
        agents,
        reward,
        kl,
        directory,
        loggers,
        session,
        collector,
      });
      const schedule = scheduleOf(config, totalSteps);
      const loop = new FitLoop(training, session, directory, loggers, schedule, this.stop);
      const running = loop.run();
      this.#running = running;
      const result = await unlessFailed(running, engines.failed);
      await collector.close();
      await Promise.all([planned, engines.close()]);
      await loggers.close(result.interrupted ? 'interrupted' : 'finished');
      await closeParts({ 'the reward manager': reward, 'the agents': agents }, session.say);
      return result;
    } catch (error) {
      session.failed(error);
      noPlan.abort();
      await collector?.close();
      // What went wrong first is what the caller must see, whatever closing says.
      await Promise.allSettled([
        planned,
        engines?.close(),
        loggers?.close('failed'),
        reward.close?.(),
        (agents ?? tools)?.close(),
      ]);
      if (!(error instanceof StopRequested)) throw error;
      return stoppedBefore(session.firstStep, error.message, config.trainer.default_local_dir);
    } finally {
      await data?.close?.();
    }
  }

  private training(parts: Parts): Training {
    const { engines, kl, collector } = parts;
    const { actor, critic, recorder } = engines;
    const plan = profilePlan(this.config);
    return {
      step: (step, timer) => this.step(parts, step, timer),
      validate: (step) => this.validate(parts, step),
      position: () => ({ ...collector.position(), klController: kl.state() }),
      saveCheckpoint: async (temporary) => {
        await actor.saveCheckpoint(join(temporary, 'actor'));
        await critic?.saveCheckpoint(join(temporary, 'critic'));
      },
      saveModel: (target) => actor.saveModel(target),
      saveAdapter: usesLora(this.config.actor_rollout_ref.model)
        ? (target) => actor.saveAdapter(target)
        : null,
      setPhase: (phase) => engines.setPhase(phase),
      stepDone: (step) => this.options.onStep?.(step),
      saved: () => this.options.onSaved?.(),
      runMetrics: (step, seconds) => ({
        ...engines.stragglers?.(),
        ...this.options.runMetrics?.(step, seconds),
      }),
      ...(engines.observe ? { observe: engines.observe } : {}),
      ...(plan && recorder ? { profiler: new StepProfiler(plan, recorder) } : {}),
    };
  }

  /** One training step; null when a stop request came before it had changed anything. */
  private async step(parts: Parts, step: number, timer: PhaseTimer): Promise<StepDone | null> {
    const { config } = this;
    const pause = (): void => {
      if (this.stop.reason !== null) throw new StepAbandoned();
    };
    const { engines, agents, reward, kl, data } = parts;
    const context = { config, engines, decoder: data.decoder, agents, reward, kl, timer, pause };
    let done: StepResult;
    try {
      done = await timer.time('step', () => trainStep(context, parts.collector, step));
    } catch (error) {
      if (error instanceof StepAbandoned) return null;
      throw error;
    }
    this.writeGenerations(parts.directory, done, step);
    await this.writeTokens(parts, done, step);
    await parts.collector.learnt(step);
    // Of the step itself nothing is read from here on but its sizes.
    done.batch.recycle();
    const { metrics, epoch } = done;
    return { metrics, epoch, timings: timingsOf(done, engines.worldSize) };
  }

  /** All that is known of each token of a few responses. */
  private async writeTokens(
    { session, data, engines }: Parts,
    done: StepResult,
    step: number,
  ): Promise<void> {
    const { samples, every, max_tokens: limit, after_update: again } = this.config.logging.tokens;
    if (samples === 0 || (step - 1) % every !== 0) return;
    const rows = spreadRows(done.batch.size, samples);
    let batch = done.batch.take(rows);
    if (again) {
      const { temperature } = this.config.actor_rollout_ref.rollout;
      const { logProbs } = await engines.actor.computeLogProb(batch, { temperature });
      batch = batch.with({ newLogProbs: logProbs }, { granularity: { newLogProbs: 'response' } });
    }
    const decode = (ids: readonly number[]): string => data.decoder.decode(ids, { skipSpecialTokens: false });
    session.records?.tokens(step, () => tokenRecords(step, batch, rows, done.scored.inputs, limit, decode));
  }

  private async validate(
    { data, engines, agents, reward, directory, loggers }: Parts,
    step: number,
  ): Promise<Metrics> {
    const { validation } = data;
    if (validation.length === 0) return {};
    const context = { config: this.config, engines, decoder: data.decoder, agents, reward };
    const { metrics, rows, dataSources } = await validate(context, validation, step);
    directory.writeSamples(`validation_${step}`, rows, (index) => ({ data_source: dataSources[index] }));
    await loggers.logGenerations(rows, step);
    if (this.config.trainer.validation_data_dir)
      writeDump(this.config.trainer.validation_data_dir, String(step), rows);
    return metrics;
  }

  private writeGenerations(directory: RunDirectory, done: StepResult, step: number): void {
    const rows = dumpRows(step, done.scored);
    const { batch } = done.scored;
    // A trajectory is one row, of all of its sequences.
    const trajectories = batch.has('trajectory') ? trajectoryRows(batch) : null;
    directory.writeSamples(String(step), rows, (index) => {
      const { start, end } = trajectories?.[index] ?? { start: index, end: index + 1 };
      return {
        data_source: batch.row('dataSource', start),
        prompt_length: batch.promptLens[start],
        response_length: (batch.responseOffsets[end] as number) - (batch.responseOffsets[start] as number),
      };
    });
    if (this.config.trainer.rollout_data_dir)
      writeDump(this.config.trainer.rollout_data_dir, String(step), rows);
  }

  private log(line: string): void {
    this.options.log?.(line);
  }
}

/** The step's times, when all of it is done. Its batch and texts are not held until then: a validation is before that. */
function timingsOf(
  { batch: { numTokens, numResponseTokens }, generatedTokens, timings }: StepResult,
  worldSize: number,
): (timer: PhaseTimer) => Metrics {
  const sizes = { numTokens, numResponseTokens };
  // What a step waits for responses that others work on, as verl has it.
  const idle = (timer: PhaseTimer): Metrics =>
    ROLLOUT_IDLE in timings
      ? { 'trainer/idle_ratio': (timer.get('gen') ?? 0) / (timer.get('step') ?? 1) }
      : {};
  return (timer) => ({
    ...timingMetrics(timer, sizes, worldSize, generatedTokens),
    ...timings,
    ...idle(timer),
  });
}

function scheduleOf({ trainer }: ResolvedConfig, totalSteps: number): Schedule {
  return {
    totalSteps,
    saveEvery: trainer.save_freq,
    validateEvery: trainer.test_freq,
    validateFirst: trainer.val_before_train,
    validateOnly: trainer.val_only,
  };
}

function klOptions(config: ResolvedConfig): Parameters<typeof createKlController>[0] {
  const { type, kl_coef, target_kl, horizon } = config.algorithm.kl_ctrl;
  return { type, klCoef: kl_coef, targetKl: target_kl, horizon };
}

/** A fixed coefficient is that of the configuration, also where it has been changed; an adaptive one goes on from where it was. */
function restore(
  { directory, state }: Checkpoint<TrainerState>,
  { algorithm }: ResolvedConfig,
  data: TrainingData,
  kl: KlController,
): void {
  data.train.restore(state.loader);
  if (algorithm.kl_ctrl.type === 'fixed' || state.klController === undefined) return;
  const { value } = state.klController;
  const { kl_coef: first } = algorithm.kl_ctrl;
  if (!Number.isFinite(value) || Math.sign(value) !== Math.sign(first)) {
    throw new TroupeError(
      'IO',
      `[checkpoint] ${directory}/trainer.json: klController.value: expected a number with the sign of algorithm.kl_ctrl.kl_coef ` +
        `${first}, which it has grown from, but got ${value}`,
    );
  }
  kl.restore(state.klController);
}
