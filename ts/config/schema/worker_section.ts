import { RUN_LIMITS } from '../../base/limits';
import { field, num, orNull, seconds } from './field';

/** How long workers may take; of both programs. */
export const workerTimeouts = {
  startup: field(seconds, 60, 'Seconds until all workers have started and loaded the native core.'),
  silence: field(seconds, 10, 'Seconds after which a worker that gives no sign of life is given up.'),
  call: field(
    orNull(seconds),
    null,
    'Seconds after which a worker that is still at the same call of an engine hangs (reading and writing of files apart); null: from measured times.',
  ),
  call_factor: field(
    num(0, 1000),
    10,
    'Without `call`: times as long as the slowest call of the kind so far took for as much work; 0: as long as it takes.',
  ),
  call_floor: field(
    num(0.1, RUN_LIMITS.seconds),
    30,
    'Without `call`: seconds that every call has, however fast those before it were.',
  ),
  close: field(seconds, 5, 'Seconds that a worker has to finish and exit at the end; then it is killed.'),
};

export const COLLECTIVE_TIMEOUT = field(
  seconds,
  600,
  'Seconds that one collective between workers may take; a dead or stopped worker is noticed sooner.',
);
