import { dirname, relative, resolve } from 'node:path';
import { printable } from '../base/printable';
import {
  batchArithmetic,
  configNotes,
  loadConfig,
  loadSftConfig,
  type ResolvedConfig,
  type ResolvedSftConfig,
} from '../config/config';
import type { Launcher } from '../controller/launcher';
import type { HostPool } from '../launch/host_pool';
import { gatherHosts, partOf, serveAsAgent } from '../launch/launch';
import { requeueAfter } from '../launch/slurm';
import { leftInMemory } from '../run/checkpoint_staging';
import { CheckpointStore } from '../run/checkpoint_store';
import type { FitResult } from '../trainer/fit_loop';
import { ResilientRun, type RunSession, type SessionPlace } from '../trainer/resilient_run';
import { SftTrainer } from '../trainer/sft_trainer';
import { Trainer } from '../trainer/trainer';
import { onInterrupt, stopping } from './interrupt';
import { exitCodeOf } from './report';

/** Names of files and experiments may hold anything. */
const say = (line: string): void => {
  process.stdout.write(`${printable(line, { max: Number.POSITIVE_INFINITY, lines: true })}\n`);
};

/** `troupe train`. Returns the exit code. */
export function train(file: string, overrides: readonly string[]): Promise<number> {
  const load = (more: readonly string[]): ResolvedConfig => loadConfig(file, [...overrides, ...more]);
  return onHosts(load, (config, options) => new Trainer(config, { log: say, ...options }));
}

/** `troupe sft`. Returns the exit code. */
export function sft(file: string, overrides: readonly string[]): Promise<number> {
  const load = (more: readonly string[]): ResolvedSftConfig => loadSftConfig(file, [...overrides, ...more]);
  return onHosts(load, (config, options) => new SftTrainer(config, { log: say, ...options }));
}

type ResumeMode = ResolvedConfig['trainer']['resume_mode'];

/** How a session is made from a configuration. */
type MakeSession<Config> = (
  config: Config,
  options: { launcher?: Launcher } & Pick<SessionPlace, 'onStep' | 'onSaved' | 'runMetrics'>,
) => RunSession;

/** Plays the part that this process has in the run: the trainer of it, or the agent of a host for a trainer elsewhere. */
async function onHosts<Config extends ResolvedConfig | ResolvedSftConfig>(
  load: (overrides: readonly string[]) => Config,
  make: MakeSession<Config>,
): Promise<number> {
  const config = load([]);
  const part = partOf(config);
  if (part.part === 'idle') {
    const { source, rank } = part.place;
    say(
      `nothing to do: of the processes on this host that ${source} has started another one starts the workers (this is rank ${rank})`,
    );
    return 0;
  }
  if (part.part === 'agent') return await serveAsAgent(config, part, say);
  announce(config);
  const mode = config.trainer.resume_mode;
  if (part.part === 'alone') return await run(resilient(config, load, make, null), mode);
  let session: RunSession | null = null;
  let asked: string | null = null;
  const onNotice = (signal: string, host: string): void => {
    asked ??= signal;
    say(stopping(`${signal} at host ${host}`, session?.requestStop(signal) ?? false));
  };
  const { spares, elastic } = config.trainer.fault_tolerance;
  const pool = await gatherHosts(config, part, {
    say,
    onNotice,
    spares,
    ...(elastic ? { elastic: { resumes: hasBeenAtWork(config) } } : {}),
  });
  let code = 1;
  try {
    session = resilient(config, load, make, pool);
    if (asked !== null) session.requestStop(asked);
    code = await run(session, mode);
    return code;
  } catch (error) {
    code = exitCodeOf(error);
    throw error;
  } finally {
    await pool.close(code);
  }
}

function resilient<Config extends ResolvedConfig | ResolvedSftConfig>(
  config: Config,
  load: (overrides: readonly string[]) => Config,
  make: MakeSession<Config>,
  pool: HostPool | null,
): RunSession {
  const {
    fault_tolerance: limits,
    default_local_dir: runDirectory,
    resume_mode: mode,
    nnodes,
  } = config.trainer;
  return new ResilientRun({
    maxRestarts: limits.max_restarts,
    windowMs: 1000 * limits.window,
    runDirectory,
    say,
    session({ again, ...told }) {
      const hosts = pool?.members.length ?? nnodes;
      const overrides = [
        ...(again ? goOnFromNewest(mode) : []),
        ...(hosts === nnodes ? [] : [`trainer.nnodes=${hosts}`]),
      ];
      const own = overrides.length === 0 ? config : load(overrides);
      return make(own, { ...told, ...(pool === null ? {} : { launcher: pool.launcher() }) });
    },
    regroup: async () => pool?.regroup(),
    savedStep: (saved) => (saved || mode === 'auto' ? newestStep(config) : 0),
  });
}

/** That a start with `resume_mode` auto would go on from, as far as that can be told without a look at the files; 0: the beginning. */
function newestStep(config: ResolvedConfig | ResolvedSftConfig): number {
  const held = leftInMemory(config);
  try {
    return Math.max(
      new CheckpointStore(config.trainer.default_local_dir).newestStep,
      held.left ? held.step : 0,
    );
  } catch {
    return 0; // The next start says what is wrong with them.
  }
}

/** What makes a start of any mode go on from the newest checkpoint in the run directory. */
function goOnFromNewest(mode: ResumeMode): string[] {
  if (mode === 'auto') return [];
  return ['trainer.resume_mode=auto', ...(mode === 'resume_path' ? ['trainer.resume_from_path=null'] : [])];
}

/** Whether a process before this one has saved, on the disk or in memory, what the run is to go on from. A session says what is damaged of it. */
const hasBeenAtWork = (config: ResolvedConfig | ResolvedSftConfig): boolean =>
  config.trainer.resume_mode !== 'disable' &&
  (new CheckpointStore(config.trainer.default_local_dir).newestStep > 0 || leftInMemory(config).left);

function announce(config: ResolvedConfig | ResolvedSftConfig): void {
  for (const { path, reason } of configNotes(config)) say(`note: ${path}: ${reason}`);
  batchArithmetic(config).forEach(say);
  const { default_local_dir: directory, ui } = config.trainer;
  say(`run directory: ${here(directory)}`);
  if (!ui) say(`page: npx troupe ui ${here(dirname(resolve(directory)))}`);
}

/** Runs to the end, or to the checkpoint that a signal asks for. `mode`: how the same command would start. */
export async function run(trainer: RunSession, mode: ResumeMode): Promise<number> {
  const restore = onInterrupt((reason) => trainer.requestStop(reason));
  try {
    const result = await trainer.fit();
    // A signal that came when the last step was done has stopped nothing.
    const stopped = result.interrupted && result.finalModel === null;
    say(
      stopped ? stoppedLine(result, trainer.saved === false ? [] : goOnFromNewest(mode)) : doneLine(result),
    );
    if (!stopped) return 0;
    // With another mode it would begin again, and again.
    const requeued = mode === 'auto' ? requeueAfter(result.stopReason) : null;
    if (requeued !== null) say(requeued);
    return 130;
  } finally {
    restore();
  }
}

/** `overrides`: with which the same command goes on. */
function stoppedLine({ step, stopReason }: FitResult, overrides: readonly string[]): string {
  if (step === 0) return `stopped by ${stopReason} before the first step was done: there is nothing to save`;
  const command = ['the same command', ...(overrides.length === 0 ? [] : ['with', ...overrides])].join(' ');
  return `stopped by ${stopReason} after step ${step}, which is saved; ${command} goes on from there`;
}

function doneLine({ step, finalModel, runDirectory }: FitResult): string {
  const plural = step === 1 ? '' : 's';
  if (finalModel === null) return `done: validated after ${step} step${plural}, see ${here(runDirectory)}`;
  return `done: ${step} step${plural}, model in ${here(finalModel)}`;
}

/** A path as one would type it from the current directory, unless that is longer. */
function here(path: string): string {
  const short = relative(process.cwd(), path) || '.';
  return short.length < path.length ? short : path;
}
