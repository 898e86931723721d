// Several streams as one, in the order in which their items come.

/** A stream and, at its end, null. */
export async function* withEnd<T>(source: AsyncIterable<T>): AsyncGenerator<T | null> {
  yield* source;
  yield null;
}

/** Items with the index of their source. When the reader stops, all sources are ended. */
export async function* merge<T>(sources: readonly AsyncIterable<T>[]): AsyncGenerator<[number, T]> {
  const iterators = sources.map((source) => source[Symbol.asyncIterator]());
  const next = (index: number): Promise<[number, IteratorResult<T>]> => {
    const item = (iterators[index] as AsyncIterator<T>)
      .next()
      .then((result): [number, IteratorResult<T>] => [index, result]);
    // One that fails while another is awaited is heard of when its turn comes.
    item.catch(() => undefined);
    return item;
  };
  const waiting = new Map(iterators.map((_, index) => [index, next(index)]));
  try {
    while (waiting.size > 0) {
      const [index, result] = await Promise.race(waiting.values());
      if (result.done) waiting.delete(index);
      else {
        waiting.set(index, next(index));
        yield [index, result.value];
      }
    }
  } finally {
    for (const iterator of iterators) void iterator.return?.()?.then(undefined, () => undefined);
  }
}
