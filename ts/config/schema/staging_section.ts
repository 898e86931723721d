// trainer.checkpoint_staging: checkpoints in memory, before the disk or beside it; of both programs.
import { bool, field, orNull, str } from './field';

export const stagingSection = {
  async: field(
    bool,
    false,
    'Write checkpoints to memory while the ranks wait, and from there to the disk while they go on.',
  ),
  every_step: field(
    bool,
    false,
    'Hold the state after every step in memory: after a failure the run goes on from there, and repeats one step at most.',
  ),
  directory: field(
    orNull(str),
    null,
    'Directory on a file system in memory that all hosts of the run share; null: /dev/shm, for one host.',
  ),
};
