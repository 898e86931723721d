// Whether SIGHUP, which comes when a terminal or a connection closes, was to be ignored. Node takes that back for itself and its children
// as it starts, so that a program under nohup has to see by other signs what nohup had said.
import { readFileSync, readlinkSync } from 'node:fs';
import { basename } from 'node:path';

/** Bit of SIGHUP in the masks of /proc. */
const HANGUP = 1n;
const WRITE_ONLY = 0o1;
const ACCESS_MODES = 0o3;
/** npx, its shell, a script, the shell before it: more of a chain is a circle of ids that were given again. */
const MOST_PARENTS = 64;

/**
 * The signs: a process between this one and the leader of its session ignores SIGHUP (the shell of a script under nohup, trap '' HUP), or
 * was started by nohup as a shell tells it (`_` in its environment); or stdin is what nohup makes of a terminal. False where none is
 * seen: of `exec nohup`, or of a nohup that no shell has started, nothing is left to see where stdin was no terminal.
 */
export function ignoresHangups(): boolean {
  return stdinOfNohup() || startedByNohup('self') || parents().some(ignored);
}

/** nohup opens /dev/null for writing in place of a terminal, so that reading fails. */
function stdinOfNohup(): boolean {
  const flags = Number.parseInt(/^flags:\s+([0-7]+)/m.exec(read('self', 'fdinfo/0'))?.[1] ?? '0', 8);
  try {
    return (flags & ACCESS_MODES) === WRITE_ONLY && readlinkSync('/proc/self/fd/0') === '/dev/null';
  } catch {
    return false; // closed, or no /proc
  }
}

/** The leader of the session is the shell of a terminal, whose `_` is older than the terminal. */
const ignored = ({ pid, leads }: Parent): boolean =>
  masksHangup(pid) || (!leads && startedByNohup(String(pid)));

const masksHangup = (pid: number): boolean =>
  (BigInt(`0x${/^SigIgn:\s+([0-9a-f]+)/m.exec(read(String(pid), 'status'))?.[1] ?? '0'}`) & HANGUP) !== 0n;

function startedByNohup(process: string): boolean {
  const last = read(process, 'environ')
    .split('\0')
    .find((entry) => entry.startsWith('_='));
  return last !== undefined && basename(last.slice(2)) === 'nohup';
}

interface Parent {
  pid: number;
  leads: boolean;
}

/** From the parent of this process to the leader of their session. */
function parents(): Parent[] {
  const own = place('self');
  const found: Parent[] = [];
  for (let at = own; at !== null && found.length < MOST_PARENTS; ) {
    if (at.pid === at.session) break;
    const { parent: pid } = at;
    at = place(String(pid));
    if (at === null || at.session !== own?.session) break;
    found.push({ pid, leads: pid === at.session });
  }
  return found;
}

function place(process: string): { pid: number; parent: number; session: number } | null {
  const text = read(process, 'stat');
  // The name before them may hold anything.
  const [, parent, , session] = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const pid = Number.parseInt(text, 10);
  return session === undefined ? null : { pid, parent: Number(parent), session: Number(session) };
}

function read(process: string, file: string): string {
  try {
    return readFileSync(`/proc/${process}/${file}`, 'latin1');
  } catch {
    return ''; // it has gone, is another user's, or there is no /proc
  }
}
