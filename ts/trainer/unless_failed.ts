/** A worker's death ends the run at once, also while it waits for something else, such as a reward. */
export function unlessFailed<T>(work: Promise<T>, failed: Promise<Error> | undefined): Promise<T> {
  if (!failed) return work;
  const failure = failed.then((error): never => {
    throw error;
  });
  return Promise.race([work, failure]);
}
