import type { ResolvedConfig } from '../config/config';
import { ConfigError, TroupeError } from '../errors';
import type { Checkpoint, CheckpointStore } from './checkpoint_store';

const VERSION = 1;

/** What a checkpoint keeps besides weights and optimisers: trainer.json. */
export interface TrainerState {
  version: number;
  /** Steps done. */
  step: number;
  /** Seed of the run; every random number follows from it and the step. */
  seed: number;
  /** Position of the data loader. */
  loader: unknown;
  klController: { value: number };
  config: unknown;
}

export function trainerState(
  step: number,
  config: ResolvedConfig,
  loader: unknown,
  klController: { value: number },
): TrainerState {
  return { version: VERSION, step, seed: config.trainer.seed, loader, klController, config };
}

/** The checkpoint that `trainer.resume_mode` asks for, or null to start from the beginning. */
export function findCheckpoint(
  config: ResolvedConfig,
  store: CheckpointStore<TrainerState>,
): Checkpoint<TrainerState> | null {
  const { resume_mode: mode, resume_from_path: path } = config.trainer;
  if (mode === 'disable') return null;
  if (mode === 'auto') return checked(store.latest(), config);
  if (!path) {
    throw new ConfigError(
      'trainer.resume_from_path: resume_mode resume_path needs a checkpoint directory (…/global_step_N) here',
      'trainer.resume_from_path',
    );
  }
  return checked(store.read(path), config);
}

function checked(
  checkpoint: Checkpoint<TrainerState> | null,
  config: ResolvedConfig,
): Checkpoint<TrainerState> | null {
  if (!checkpoint) return null;
  const { state, directory } = checkpoint;
  if (state.klController === undefined) {
    throw new TroupeError(
      'IO',
      `[checkpoint] ${directory} was made by troupe sft: to train from it name its actor directory in ` +
        'actor_rollout_ref.model.path, and choose another trainer.default_local_dir',
    );
  }
  if (state.version !== VERSION || state.step !== checkpoint.step) {
    throw new TroupeError(
      'IO',
      `[checkpoint] ${directory}/trainer.json: expected version ${VERSION} and step ${checkpoint.step} ` +
        `but got version ${state.version} and step ${state.step}`,
    );
  }
  checkSeed(checkpoint, config.trainer.seed);
  return checkpoint;
}

/** All randomness of a run follows from its seed, so it cannot go on with another. @throws ConfigError */
export function checkSeed({ directory, state }: Checkpoint<{ seed: number }>, configured: number): void {
  if (state.seed === configured) return;
  throw new ConfigError(
    `trainer.seed: the checkpoint ${directory} was made with seed ${state.seed} but the configuration has ` +
      `${configured}: use the same seed, or trainer.resume_mode=disable`,
    'trainer.seed',
  );
}
