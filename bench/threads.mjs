// Threads of the processes that a benchmark has started: at its own priority, and how long they waited for a core.
import { readdirSync, readFileSync } from 'node:fs';
import { getPriority, setPriority } from 'node:os';

/** Below this process: process ids, its own not among them. */
function descendants() {
  const children = new Map();
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    const stat = read(`/proc/${pid}/stat`);
    // The name stands in brackets and may hold anything.
    const parent = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1];
    children.set(parent, [...(children.get(parent) ?? []), pid]);
  }
  const below = (pid) => (children.get(pid) ?? []).flatMap((child) => [child, ...below(child)]);
  return below(String(process.pid));
}

/** '' for what has ended meanwhile. */
function read(path) {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}

function threads() {
  return descendants().flatMap((pid) => {
    try {
      return readdirSync(`/proc/${pid}/task`).map((thread) => ({ pid, thread }));
    } catch {
      return [];
    }
  });
}

/**
 * Chromium gives its threads priorities of its own, lower ones than this process was started with (`nice -n -20`): gives them this
 * process's, also those that are yet to come, until the function that is returned is called. Nothing is done where it has the usual one.
 */
export function keepOwnPriority() {
  const own = getPriority();
  if (own >= 0) return () => {};
  const give = () => {
    for (const { thread } of threads()) {
      try {
        setPriority(Number(thread), own);
      } catch {
        // It has ended.
      }
    }
  };
  const timer = setInterval(give, 100);
  return () => clearInterval(timer);
}

/** By thread: the milliseconds for which it has been ready to run and there was no core for it, up to now. */
export function waits() {
  return new Map(
    threads().map(({ pid, thread }) => {
      const [, waited] = read(`/proc/${pid}/task/${thread}/schedstat`).split(' ');
      return [thread, Number(waited ?? 0) / 1e6];
    }),
  );
}

/** What the thread that waited longest between two looks waited for: milliseconds. */
export function longestWait(before, after) {
  return Math.max(0, ...[...after].map(([thread, waited]) => waited - (before.get(thread) ?? 0)));
}
