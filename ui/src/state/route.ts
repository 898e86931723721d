// Where in the page one is: all of it in the part of the address that never leaves the browser.
import { useEffect, useState } from 'preact/hooks';

export interface Route {
  page: string;
  /** Runs that it is about. */
  runs: string[];
  params: URLSearchParams;
}

function read(): Route {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const params = new URLSearchParams(query);
  return { page: path || 'overview', runs: params.getAll('run'), params };
}

export function useRoute(): Route {
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const changed = (): void => setRoute(read());
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return route;
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
  const { page, params } = read();
  if (value === null || value === '') params.delete(name);
  else params.set(name, value);
  const text = params.toString();
  history.replaceState(null, '', `#/${page}${text === '' ? '' : `?${text}`}`);
  dispatchEvent(new HashChangeEvent('hashchange'));
}
