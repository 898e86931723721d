// Which rank holds the others up, and where it is: asked of a group in which a call takes longer than it ever should.
import type { Overdue } from './call_watch';
import type { Member } from './member';
import { stackOf } from './native_stacks';
import type { PeerReports } from './peer_reports';

/** Of a group of hundreds, the stacks of a few say enough. */
const MOST_STACKS = 8;
/** Who else waits for it is kept waiting. */
const SILENT_STACKS_MS = 15_000;
/** What works on a worker's engines; the others carry messages, or wait for work. */
const ENGINE_THREAD = 'troupe-engine';
/** Of the stack in the error; the log has all. */
const MOST_LINES = 16;

export interface Culprit {
  member: Member;
  reason: string;
}

/** `abort` ends what the ranks are at; its answers go to `reports`. Takes seconds: debuggers do. */
export async function findCulprit(
  { ranks, what, ms, why }: Overdue,
  members: readonly Member[],
  reports: PeerReports,
  abort: () => void,
): Promise<Culprit> {
  const suspects = members.filter(({ rank }) => ranks.includes(rank));
  // Before they are aborted: that changes where they are.
  const stacks = new Map<Member, string>();
  await Promise.all(
    suspects.slice(0, MOST_STACKS).map(async (member) => {
      const text = await member.stacks('native');
      if (text !== null) stacks.set(member, text);
    }),
  );
  abort();
  await reports.collectAfterHang(members);
  const member = furthestBehind(suspects, reports);
  const seconds = (ms / 1000).toFixed(1);
  const stack = stackText(stacks.get(member));
  return { member, reason: `it hangs: ${what} has taken ${seconds} s so far (limit: ${why})${stack}` };
}

/** Where a worker is that is there and says nothing any more: the end of a sentence about it. */
export async function whereSilent(member: Member): Promise<string> {
  // One that was stopped is where it was by chance.
  if (member.process.stopped?.() === true) return '';
  const script = await member.stacks('script', SILENT_STACKS_MS);
  const native = await member.stacks('native', SILENT_STACKS_MS);
  if (script === null) return native === null ? '' : '; its log says where its threads were';
  const lines = script.split('\n').slice(0, MOST_LINES);
  return `. Its JavaScript was\n${lines.map((line) => `  ${line}`).join('\n')}\n`;
}

/** Who does not answer is not in a collective; who is, waits for the others. */
function furthestBehind(suspects: readonly Member[], reports: PeerReports): Member {
  const place = (member: Member): number => {
    if (member.client.current !== null) return -2;
    return reports.sequenceOf(member.rank) ?? -1;
  };
  return suspects.reduce((behind, member) => (place(member) < place(behind) ? member : behind));
}

function stackText(stacks: string | undefined): string {
  if (stacks === undefined) return '';
  const stack = stackOf(stacks, ENGINE_THREAD) ?? stacks;
  const lines = stack.split('\n').slice(0, MOST_LINES);
  return `. It was at\n${lines.map((line) => `  ${line.slice(0, 200)}`).join('\n')}\n`;
}
