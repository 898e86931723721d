// The checkpoint that a configuration asks to go on from.
import type { Tree } from '../config/reading/tree';
import { ConfigError, TroupeError } from '../errors';
import type { CheckpointStaging } from './checkpoint_staging';
import type { Checkpoint, CheckpointStore } from './checkpoint_store';
import {
  type ConfigChange,
  configChanges,
  describeChange,
  type RunConfig,
  runIdentity,
} from './config_changes';
import { checkedState, type TrainerState } from './trainer_state';

/** Where they decide whether there is a critic, or a teacher, they make another run of it. */
const DECIDING: readonly string[] = ['critic.enable', 'distillation.enabled'];

/** Lines about changed keys that one can read. */
const MOST_SHOWN = 20;

export interface Resumed {
  checkpoint: Checkpoint<TrainerState>;
  /** It goes on with the run of the checkpoint; false: it is another run, which begins from it. */
  again: boolean;
  /** It was held in memory alone. */
  staged: boolean;
  /** What people should know. */
  notes: string[];
}

/**
 * The checkpoint that `trainer.resume_mode` asks for, checked with all of its files; null to start from the beginning. `shown`: the
 * configuration as it is written down; `left`: where a newer one may be held in memory, for `auto`.
 * @throws TroupeError IO for one that is damaged, where none serves in its place, or was made by the other program; ConfigError for
 *   one of another run
 */
export async function findCheckpoint(
  config: RunConfig,
  shown: Tree,
  store: CheckpointStore<TrainerState>,
  left: CheckpointStaging<TrainerState>,
): Promise<Resumed | null> {
  const { resume_mode: mode } = config.trainer;
  if (mode === 'disable') return null;
  let notes: string[] = [];
  const verify = async (found: Checkpoint<TrainerState>): Promise<Checkpoint<TrainerState>> => {
    // Another program's is not damaged: it is no step back that helps.
    if (isForeign(found, 'actor_rollout_ref' in config)) return found;
    const checkpoint = { ...found, state: checkedState(found) };
    checkSeed(checkpoint, config.trainer.seed);
    notes = checkChanges(checkpoint, config, shown);
    await store.check(checkpoint);
    return checkpoint;
  };
  const held = mode === 'auto' ? await newestHeld(left, store, verify) : null;
  if (held !== null && !(held instanceof TroupeError)) {
    checkProgram(held, 'actor_rollout_ref' in config);
    return { checkpoint: held, again: true, staged: true, notes };
  }
  notes = [];
  const good =
    mode === 'auto'
      ? await store.newestGood(verify)
      : { checkpoint: await verify(store.read(resumePath(config))), damage: [] };
  if (good === null && held !== null) throw nothingElse(held);
  if (good === null) return null;
  const { checkpoint } = good;
  const damage = [...(held === null ? [] : [held.message]), ...good.damage];
  checkProgram(checkpoint, 'actor_rollout_ref' in config);
  if (mode === 'auto' && !store.namesLatest())
    notes.unshift(
      `${store.root} does not say which checkpoint is the newest: going on from step ${checkpoint.step}`,
    );
  notes.unshift(...damage.map((what) => `warning: ${what}; going on from step ${checkpoint.step} instead`));
  return { checkpoint, again: mode === 'auto', staged: false, notes };
}

/** What is held in memory, where that is newer than what is on the disk; an error: what is wrong with it. */
async function newestHeld(
  left: CheckpointStaging<TrainerState>,
  store: CheckpointStore<TrainerState>,
  verify: (checkpoint: Checkpoint<TrainerState>) => Promise<Checkpoint<TrainerState>>,
): Promise<Checkpoint<TrainerState> | TroupeError | null> {
  if (!left.left) return null;
  try {
    // What is missing has no step.
    if (left.step > 0 && left.step <= store.newestStep) return null;
    return await verify(left.latest());
  } catch (error) {
    if (error instanceof TroupeError && error.code === 'IO') return error;
    throw error;
  }
}

/** For a run whose only state, in memory, is damaged. */
const nothingElse = (damage: TroupeError): TroupeError =>
  new TroupeError(
    'IO',
    `${damage.message}. It was held in memory alone, and there is no other step to go on from on the disk: begin anew with ` +
      'trainer.resume_mode=disable',
    { cause: damage },
  );

function resumePath(config: RunConfig): string {
  const path = 'resume_from_path' in config.trainer ? config.trainer.resume_from_path : null;
  if (path) return path;
  throw new ConfigError(
    'trainer.resume_from_path: resume_mode resume_path needs a checkpoint directory (…/global_step_N) here',
    'trainer.resume_from_path',
  );
}

/** Whether the other program made it. */
const isForeign = ({ state }: Checkpoint<TrainerState>, reinforcement: boolean): boolean =>
  (state.klController !== undefined) !== reinforcement;

function checkProgram(checkpoint: Checkpoint<TrainerState>, reinforcement: boolean): void {
  if (!isForeign(checkpoint, reinforcement)) return;
  const { directory } = checkpoint;
  throw new TroupeError(
    'IO',
    reinforcement
      ? `[checkpoint] ${directory} was made by troupe sft: to train from it name its actor directory in ` +
          'actor_rollout_ref.model.path, and choose another trainer.default_local_dir'
      : `[checkpoint] ${directory} was made by troupe train: choose another trainer.default_local_dir`,
  );
}

/** All randomness of a run follows from its seed, so it cannot go on with another. */
function checkSeed({ directory, state }: Checkpoint<TrainerState>, configured: number): void {
  if (state.seed === configured) return;
  throw new ConfigError(
    `trainer.seed: the checkpoint ${directory} was made with seed ${state.seed} but the configuration has ` +
      `${configured}: use the same seed, or trainer.resume_mode=disable`,
    'trainer.seed',
  );
}

/** A line for each key with another value; those that make another run of it are refused, unless they are asked for. */
function checkChanges(
  { directory, state }: Checkpoint<TrainerState>,
  config: RunConfig,
  shown: Tree,
): string[] {
  const changes = configChanges(state.config, shown, config);
  const another = state.identity !== undefined && state.identity !== runIdentity(config);
  const essential = changes.filter(
    ({ essential, path }) => essential || (another && DECIDING.includes(path)),
  );
  const hidden = another && essential.length === 0;
  if ((essential.length > 0 || hidden) && !config.trainer.resume_with_changes)
    throw anotherRun(directory, hidden ? [] : essential);
  const lines = changes
    .slice(0, MOST_SHOWN)
    .map((change) => `changed since the checkpoint: ${describeChange(change)}`);
  const more = changes.length - lines.length;
  return more > 0 ? [...lines, `changed since the checkpoint: ${more} further keys`] : lines;
}

function anotherRun(directory: string, changes: readonly ConfigChange[]): ConfigError {
  const what =
    changes.length > 0
      ? changes.map(describeChange).join('; ')
      : 'a model or data file that comes from the environment (oc.env) is another one';
  return new ConfigError(
    `[resume] ${directory} was saved by a run that learned something else: ${what}. Go on with the configuration that it was made ` +
      'with; or start over with trainer.resume_mode=disable or another trainer.default_local_dir; or, to go on with the change, ' +
      'set trainer.resume_with_changes=true',
    changes[0]?.path ?? null,
  );
}
