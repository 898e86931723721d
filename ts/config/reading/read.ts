import { readFileSync, statSync } from 'node:fs';
import { CORE_SCHEMA, FAILSAFE_SCHEMA, load, mergeTag, type Schema, YAMLException } from 'js-yaml';
import { printable } from '../../base/printable';
import { relativeTo } from '../../base/relative_to';
import { reasonOf, show } from '../../base/text';
import { decodeUtf8 } from '../../base/utf8';
import { ConfigError } from '../../errors';
import type { Hidden } from './hidden';
import { keepNames } from './names';
import { applyOverride } from './overrides';
import { resolveReferences } from './references';
import { isTree, type Tree } from './tree';

/** A configuration file and what it said when it was read: what a shell makes of <(...) can be read only once. */
export interface ConfigSource {
  file: string;
  text: string;
}

/** YAML 1.2, and `<<` of 1.1, by which a section takes over what an anchor has. */
const YAML = CORE_SCHEMA.withTags(mergeTag);

/** @throws ConfigError */
export const readConfig = (file: string): ConfigSource => ({ file, text: readConfigText(file) });

/**
 * YAML with overrides (Hydra's syntax) applied and references resolved: a plain tree, nothing checked yet but that it
 * is one. `hidden` is told which values the environment has a part in.
 * @throws ConfigError
 */
export function configTree(
  { file, text }: ConfigSource,
  overrides: readonly string[],
  hidden: Hidden[] = [],
): Tree {
  const tree = parseYamlTree(text, file);
  for (const override of overrides) applyOverride(tree, override);
  checkSize(tree, overrides.length === 0 ? file : `${file} with its overrides`);
  const fail = (path: string, why: string): never => {
    throw new ConfigError(`${path}: ${why}`, path);
  };
  return resolveReferences(tree, fail, hidden);
}

/** @throws ConfigError */
export function readConfigText(file: string): string {
  let bytes: Buffer;
  try {
    const found = statSync(file);
    // What a shell makes of <(...) is a FIFO.
    if (!found.isFile() && !found.isFIFO()) throw new Error(`${file} is not a file`);
    bytes = readFileSync(file);
  } catch (cause) {
    throw new ConfigError(
      `cannot read the configuration ${printable(file)}${relativeTo(file)}: ${printable((cause as Error).message)}`,
    );
  }
  if (bytes.length > MOST_BYTES)
    throw new ConfigError(
      `${file}: expected at most ${MOST_BYTES} bytes, and it has ${bytes.length}: is it a configuration?`,
    );
  return decodeUtf8(bytes, (line) => {
    throw new ConfigError(`${file}:${line}: not valid UTF-8: write the file again as UTF-8`);
  });
}

/**
 * @param schema which scalars are numbers and booleans; YAML 1.2's core schema by default
 * @throws ConfigError with line and column
 */
export function parseYamlTree(text: string, file: string, schema: Schema = YAML): Record<string, unknown> {
  // Comments alone make an empty document, which the parser refuses.
  const empty = text.split('\n').every((line) => /^\s*(#.*)?$/.test(line));
  const tree = empty ? {} : parse(text, file, schema);
  checkSize(tree, file);
  if (!isTree(tree)) throw new ConfigError(`${file}: expected a mapping of sections, got ${show(tree)}`);
  const own = unshared(tree) as Tree;
  keepNames(own, () => load(text, { schema: FAILSAFE_SCHEMA.withTags(mergeTag) }));
  return own;
}

/** What several places have by one anchor is one object for the parser; an override of one place must not change the others. */
function unshared(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(unshared);
  if (!isTree(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, unshared(item)]));
}

/** Far more than the whole configuration has. */
const MOST_BYTES = 16 * 2 ** 20;
const MOST_LEVELS = 50;
const MAX_VALUES = 100_000;

/** Anchors make small files of trees that are endless, or all but. */
function checkSize(tree: unknown, file: string): void {
  let count = 0;
  const open = new Set<unknown>();
  const visit = (value: unknown): void => {
    if (++count > MAX_VALUES)
      throw new ConfigError(
        `${file}: expected at most ${MAX_VALUES} values, and there are more when its anchors are expanded`,
      );
    if (typeof value !== 'object' || value === null) return;
    if (open.size >= MOST_LEVELS)
      throw new ConfigError(`${file}: expected at most ${MOST_LEVELS} levels of keys, and there are more`);
    if (open.has(value)) throw new ConfigError(`${file}: an anchor contains itself; write the values out`);
    open.add(value);
    for (const child of Object.values(value)) visit(child);
    open.delete(value);
  };
  visit(tree);
}

function parse(text: string, where: string, schema: Schema): unknown {
  try {
    return load(text, { schema });
  } catch (cause) {
    if (!(cause instanceof YAMLException)) {
      const deep = /call stack/.test(reasonOf(cause));
      throw new ConfigError(
        `${where}: not usable YAML: ${deep ? 'it is nested too deeply' : printable(reasonOf(cause))}`,
      );
    }
    const at = cause.mark ? `:${cause.mark.line + 1}:${cause.mark.column + 1}` : '';
    throw new ConfigError(`${where}${at}: not valid YAML: ${printable(cause.reason)}`);
  }
}
