// Which rank computes which sequences: whole prompts with all their responses, because a rank computes a prompt once.
import type { Batch } from '../batch/batch';
import { karmarkarKarp, sequenceWorkload } from '../batch/partition';

/** How much more work than an equal share a rank may have before a prompt is computed on two ranks for the sake of balance. */
const TOLERANCE = 0.05;
/** A move must gain this part of an equal share. */
const WORTHWHILE = 0.01;

/** Sequences of one rank, and their work in units of {@link sequenceWorkload}. */
export interface RankPart {
  indices: number[];
  work: number;
}

/** Responses to one prompt on one rank. */
interface Group {
  prompt: number; // the first sequence with it
  promptWork: number;
  /** Most work first. */
  members: Member[];
}

/** `work`: what a sequence adds to the work of its prompt. Attention over L positions beyond a prompt of P costs L² - P². */
interface Member {
  index: number;
  work: number;
}

interface Rank {
  groups: Group[];
  work: number;
}

/** What moves from one rank to another. */
interface Move {
  group: Group;
  members: Member[];
  /** Work of the busier of the two ranks afterwards. */
  work: number;
}

/**
 * `indices` in one part per rank, ascending in each, balanced by work. `firstWithPrompt` [B]: see there. The responses to a prompt
 * stay together, unless a rank would then have more than an equal share by {@link TOLERANCE}, as where there are fewer prompts
 * than ranks. With fewer sequences than ranks some parts are empty.
 */
export function rankParts(
  batch: Batch,
  indices: readonly number[],
  ranks: number,
  firstWithPrompt: Int32Array,
): RankPart[] {
  const groups = promptGroups(batch, indices, firstWithPrompt);
  const shared = shareWhole(groups, ranks);
  evenOut(shared);
  return shared.map(({ groups: own, work }) => ({
    indices: own.flatMap((group) => group.members.map(({ index }) => index)).sort((a, b) => a - b),
    work,
  }));
}

function promptGroups(batch: Batch, indices: readonly number[], firstWithPrompt: Int32Array): Group[] {
  const { promptLens, sequenceLens } = batch;
  const groups = new Map<number, Group>();
  for (const index of indices) {
    const prompt = firstWithPrompt[index] as number;
    const promptWork = sequenceWorkload(promptLens[index] as number);
    const work = sequenceWorkload(sequenceLens[index] as number) - promptWork;
    const group = groups.get(prompt);
    if (group) group.members.push({ index, work });
    else groups.set(prompt, { prompt, promptWork, members: [{ index, work }] });
  }
  for (const group of groups.values()) {
    group.members.sort(mostWorkFirst);
    // Nothing is computed for empty responses.
    if (group.members[0]?.work === 0) group.promptWork = 0;
  }
  return [...groups.values()];
}

const mostWorkFirst = (a: Member, b: Member): number => b.work - a.work || a.index - b.index;
const workOf = (members: readonly Member[]): number => members.reduce((sum, { work }) => sum + work, 0);
const groupWork = ({ promptWork, members }: Group): number => promptWork + workOf(members);

function shareWhole(groups: Group[], ranks: number): Rank[] {
  const works = groups.map(groupWork);
  const sets =
    groups.length >= ranks
      ? karmarkarKarp(works, ranks, false)
      : Array.from({ length: ranks }, (_, rank) => (rank < groups.length ? [rank] : []));
  return sets.map((set) => ({
    groups: set.map((i) => groups[i] as Group),
    work: set.reduce((sum, i) => sum + (works[i] as number), 0),
  }));
}

/** Moves responses from the busiest rank to the idlest until the busiest is near the mean, or nothing more is gained. */
function evenOut(ranks: Rank[]): void {
  const mean = ranks.reduce((sum, { work }) => sum + work, 0) / ranks.length;
  const limit = (1 + TOLERANCE) * mean;
  for (;;) {
    const busiest = ranks.reduce((a, b) => (b.work > a.work ? b : a));
    const idlest = ranks.reduce((a, b) => (b.work < a.work ? b : a));
    if (busiest.work <= limit) return;
    let best: Move | null = null;
    for (const group of busiest.groups) {
      const move = moveOf(group, busiest, idlest, limit);
      if (best === null || move.work < best.work) best = move;
    }
    if (best === null || best.work > busiest.work - WORTHWHILE * mean) return;
    apply(best, busiest, idlest);
  }
}

/** Members of a group that make the two ranks nearly equal, but do not bring the idler one above `limit` where that can be. */
function moveOf(group: Group, from: Rank, to: Rank, limit: number): Move {
  const again = to.groups.some(({ prompt }) => prompt === group.prompt) ? 0 : group.promptWork;
  const half = (from.work - to.work - again) / 2;
  const room = limit - to.work - again;
  const smallest = group.members.at(-1) as Member;
  const wanted = room >= smallest.work ? Math.min(room, half) : half;
  const members: Member[] = [];
  let moved = 0;
  for (const member of group.members) {
    if (moved + member.work > wanted) continue;
    members.push(member);
    moved += member.work;
  }
  if (members.length === 0) {
    members.push(smallest);
    moved = smallest.work;
  }
  const left = members.length === group.members.length ? group.promptWork : 0;
  return { group, members, work: Math.max(from.work - moved - left, to.work + moved + again) };
}

function apply({ group, members }: Move, from: Rank, to: Rank): void {
  const moved = new Set(members);
  const work = workOf(members);
  const kept = group.members.filter((member) => !moved.has(member));
  from.groups = from.groups.filter((other) => other !== group);
  from.work -= work;
  if (kept.length > 0) from.groups.push({ ...group, members: kept });
  else from.work -= group.promptWork;
  const there = to.groups.find(({ prompt }) => prompt === group.prompt);
  if (there) {
    there.members = [...there.members, ...members].sort(mostWorkFirst);
  } else {
    to.groups.push({ ...group, members });
    to.work += group.promptWork;
  }
  to.work += work;
}
