import { Requests } from './requests';

// The program of a watchdog (dist/cli/watchdog_main.js), started by watchdog.ts.

/** How long a program that lives may take to leave by itself. */
const GRACE_MS = 2_000;

const watched = Number(process.argv[2]);
const requests = new Requests();

function end(): void {
  // Its id may be another one's when it has gone.
  if (process.ppid !== watched) return;
  process.stderr.write(
    `troupe: it does not answer: killed after ${GRACE_MS / 1000} s, without a checkpoint\n`,
  );
  process.kill(watched, 'SIGKILL');
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGUSR2'] as const)
  process.on(signal, () => {
    if (requests.take() === 'again') setTimeout(end, GRACE_MS);
  });
// Nobody insists by it.
process.on('SIGHUP', () => undefined);
process.stderr.on('error', () => undefined);
process.stdin.on('error', () => process.exit());
process.stdin.on('end', () => process.exit());
process.stdin.resume();
process.title = 'troupe watchdog';
