// The configuration of a run as it may be written down and sent away: without what the environment has put into it.
import { isTree } from './reading/tree';

/** Of every section and list of a configuration into which the environment has put something. */
const writtenOf = new WeakMap<object, unknown>();

/** `config` has this text in files, and for loggers. */
export function setWritten(config: unknown, written: unknown): void {
  if (typeof config !== 'object' || config === null) return;
  writtenOf.set(config, written);
  if (!isTree(config) || !isTree(written)) return;
  for (const [key, value] of Object.entries(config)) setWritten(value, written[key]);
}

/**
 * What may be written down of a configuration: values that come from the environment (`${oc.env:NAME}`) are references again. Also
 * of one that a program has put together from sections of a loaded one.
 */
export function writtenConfig(config: object): Record<string, unknown> {
  return written(config) as Record<string, unknown>;
}

function written(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (writtenOf.has(value)) return writtenOf.get(value);
  if (!isTree(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, written(item)]));
}

/** A frozen copy of a configuration in which one key has another value, also in what may be written down of it. */
export function withKey<C extends object>(config: C, key: string, value: unknown): C {
  const [name, ...inner] = key.split('.') as [string, ...string[]];
  const section = config as Record<string, unknown>;
  const item = inner.length === 0 ? value : withKey(section[name] as object, inner.join('.'), value);
  const copy = Object.freeze({ ...config, [name]: item });
  if (writtenOf.has(config))
    writtenOf.set(copy, { ...(writtenOf.get(config) as object), [name]: written(item) });
  return copy;
}
