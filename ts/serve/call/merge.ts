// Several streams as one, in the order in which their items come.

/** A stream and, at its end, null. */
export async function* withEnd<T>(source: AsyncIterable<T>): AsyncGenerator<T | null> {
  yield* source;
  yield null;
}

type Settled<T> = { index: number } & ({ result: IteratorResult<T> } | { error: unknown });

/**
 * Items with the index of their source. When the reader stops, all sources are ended. Each one tells when it has something: who races for
 * the next item would leave, with every item of the others, something behind at each source that is waited for.
 */
export async function* merge<T>(sources: readonly AsyncIterable<T>[]): AsyncGenerator<[number, T]> {
  const iterators = sources.map((source) => source[Symbol.asyncIterator]());
  let ready: Settled<T>[] = [];
  let wake = (): void => {};
  const settle = (one: Settled<T>): void => {
    ready.push(one);
    wake();
  };
  const ask = (index: number): void => {
    (iterators[index] as AsyncIterator<T>).next().then(
      (result) => settle({ index, result }),
      (error: unknown) => settle({ index, error }),
    );
  };
  let open = iterators.length;
  for (const index of iterators.keys()) ask(index);
  try {
    while (open > 0) {
      if (ready.length === 0)
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      const settled = ready;
      ready = [];
      for (const one of settled) {
        if ('error' in one) throw one.error;
        if (one.result.done) open--;
        else {
          ask(one.index);
          yield [one.index, one.result.value];
        }
      }
    }
  } finally {
    for (const iterator of iterators) void iterator.return?.()?.then(undefined, () => undefined);
  }
}
