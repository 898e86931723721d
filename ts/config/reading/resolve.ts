import { nearestName } from '../../base/nearest_name';
import { printable } from '../../base/printable';
import { show } from '../../base/text';
import { ConfigError } from '../../errors';
import {
  type Field,
  isAccepted,
  isLeaf,
  isUnset,
  type Leaf,
  leafAt,
  movedTo,
  type Section,
  withNames,
} from '../schema/field';
import type { Carried } from './hidden';
import { parseHydraValue } from './hydra_value';
import { asSections, nearestPath } from './nearest';
import { getPath, isTree, setPath, type Tree } from './tree';

/** A key that was given and is accepted, but does nothing here, or is an older name of another one. */
export interface ConfigNote {
  path: string;
  reason: string;
}

/** A tree with every default, and what became of what was given. */
export interface Resolved {
  tree: Tree;
  notes: ConfigNote[];
  /** Keys that were given under an older name. */
  moved: Carried[];
  /** Keys that took the value of another one. */
  copied: Carried[];
}

const TARGET = '_target_';

/**
 * Validates a tree against a schema and fills in every default. The input is not changed.
 * @throws ConfigError with one line per mistake: the dotted path, what was expected and what came, and for an unknown
 * key the nearest valid one
 */
export function resolve(schema: Section, given: Tree): Resolved {
  return new Resolution(withNames(schema, given), given).run();
}

const MOST_MISTAKES = 50;

/** The limit that an integer has because it must be exact: keys without one of their own do not name it. */
function exactUpTo({ type }: Field<unknown>, value: unknown): string {
  if (!Number.isInteger(value) || Number.isSafeInteger(value) || !type.name.includes('integer')) return '';
  const { MIN_SAFE_INTEGER: least, MAX_SAFE_INTEGER: most } = Number;
  return (value as number) > 0 ? ` (of at most ${most})` : ` (from ${least})`;
}

/** Of a text that would be a value without its quotes: in Hydra's `key='[a,b]'`, where no shell has taken them, they make it a text. */
function quoted({ type }: Field<unknown>, value: unknown): string {
  if (typeof value !== 'string' || !/^\s*[[{]/.test(value)) return '';
  try {
    const inside = parseHydraValue(value, '');
    return type.schema.safeParse(inside).success ? ', a text: leave out the quotes around it' : '';
  } catch {
    return '';
  }
}

/** The name that a misspelt one may stand for. */
function meant({ type: { names } }: Field<unknown>, value: unknown): string {
  const nearest = names === undefined || typeof value !== 'string' ? null : nearestName(names, value);
  return nearest === null ? '' : `; did you mean ${nearest}?`;
}

function listed(messages: readonly string[]): string {
  const more = messages.length - MOST_MISTAKES;
  return [...messages.slice(0, MOST_MISTAKES), ...(more > 0 ? [`and ${more} more mistakes`] : [])].join('\n');
}

class Resolution {
  private readonly input: Tree;
  private readonly notes: ConfigNote[] = [];
  private readonly mistakes: { path: string; message: string }[] = [];
  private readonly derived: { path: string; from: string }[] = [];
  private readonly moved: Carried[] = [];
  private readonly copied: Carried[] = [];

  constructor(
    private readonly schema: Section,
    given: Tree,
  ) {
    this.input = structuredClone(given);
  }

  run(): Resolved {
    this.move(this.schema, this.input, '');
    const tree = this.section(this.schema, this.input, '');
    const [first] = this.mistakes;
    if (first) throw new ConfigError(listed(this.mistakes.map(({ message }) => message)), first.path);
    this.fillDerived(tree);
    return { tree, notes: this.notes, moved: this.moved, copied: this.copied };
  }

  private mistake(path: string, message: string): void {
    this.mistakes.push({ path, message: `${path}: ${message}` });
  }

  /** Older names are carried to where the key lives now, before anything is checked. */
  private move(schema: Section, node: Tree, prefix: string): void {
    for (const [key, entry] of Object.entries(schema)) {
      const value = node[key];
      if (value === undefined) continue;
      const path = prefix + key;
      if (!isLeaf(entry)) {
        if (isTree(value)) this.move(entry, value, `${path}.`);
        continue;
      }
      if (entry.kind !== 'moved') continue;
      delete node[key];
      if (value === null) continue;
      const to = movedTo(entry.to, path);
      const leaf = leafAt(this.schema, to);
      const there = getPath(this.input, to) ?? null;
      if (there !== null && isUnset(leaf, value)) continue;
      if (there !== null && !isUnset(leaf, there) && JSON.stringify(there) !== JSON.stringify(value)) {
        this.mistake(
          path,
          `is an older name of ${to}, and both are given: ${show(value)} and ${show(there)}`,
        );
        continue;
      }
      setPath(this.input, to, value);
      this.moved.push({ from: path, to });
      this.notes.push({ path, reason: `is an older name of ${to}` });
    }
  }

  private section(schema: Section, node: unknown, prefix: string): Tree {
    const where = prefix === '' ? 'the configuration' : prefix.slice(0, -1);
    if (node !== undefined && node !== null && !isTree(node)) {
      this.mistake(where, `expected a section with keys, got ${show(node)}`);
      return {};
    }
    const given: Tree = isTree(node) ? node : {};
    for (const key of Object.keys(given)) {
      if (key === TARGET) this.notes.push({ path: prefix + key, reason: 'names a Python class of verl' });
      else if (!Object.hasOwn(schema, key)) this.unknown(schema, prefix, key);
    }
    const result: Tree = {};
    for (const [key, entry] of Object.entries(schema)) {
      const path = prefix + key;
      const value = given[key];
      if (!isLeaf(entry)) {
        const child = this.section(entry, value, `${path}.`);
        // A section of keys without a meaning here leaves nothing behind.
        if (Object.keys(child).length > 0) result[key] = child;
      } else if (entry.kind === 'field') {
        const resolved = this.field(entry, value, path);
        if (resolved !== undefined) result[key] = resolved;
      } else if (value !== undefined) {
        this.withoutEffect(entry, value, path);
      }
    }
    return result;
  }

  private withoutEffect(entry: Exclude<Leaf, Field<unknown>>, value: unknown, path: string): void {
    if (entry.kind === 'ignored') this.notes.push({ path, reason: entry.reason });
    if (entry.kind !== 'fixed' || value === null) return;
    if (isAccepted(entry, value)) return;
    const allowed = entry.accepts.map(show).join(' or ');
    this.mistake(path, `expected ${allowed}, got ${show(value)}: ${entry.reason}`);
  }

  /** undefined: there is a mistake. null holds the place of a value that is taken from another key later. */
  private field(leaf: Field<unknown>, value: unknown, path: string): unknown {
    const absent = value === undefined || (value === null && !leaf.type.schema.safeParse(null).success);
    if (!absent) {
      const parsed = leaf.type.schema.safeParse(value);
      if (parsed.success) return parsed.data;
      this.mistake(
        path,
        `expected ${leaf.type.name}${exactUpTo(leaf, value)}, got ${show(value)}${quoted(leaf, value)}${meant(leaf, value)}`,
      );
    } else if (leaf.from !== null) {
      this.derived.push({ path, from: leaf.from });
      return null;
    } else if (leaf.value === undefined) {
      this.mistake(path, `expected ${leaf.type.name}, but it is not given (${leaf.doc})`);
    } else {
      return structuredClone(leaf.value);
    }
    return undefined;
  }

  private unknown(schema: Section, prefix: string, key: string): void {
    const path = prefix + printable(key, { max: 100 });
    this.mistakes.push({ path, message: `unknown key ${path}: ${this.hint(schema, prefix, key)}` });
  }

  private hint(schema: Section, prefix: string, key: string): string {
    const sections = asSections(schema, key);
    if (sections !== null) return `a key of a file is not split at its dots: write ${sections}`;
    // Each is compared with every key there is.
    const nearest =
      this.mistakes.length < MOST_MISTAKES ? nearestPath(this.schema, schema, prefix, key) : null;
    return nearest === null
      ? `the keys here are ${Object.keys(schema).join(', ')}`
      : `did you mean ${nearest}?`;
  }

  /** A derived key may follow another derived key, wherever that stands. */
  private fillDerived(tree: Tree): void {
    const sources = new Map(this.derived.map(({ path, from }) => [path, from]));
    for (const path of sources.keys()) {
      let source = path;
      while (sources.has(source)) source = sources.get(source) as string;
      setPath(tree, path, getPath(tree, source));
      this.copied.push({ from: source, to: path });
    }
  }
}
