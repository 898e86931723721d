import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

/** What all processes of one run have in common, wherever they went. */
export interface RunMark {
  /** Variable of the environment that the run was started with, and its value. */
  variable: string;
  value: string;
  /** User that they have. */
  uid: number;
  /** Whether no other run has that user, so that it tells of a process with another environment, too. */
  ownUser: boolean;
  /** Clock ticks since boot: older processes belong to somebody else. */
  since: number;
}

type Belongs = 'yes' | 'no' | 'unknown';

const PAUSE_MS = 2;
/** Passes over a process that shows no environment: one that execve() is at work on shows it a moment later. */
const UNKNOWN_PASSES = 50;
/** Longest wait for killed processes to be gone. */
const MAX_WAIT_MS = 10_000;
/** Field 22 of /proc/PID/stat, counted from the state, which follows the name. */
const START_TIME = 19;

/** Time since boot, in the ticks of /proc/PID/stat, which Linux fixes at a hundredth of a second. */
export function ticksSinceBoot(): number {
  return Math.floor(Number(readFileSync('/proc/uptime', 'latin1').split(' ')[0]) * 100);
}

/** A process's start, in clock ticks since boot, and its effective user; null when it is gone. */
export function lookAt(pid: string): { start: number; uid: number } | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    if (/[ZX]/.test(fields[0] ?? '')) return null;
    const uid = /^Uid:\s+\d+\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'latin1'));
    return { start: Number(fields[START_TIME]), uid: Number(uid?.[1]) };
  } catch {
    return null;
  }
}

function belongs(pid: string, mark: RunMark): Belongs {
  const seen = lookAt(pid);
  if (seen === null || seen.start < mark.since || seen.uid !== mark.uid) return 'no';
  let environment: string;
  try {
    environment = readFileSync(`/proc/${pid}/environ`, 'latin1');
  } catch {
    return 'no'; // Another user's, or gone meanwhile.
  }
  if (environment.includes(`${mark.variable}=${mark.value}`)) return 'yes';
  if (!mark.ownUser) return environment === '' ? 'unknown' : 'no';
  // The user tells, unless another trainer on this machine took the same one for a run of its own.
  return environment.includes(`${mark.variable}=`) ? 'no' : 'yes';
}

/**
 * Kills every process of a run that is over and waits until they are gone. A process found is looked for again until two
 * passes in a row found none: it may have started others after the pass went by, and a killed one takes a moment.
 */
export async function endStrays(mark: RunMark): Promise<void> {
  const deadline = Date.now() + MAX_WAIT_MS;
  for (let clean = 0, pass = 0; clean < 2 && Date.now() < deadline; pass++) {
    if (pass > 0) await sleep(PAUSE_MS);
    let found = 0;
    for (const pid of readdirSync('/proc')) {
      if (!/^\d+$/.test(pid) || Number(pid) === process.pid) continue;
      const answer = belongs(pid, mark);
      if (answer === 'yes') kill(Number(pid));
      if (answer === 'yes' || (answer === 'unknown' && pass < UNKNOWN_PASSES)) found += 1;
    }
    clean = found === 0 ? clean + 1 : 0;
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // Gone meanwhile.
  }
}
