import { show } from '../../base/text';
import { deletePath, getPath, type Tree } from '../reading/tree';
import type { ImportNote } from './import';
import type { VerlSource } from './source';

// Keys of verl that are said in ours before the schema looks at the rest.

/** A key of verl that is one of ours, with the same value. */
export interface Renamed {
  from: string;
  to: string;
  value: unknown;
}

/** A value of ours that follows from several keys of verl, or is another number than there. */
export interface Computed {
  /** Empty: the program itself. */
  from: readonly string[];
  to: string;
  value: unknown;
  why: string;
}

/** What a source is with some of its keys said in ours. */
export interface Rewritten {
  /** The rest. */
  source: VerlSource;
  renamed: readonly Renamed[];
  computed: readonly Computed[];
  changed: readonly ImportNote[];
  withoutEffect: readonly ImportNote[];
  notMapped: readonly ImportNote[];
  defaults: readonly ImportNote[];
}

/** Takes keys out of a source, and notes what they are here. */
export class Rewriting {
  private readonly tree: Tree;
  private readonly given: Set<string>;
  protected readonly renamed: Renamed[] = [];
  private readonly computed: Computed[] = [];
  private readonly changed: ImportNote[] = [];
  private readonly withoutEffect: ImportNote[] = [];
  private readonly notMapped: ImportNote[] = [];
  private readonly defaults: ImportNote[] = [];

  constructor(readonly source: VerlSource) {
    this.tree = structuredClone(source.tree);
    this.given = new Set(source.given);
  }

  result(): Rewritten {
    const { tree, given, renamed, computed, changed, withoutEffect, notMapped, defaults } = this;
    const source = { ...this.source, tree, given };
    return { source, renamed, computed, changed, withoutEffect, notMapped, defaults };
  }

  /** What is given of a section, or the key itself, as dotted paths. */
  givenOf(key: string): string[] {
    return [...this.given].filter((path) => path === key || path.startsWith(`${key}.`));
  }

  at(key: string): unknown {
    return getPath(this.tree, key);
  }

  /** null: not given, or no number, which is said. */
  number(key: string): number | null {
    const value = this.at(key);
    if (typeof value === 'number' && Number.isFinite(value)) return value;
    if (value !== undefined && value !== null)
      this.note('notMapped', key, `expected a number, got ${show(value)}`);
    return null;
  }

  /** 0: none, or no number. */
  count(key: string): number {
    const value = this.at(key);
    return typeof value === 'number' ? value : 0;
  }

  /** The value of a key or a section, which is looked at no further. */
  take(key: string): unknown {
    const value = this.at(key);
    deletePath(this.tree, key);
    for (const path of this.givenOf(key)) this.given.delete(path);
    return value;
  }

  rename(from: string, to: string): void {
    const value = this.take(from);
    if (value !== undefined) this.renamed.push({ from, to, value });
  }

  /** A key or a section that is given has no effect. */
  drop(key: string, why: string): void {
    if (this.givenOf(key).length > 0) this.note('withoutEffect', key, why);
    this.take(key);
  }

  compute(one: Computed): void {
    this.computed.push(one);
  }

  /** A value for a key that the version of the source does not have. */
  without(key: string, value: unknown, why: string): void {
    this.compute({ from: [], to: key, value, why });
    this.defaults.push({
      key,
      why: `${show(value)} is written: this version of verl has no such key, and ${why}`,
    });
  }

  note(list: 'changed' | 'withoutEffect' | 'notMapped', key: string, why: string): void {
    this[list].push({ key, why });
  }
}
