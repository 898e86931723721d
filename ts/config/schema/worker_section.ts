import { field, seconds } from './field';

/** How long workers may take; of both programs. */
export const workerTimeouts = {
  startup: field(seconds, 60, 'Seconds until all workers have started and loaded the native core.'),
  silence: field(seconds, 10, 'Seconds after which a worker that gives no sign of life is given up.'),
  close: field(seconds, 5, 'Seconds that a worker has to finish and exit at the end; then it is killed.'),
};

export const COLLECTIVE_TIMEOUT = field(
  seconds,
  600,
  'Seconds that one collective between workers may take; a dead or stopped worker is noticed sooner.',
);
