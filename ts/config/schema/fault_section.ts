// trainer.fault_tolerance: what becomes of a run when something under it fails; of both programs.
import { bool, field, int, seconds } from './field';

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
  elastic: field(bool, false, 'Go on with fewer hosts when a lost one is not replaced.'),
};
