// Where a Sandbox Fusion server runs programs, apart from its client: checking a configuration needs no more.
import { show } from '../../base/text';

/** @throws Error saying what a URL must be */
export function runCodeUrl(given: string): string {
  const url = URL.canParse(given) ? new URL(given) : null;
  if (url === null || !/^https?:$/.test(url.protocol))
    throw new Error(`expected http(s)://host[:port][/run_code], got ${show(given)}`);
  if (!/\/run_code\/?$/.test(url.pathname)) url.pathname = `${url.pathname.replace(/\/$/, '')}/run_code`;
  return url.href;
}
