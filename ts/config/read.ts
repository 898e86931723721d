import { readFileSync } from 'node:fs';
import { load, YAMLException } from 'js-yaml';
import { ConfigError } from '../errors';
import { show } from '../text';
import { getPath, isTree, setPath } from './tree';

/** A YAML file with `key=value` overrides applied: a plain tree, nothing checked yet but that it is one. */
export function readConfigTree(file: string, overrides: readonly string[]): Record<string, unknown> {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (cause) {
    throw new ConfigError(`cannot read the configuration ${file}: ${(cause as Error).message}`);
  }
  // Comments alone make an empty document, which the parser refuses.
  const empty = text.split('\n').every((line) => /^\s*(#.*)?$/.test(line));
  const tree = empty ? {} : parse(text, file);
  if (!isTree(tree)) throw new ConfigError(`${file}: expected a mapping of sections, got ${show(tree)}`);
  for (const override of overrides) applyOverride(tree, override);
  return interpolate(tree, tree, '') as Record<string, unknown>;
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

/** `a.b.c=value`, the value read as YAML; Hydra's leading + (a key that the file does not have) means the same here. */
function applyOverride(tree: Record<string, unknown>, override: string): void {
  if (override.startsWith('~')) {
    throw new ConfigError(`override '${override}': keys cannot be deleted; give the value wanted, or null`);
  }
  const match = /^\+{0,2}([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=([\s\S]*)$/.exec(override);
  if (match === null) {
    throw new ConfigError(
      `override '${override}': expected key=value with a dotted key, as in trainer.seed=2`,
    );
  }
  const [, key, text] = match as unknown as [string, string, string];
  const value = text.trim() === '' ? null : parse(text, `override '${override}'`);
  const inTheWay = setPath(tree, key, value);
  if (inTheWay !== null) {
    const found = show(getPath(tree, inTheWay));
    throw new ConfigError(`override '${override}': ${inTheWay} is ${found}, not a section`, inTheWay);
  }
}

/** `${a.b}` in a string is the value of the key a.b; a string that is nothing else takes over its type. */
function interpolate(
  root: Record<string, unknown>,
  value: unknown,
  path: string,
  seen: readonly string[] = [],
): unknown {
  if (Array.isArray(value)) return value.map((item) => interpolate(root, item, path, seen));
  if (isTree(value)) {
    const child = (key: string): string => (path === '' ? key : `${path}.${key}`);
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [key, interpolate(root, item, child(key), seen)]),
    );
  }
  if (typeof value !== 'string' || !value.includes('${')) return value;
  const lookUp = (reference: string): unknown => {
    if (!/^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$/.test(reference)) {
      throw new ConfigError(
        `${path}: expected a dotted key in \${...}, got \${${reference}}: resolvers are not available`,
        path,
      );
    }
    const found = getPath(root, reference);
    if (found === undefined || seen.includes(reference)) {
      const why =
        found === undefined ? `${reference} is not given in the file` : `${reference} refers to itself`;
      throw new ConfigError(`${path}: cannot resolve \${${reference}}: ${why}`, path);
    }
    return interpolate(root, found, reference, [...seen, reference]);
  };
  const whole = /^\$\{([^{}]*)\}$/.exec(value);
  if (whole) return lookUp(whole[1] as string);
  return value.replace(/\$\{([^{}]*)\}/g, (_, reference: string) => String(lookUp(reference)));
}
