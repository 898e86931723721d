// trainer.fault_tolerance: what becomes of a run when something under it fails; of both programs.
import { RUN_LIMITS } from '../../base/limits';
import { bool, field, int, num, seconds } from './field';

export const faultSection = {
  max_restarts: field(
    int(0, 10_000),
    0,
    'How often, within `window`, the workers are started again after a failure, from the newest good checkpoint; 0: the run ends.',
  ),
  window: field(seconds, 3600, 'Seconds.'),
  spares: field(
    int(0, 1024),
    0,
    'Hosts beyond trainer.nnodes that may dial in, to take the place of a lost one.',
  ),
  orphan_wait: field(
    num(0, RUN_LIMITS.seconds),
    0,
    'env: seconds for which the agent of a host looks for another controller when its own is gone without a word; 0: it ends.',
  ),
  elastic: field(bool, false, 'Go on with fewer hosts when a lost one is not replaced.'),
};
