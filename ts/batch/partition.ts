import { TroupeError } from '../errors';

// Karmarkar-Karp largest differencing (Karmarkar & Karp, 1982) into k sets, in the order of operations of verl's
// seqlen_balancing, so that partitions are the same.

interface Part {
  sum: number;
  items: number[]; // indices, in the order in which they were merged
}

interface State {
  parts: Part[]; // k, largest first
  spread: number;
}

function compareParts(a: Part, b: Part, values: ArrayLike<number>): number {
  if (a.sum !== b.sum) return a.sum - b.sum;
  if (a.items.length !== b.items.length) return a.items.length - b.items.length;
  for (let i = 0; i < a.items.length; i++) {
    const x = a.items[i] as number;
    const y = b.items[i] as number;
    if (x !== y) return x - y;
    const difference = (values[x] as number) - (values[y] as number);
    if (difference !== 0) return difference;
  }
  return 0;
}

function makeState(parts: Part[], values: ArrayLike<number>): State {
  parts.sort((a, b) => compareParts(b, a, values));
  return { parts, spread: (parts[0] as Part).sum - (parts[parts.length - 1] as Part).sum };
}

/** Joins the i-th largest set of one state with the i-th smallest of the other. */
function mergeStates(a: State, b: State, values: ArrayLike<number>): State {
  const k = a.parts.length;
  for (let i = 0; i < k; i++) {
    const into = a.parts[i] as Part;
    const from = b.parts[k - 1 - i] as Part;
    for (const item of from.items) into.items.push(item);
    into.sum += from.sum;
  }
  return makeState(a.parts, values);
}

/** Largest spread first; on a tie the larger biggest set. */
function comparePriority(a: State, b: State, values: ArrayLike<number>): number {
  return a.spread !== b.spread
    ? b.spread - a.spread
    : compareParts(b.parts[0] as Part, a.parts[0] as Part, values);
}

class StateHeap {
  private readonly items: State[] = [];
  constructor(private readonly values: ArrayLike<number>) {}

  get size(): number {
    return this.items.length;
  }

  push(state: State): void {
    const heap = this.items;
    let i = heap.push(state) - 1;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (comparePriority(heap[parent] as State, state, this.values) <= 0) break;
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
      if (
        child + 1 < heap.length &&
        comparePriority(heap[child + 1] as State, heap[child] as State, this.values) < 0
      )
        child++;
      if (comparePriority(last, heap[child] as State, this.values) <= 0) break;
      heap[i] = heap[child] as State;
      i = child;
    }
    heap[i] = last;
    return top;
  }
}

/**
 * Splits items into `k` sets of nearly equal sums. `lengths` are the weights; with `equalSize` every set gets the same
 * number of items, which needs `lengths.length % k === 0`. Returns k arrays of indices, each ascending and non-empty.
 * Throws INVALID_ARGUMENT when that is impossible.
 */
export function karmarkarKarp(lengths: ArrayLike<number>, k: number, equalSize: boolean): number[][] {
  const n = lengths.length;
  if (!Number.isInteger(k) || k < 1)
    throw new TroupeError('INVALID_ARGUMENT', `[partition] expected k >= 1 but got ${k}`);
  if (n < k)
    throw new TroupeError('INVALID_ARGUMENT', `[partition] cannot split ${n} items into ${k} non-empty sets`);
  if (equalSize && n % k !== 0) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[partition] equalSize needs the number of items to divide by k: ${n} % ${k} = ${n % k}`,
    );
  }
  const order = Array.from({ length: n }, (_, i) => i).sort(
    (a, b) => (lengths[a] as number) - (lengths[b] as number) || a - b,
  );
  const heap = new StateHeap(lengths);
  const step = equalSize ? k : 1;
  for (let offset = 0; offset < n; offset += step) {
    const parts = Array.from({ length: k }, (_, i): Part => {
      const item = i < step ? (order[offset + i] as number) : undefined;
      return item === undefined ? { sum: 0, items: [] } : { sum: lengths[item] as number, items: [item] };
    });
    heap.push(makeState(parts, lengths));
  }
  while (heap.size > 1) {
    const a = heap.pop();
    heap.push(mergeStates(a, heap.pop(), lengths));
  }
  const partitions = heap.pop().parts.map((part) => part.items.sort((a, b) => a - b));
  const empty = partitions.findIndex((part) => part.length === 0);
  if (empty >= 0)
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[partition] set ${empty} of ${k} is empty: the weights are too uneven`,
    );
  return partitions;
}

/** verl's estimate of the relative cost of a sequence of L tokens: 24576 L + L², for a 7B-like model. */
export const sequenceWorkload = (length: number): number => 24576 * length + length * length;

/**
 * The order in which sequences should lie so that `k` contiguous, equally large parts have nearly the same workload.
 * Inside a part the light sequences stand at both ends, as in verl (it shortens pipeline bubbles).
 * `lengths` [B] with B divisible by k; returns a permutation [B] for `Batch.reorder`.
 */
export function balanceOrder(lengths: ArrayLike<number>, k: number): number[] {
  const work = Array.from(lengths, sequenceWorkload);
  return karmarkarKarp(work, k, true).flatMap((part) => {
    const sorted = part.sort((a, b) => (work[a] as number) - (work[b] as number) || a - b);
    const even = sorted.filter((_, i) => i % 2 === 0);
    const odd = sorted.filter((_, i) => i % 2 === 1);
    return [...even, ...odd.reverse()];
  });
}
