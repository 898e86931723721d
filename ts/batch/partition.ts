import { show } from '../base/text';
import { TroupeError } from '../errors';
import { arrayLength, checkCount } from './arguments';

// Karmarkar-Karp largest differencing (Karmarkar & Karp, 1982) into k sets, in the order of operations of verl's
// seqlen_balancing, so that partitions are the same.

/** A set of items: a chain through the `next` of all items, so that two sets are joined in one step. */
interface Part {
  sum: number;
  count: number;
  first: number;
  last: number;
}

/** k sets, of which only those with items are listed, largest first: most states hold far fewer than k. */
interface State {
  parts: Part[];
  spread: number;
}

/** By sum, then by number of items, then by the first item, which no two sets share. */
const compareParts = (a: Part, b: Part): number => a.sum - b.sum || a.count - b.count || a.first - b.first;

const descending = (a: Part, b: Part): number => compareParts(b, a);

/** `parts`: largest first. */
function makeState(parts: Part[], k: number): State {
  const smallest = parts.length < k ? 0 : (parts[k - 1] as Part).sum;
  return { parts, spread: (parts[0] as Part).sum - smallest };
}

/** Joins the i-th largest set of one state with the i-th smallest of the other. */
function mergeStates(a: State, b: State, k: number, next: Int32Array): State {
  const free = k - b.parts.length;
  const parts = b.parts;
  // The largest sets of `a` meet empty sets of `b`.
  const alone = a.parts.slice(0, free);
  for (let i = free; i < a.parts.length; i++) {
    const [from, into] = [parts[k - 1 - i] as Part, a.parts[i] as Part];
    next[into.last] = from.first;
    parts[k - 1 - i] = {
      sum: into.sum + from.sum,
      count: into.count + from.count,
      first: into.first,
      last: from.last,
    };
  }
  const joined = a.parts.length > free;
  if (joined) parts.sort(descending);
  return makeState(alone.length === 0 ? parts : mergeSorted(alone, parts), k);
}

/** Both largest first, as is the result. */
function mergeSorted(a: readonly Part[], b: readonly Part[]): Part[] {
  const out: Part[] = [];
  let j = 0;
  for (const part of a) {
    while (j < b.length && descending(b[j] as Part, part) < 0) out.push(b[j++] as Part);
    out.push(part);
  }
  while (j < b.length) out.push(b[j++] as Part);
  return out;
}

/** Largest spread first; on a tie the larger biggest set. */
const comparePriority = (a: State, b: State): number =>
  b.spread - a.spread || compareParts(b.parts[0] as Part, a.parts[0] as Part);

class StateHeap {
  private readonly items: State[] = [];

  get size(): number {
    return this.items.length;
  }

  push(state: State): void {
    const heap = this.items;
    let i = heap.push(state) - 1;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (comparePriority(heap[parent] as State, state) <= 0) break;
      heap[i] = heap[parent] as State;
      i = parent;
    }
    heap[i] = state;
  }

  pop(): State {
    const heap = this.items;
    const top = heap[0] as State;
    const last = heap.pop() as State;
    if (heap.length === 0) return top;
    let i = 0;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && comparePriority(heap[child + 1] as State, heap[child] as State) < 0)
        child++;
      if (comparePriority(last, heap[child] as State) <= 0) break;
      heap[i] = heap[child] as State;
      i = child;
    }
    heap[i] = last;
    return top;
  }
}

/**
 * Splits items into `k` sets of nearly equal sums. `lengths` are the weights, finite and not negative; with `equalSize` every
 * set gets the same number of items, which needs `lengths.length % k === 0`. Returns k arrays of indices, each ascending and
 * non-empty. Throws INVALID_ARGUMENT when that is impossible.
 */
export function karmarkarKarp(lengths: ArrayLike<number>, k: number, equalSize: boolean): number[][] {
  const n = arrayLength('karmarkarKarp: lengths', lengths);
  checkCount('karmarkarKarp: k', k, 1);
  if (typeof equalSize !== 'boolean')
    throw invalid(`equalSize: expected true or false but got ${show(equalSize)}`);
  if (n < k) throw invalid(`cannot split ${n} items into ${k} non-empty sets`);
  if (equalSize && n % k !== 0)
    throw invalid(`equalSize needs the number of items to divide by k: ${n} % ${k} = ${n % k}`);
  for (let i = 0; i < n; i++) {
    if (!(Number.isFinite(lengths[i]) && (lengths[i] as number) >= 0))
      throw invalid(`weight ${i}: expected a finite number >= 0 but got ${show(lengths[i])}`);
  }
  const order = Array.from({ length: n }, (_, i) => i).sort(
    (a, b) => (lengths[a] as number) - (lengths[b] as number) || a - b,
  );
  const heap = new StateHeap();
  const step = equalSize ? k : 1;
  for (let offset = 0; offset < n; offset += step) {
    const items = order.slice(offset, offset + step);
    const parts = items.map((i): Part => ({ sum: lengths[i] as number, count: 1, first: i, last: i }));
    heap.push(makeState(parts.sort(descending), k));
  }
  const next = new Int32Array(n);
  while (heap.size > 1) {
    const a = heap.pop();
    heap.push(mergeStates(a, heap.pop(), k, next));
  }
  const { parts } = heap.pop();
  return parts.map(({ first, count }) => {
    const items = new Array<number>(count);
    for (let i = 0, item = first; i < count; i++, item = next[item] as number) items[i] = item;
    return items.sort((a, b) => a - b);
  });
}

const invalid = (message: string): TroupeError =>
  new TroupeError('INVALID_ARGUMENT', `[partition] ${message}`);

/** verl's estimate of the relative cost of a sequence of L tokens: 24576 L + L², for a 7B-like model. */
export function sequenceWorkload(length: number): number {
  if (typeof length !== 'number')
    throw invalid(`sequenceWorkload: expected a number of tokens but got ${show(length)}`);
  return 24576 * length + length * length;
}

/**
 * The order in which sequences should lie so that `k` contiguous, equally large parts have nearly the same workload.
 * Inside a part the light sequences stand at both ends, as in verl (it shortens pipeline bubbles).
 * `lengths` [B] with B divisible by k; returns a permutation [B] for `Batch.reorder`.
 */
export function balanceOrder(lengths: ArrayLike<number>, k: number): number[] {
  const count = arrayLength('balanceOrder: lengths', lengths);
  const work = Array.from({ length: count }, (_, i) => {
    return sequenceWorkload(lengths[i] as number);
  });
  return karmarkarKarp(work, k, true).flatMap((part) => {
    const sorted = part.sort((a, b) => (work[a] as number) - (work[b] as number) || a - b);
    const even = sorted.filter((_, i) => i % 2 === 0);
    const odd = sorted.filter((_, i) => i % 2 === 1);
    return [...even, ...odd.reverse()];
  });
}
