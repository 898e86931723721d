// What the server is asked for, and how the answers reach components.
import { useLayoutEffect, useState } from 'preact/hooks';

export type Query = Readonly<Record<string, string | number | null | undefined | readonly string[]>>;

export function addressOf(path: string, query: Query): string {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const one of value as readonly string[]) params.append(key, one);
    else if (value !== null && value !== undefined && value !== '') params.set(key, String(value));
  }
  return `/api/${path}?${params}`;
}

export async function ask<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const answer = await fetch(addressOf(path, query), signal ? { signal } : {});
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return (await answer.json()) as T;
}

export interface Answer<T> {
  data: T | null;
  error: string | null;
  /** Whether this is still what was answered to an earlier question. */
  old: boolean;
}

/**
 * The answer to a question, asked again when it or `stamp` changes; meanwhile the last one stays, so that nothing flickers. `path`
 * null: nothing is asked. `how`: asks, where questions are not asked one by one.
 */
export function useAnswer<T>(
  path: string | null,
  query: Query = {},
  stamp: unknown = 0,
  how: (path: string, query: Query, signal: AbortSignal) => Promise<T> = ask,
): Answer<T> {
  const address = path === null ? null : addressOf(path, query);
  const [{ data, error, of }, setState] = useState<{
    data: T | null;
    error: string | null;
    of: string | null;
  }>({
    data: null,
    error: null,
    of: null,
  });
  // Not after the painting: the answer is what is waited for.
  useLayoutEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    how(path, query, stop.signal).then(
      (data) => {
        if (!stop.signal.aborted) setState({ data, error: null, of: address });
      },
      (error: Error) => {
        if (!stop.signal.aborted)
          setState((before) => ({
            data: before.of === address ? before.data : null,
            error: error.message,
            of: address,
          }));
      },
    );
    return () => stop.abort();
  }, [address, stamp]);
  return { data, error, old: of !== address };
}
