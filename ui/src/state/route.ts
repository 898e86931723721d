// Where in the page one is: all of it in the part of the address that never leaves the browser.
import { useEffect, useMemo, useState } from 'preact/hooks';

export interface Route {
  page: string;
  /** Runs that it is about. */
  runs: string[];
  params: URLSearchParams;
}

function read(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?');
  const params = new URLSearchParams(query);
  return { page: path || 'overview', runs: params.getAll('run'), params };
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = (): void => setHash(location.hash);
    addEventListener('hashchange', changed);
    // Effects run after the first painting: the address may have changed before anybody listened.
    changed();
    return () => removeEventListener('hashchange', changed);
  }, []);
  return useMemo(() => read(hash), [hash]);
}

export function href(
  page: string,
  runs: readonly string[],
  more: Readonly<Record<string, string | number | null>> = {},
): string {
  const params = new URLSearchParams(runs.map((id) => ['run', id]));
  for (const [key, value] of Object.entries(more))
    if (value !== null && value !== '') params.set(key, String(value));
  const text = params.toString();
  return `#/${page}${text === '' ? '' : `?${text}`}`;
}

export const go = (address: string): void => {
  location.hash = address;
};

/** Changes one parameter without a new entry in the history. */
export function replaceParam(name: string, value: string | null): void {
  const { page, params } = read(location.hash);
  if (value === null || value === '') params.delete(name);
  else params.set(name, value);
  const text = params.toString();
  history.replaceState(null, '', `#/${page}${text === '' ? '' : `?${text}`}`);
  dispatchEvent(new HashChangeEvent('hashchange'));
}
