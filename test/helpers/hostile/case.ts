// One hostile input: what is done with it, and what its message must name.
export interface HostileCase {
  name: string;
  /** A file, a key, a line or an argument: the message holds each of them. */
  place: readonly string[];
  /** Must end with an error of Troupe, or reject with one. */
  run: () => unknown;
}

/** Makes the cases of one kind in a directory of their own. */
export type Cases = (directory: string) => HostileCase[];
