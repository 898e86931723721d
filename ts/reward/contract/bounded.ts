/** Promises of reward functions that bound their own time. */
const bounded = new WeakSet<object>();

/**
 * Says of a reward on its way that its function bounds the time itself, so that `reward.timeout` does not count: it may
 * stand in line behind others, for a sandbox or a server, and waiting is not failing.
 */
export function boundsItself<T>(work: Promise<T>): Promise<T> {
  bounded.add(work);
  return work;
}

export const isBounded = (work: object): boolean => bounded.has(work);
