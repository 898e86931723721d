// Curves that are asked for in one moment go as one question: the server reads and answers once.
import type { Series } from '../../../ts/ui/protocol';
import { ask, type Query } from './api';

export type Curves = readonly { run: string; series: Series[] }[];

/** As many as the server takes at once. */
const MOST = 200;

/** By what questions have in common: the names, until they leave, and the answer. */
const waiting = new Map<string, { names: Set<string>; answer: Promise<Curves> }>();

/** As {@link ask} for `series` of one `name`. */
export async function askSeries(
  path: string,
  { name, ...rest }: Query,
  signal: AbortSignal,
): Promise<Curves> {
  const names = name as readonly string[];
  const key = JSON.stringify(rest);
  let group = waiting.get(key);
  if (group === undefined || group.names.size + names.length > MOST) {
    const mine = new Set<string>();
    const answer = Promise.resolve().then(() => {
      if (waiting.get(key)?.names === mine) waiting.delete(key);
      return ask<Curves>(path, { ...rest, name: [...mine] });
    });
    group = { names: mine, answer };
    waiting.set(key, group);
  }
  for (const one of names) group.names.add(one);
  const all = await group.answer;
  signal.throwIfAborted();
  return all.map(({ run, series }) => ({ run, series: series.filter((one) => names.includes(one.name)) }));
}
