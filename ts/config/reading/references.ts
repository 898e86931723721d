import { printable } from '../../base/printable';
import { floatText } from '../../base/python_float';
import type { Hidden } from './hidden';
import { parseHydraValue } from './hydra_value';
import { getPath, isTree, type Tree } from './tree';

// ${...} as OmegaConf resolves it: ${a.b}, relative ${.b} and ${..b}, ${oc.select:a.b,default} and ${oc.env:NAME,default}. After a
// backslash it is no reference.

/** Called for a value that cannot be resolved; what it returns takes the value's place. */
export type Unresolved = (path: string, why: string) => unknown;

/**
 * A copy of the tree with references replaced; a string that is nothing but one takes over the type. `hidden` is told what must be written as it
 * is in the file: what the environment has a part in, and texts that would be references if they were read again.
 */
export function resolveReferences(tree: Tree, unresolved: Unresolved, hidden: Hidden[] = []): Tree {
  const root = new References(tree);
  const visitTree = (value: Tree, path: string, keys: readonly string[] | null): Tree =>
    Object.fromEntries(
      Object.entries(value).map(([key, item]) => [
        key,
        visit(item, path === '' ? key : `${path}.${key}`, keys && [...keys, key]),
      ]),
    );
  // `keys`: null inside of a list, which is hidden as a whole.
  const visit = (value: unknown, path: string, keys: readonly string[] | null): unknown => {
    if (isTree(value)) return visitTree(value, path, keys);
    if (keys === null) return visitValue(value, path);
    root.keepsSource = false;
    const found = visitValue(value, path);
    if (root.keepsSource) hidden.push({ path: keys, source: value });
    return found;
  };
  const visitValue = (value: unknown, path: string): unknown => {
    if (Array.isArray(value)) return value.map((item) => visit(item, path, null));
    try {
      return root.resolve(value, path, []);
    } catch (error) {
      if (error instanceof ReferenceProblem) return unresolved(path, printable(error.message));
      throw error;
    }
  };
  return visitTree(tree, '', []);
}

/** References that hold references grow as fast as one likes. */
const MOST_LOOK_UPS = 20_000;
const MOST_LEVELS = 50;
const MOST_CHARACTERS = 2 ** 20;

class ReferenceProblem extends Error {}

class References {
  /** Set when a value of the environment is taken, or a ${ that is no reference. */
  keepsSource = false;

  private lookUps = 0;
  private levels = 0;

  constructor(private readonly tree: Tree) {}

  /** @param path of the key that holds the value; relative references start there */
  resolve(value: unknown, path: string, seen: readonly string[]): unknown {
    if (Array.isArray(value)) return value.map((item) => this.resolve(item, path, seen));
    if (isTree(value)) {
      return Object.fromEntries(
        Object.entries(value).map(([key, item]) => [key, this.resolve(item, `${path}.${key}`, seen)]),
      );
    }
    if (typeof value !== 'string' || !value.includes('${')) return value;
    let out = '';
    for (let at = 0; at < value.length; ) {
      const start = value.indexOf('${', at);
      if (start < 0) return out + value.slice(at);
      // Of backslashes before it two stand for one; one that is left over is for the reference.
      let slashes = 0;
      while (start - slashes > at && value[start - slashes - 1] === '\\') slashes++;
      out += value.slice(at, start - slashes) + '\\'.repeat(slashes >> 1);
      if (slashes % 2 === 1) {
        this.keepsSource = true;
        out += '${';
        at = start + 2;
        continue;
      }
      const end = closing(value, start + 2);
      if (end < 0) throw new ReferenceProblem(`cannot resolve ${value}: a \${ is not closed`);
      const found = this.lookUp(value.slice(start + 2, end), path, seen);
      if (start === 0 && end === value.length - 1) return found;
      out += asText(found);
      if (out.length > MOST_CHARACTERS)
        throw new ReferenceProblem(`its references give more than ${MOST_CHARACTERS} characters`);
      at = end + 1;
    }
    return out;
  }

  private lookUp(expression: string, path: string, seen: readonly string[]): unknown {
    if (++this.lookUps > MOST_LOOK_UPS || this.levels >= MOST_LEVELS)
      throw new ReferenceProblem('its references lead to more references without end');
    this.levels++;
    try {
      return this.found(expression, path, seen);
    } finally {
      this.levels--;
    }
  }

  private found(expression: string, path: string, seen: readonly string[]): unknown {
    // What stands inside may itself hold references.
    const inner = asSource(this.resolve(expression, path, seen));
    const [, resolver, rest] = /^([\w.]+):([\s\S]*)$/.exec(inner) ?? [];
    if (resolver === undefined || rest === undefined) return this.key(inner, path, seen);
    const comma = rest.indexOf(',');
    const name = (comma < 0 ? rest : rest.slice(0, comma)).trim();
    const fallback = comma < 0 ? undefined : parseHydraValue(rest.slice(comma + 1), path);
    if (resolver === 'oc.select') {
      const given = getPath(this.tree, this.absolute(name, path));
      if (given === undefined || given === '???') return fallback ?? null;
      return this.key(name, path, seen);
    }
    if (resolver === 'oc.env') {
      const value = process.env[name];
      if (value !== undefined) this.keepsSource = true;
      if ((value ?? fallback) !== undefined) return value ?? fallback;
      throw new ReferenceProblem(`cannot resolve \${${inner}}: the environment has no ${name}`);
    }
    throw new ReferenceProblem(
      `expected a dotted key in \${...}, got \${${inner}}: resolvers other than oc.select and oc.env are not available`,
    );
  }

  private key(reference: string, path: string, seen: readonly string[]): unknown {
    const key = this.absolute(reference, path);
    if (!/^[A-Za-z_]\w*(\.\w+)*$/.test(key)) {
      throw new ReferenceProblem(`expected a dotted key in \${...}, got \${${reference}}`);
    }
    const found = getPath(this.tree, key);
    if (found === undefined) {
      throw new ReferenceProblem(`cannot resolve \${${reference}}: ${key} is not given in the file`);
    }
    if (seen.includes(key)) {
      throw new ReferenceProblem(`cannot resolve \${${reference}}: ${key} refers to itself`);
    }
    return this.resolve(found, key, [...seen, key]);
  }

  /** One leading dot is the section of the key itself, each further one the section above. */
  private absolute(reference: string, path: string): string {
    const dots = /^\.*/.exec(reference)?.[0].length ?? 0;
    if (dots === 0) return reference;
    const sections = path.split('.').slice(0, -dots);
    return [...sections, reference.slice(dots)].join('.');
  }
}

/** Index of the brace that closes the one before `from`; -1: none. */
function closing(text: string, from: number): number {
  let depth = 1;
  for (let i = from; i < text.length; i++) {
    if (text[i] === '{') depth++;
    else if (text[i] === '}' && --depth === 0) return i;
  }
  return -1;
}

/** Within an expression, which is read again. */
const asSource = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value));

/** As Python's str() has it, lists and sections aside. A number without a fraction is taken for an integer. */
function asText(value: unknown): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  return typeof value === 'number' && !Number.isInteger(value) ? floatText(value) : asSource(value);
}
