import { readFileSync } from 'node:fs';
import { load, YAMLException } from 'js-yaml';
import { show } from '../../base/text';
import { ConfigError } from '../../errors';
import type { Hidden } from './hidden';
import { applyOverride } from './overrides';
import { resolveReferences } from './references';
import { isTree, type Tree } from './tree';

/**
 * A YAML file with overrides (Hydra's syntax) applied and references resolved: a plain tree, nothing checked yet but that it
 * is one. `hidden` is told which values the environment has a part in.
 * @throws ConfigError
 */
export function readConfigTree(file: string, overrides: readonly string[], hidden: Hidden[] = []): Tree {
  const tree = parseYamlTree(readConfigText(file), file);
  for (const override of overrides) applyOverride(tree, override);
  const fail = (path: string, why: string): never => {
    throw new ConfigError(`${path}: ${why}`, path);
  };
  return resolveReferences(tree, fail, hidden);
}

/** @throws ConfigError */
export function readConfigText(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    throw new ConfigError(`cannot read the configuration ${file}: ${(cause as Error).message}`);
  }
}

/** @throws ConfigError with line and column */
export function parseYamlTree(text: string, file: string): Record<string, unknown> {
  // Comments alone make an empty document, which the parser refuses.
  const empty = text.split('\n').every((line) => /^\s*(#.*)?$/.test(line));
  const tree = empty ? {} : parse(text, file);
  checkSize(tree, file);
  if (!isTree(tree)) throw new ConfigError(`${file}: expected a mapping of sections, got ${show(tree)}`);
  return tree;
}

/** Far more than the whole configuration has. */
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
    if (open.has(value)) throw new ConfigError(`${file}: an anchor contains itself; write the values out`);
    open.add(value);
    for (const child of Object.values(value)) visit(child);
    open.delete(value);
  };
  visit(tree);
}

function parse(text: string, where: string): unknown {
  try {
    return load(text);
  } catch (cause) {
    if (!(cause instanceof YAMLException)) throw cause;
    const at = cause.mark ? `:${cause.mark.line + 1}:${cause.mark.column + 1}` : '';
    throw new ConfigError(`${where}${at}: not valid YAML: ${cause.reason}`);
  }
}
