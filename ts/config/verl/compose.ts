import path from 'node:path';
import { ConfigError } from '../../errors';
import { getPath, isTree, mergeInto, setPath, type Tree } from '../reading/tree';
import type { ConfigFiles } from './config_files';

// How Hydra makes one tree of many files: each file names others in its defaults list (`group@package: option`), and packages say
// where in the tree their keys go. Written from Hydra's documentation of the defaults list and of packages.

/** A choice on the command line: `engine=fsdp`, `optim@actor.optim=fsdp`, `+profiler=x`, `~critic`, `critic=null`. */
export interface GroupChoice {
  group: string;
  /** null: the one of the same name. */
  package: string | null;
  /** null: taken out. */
  option: string | null;
  added: boolean;
}

export interface Composition {
  tree: Tree;
  /** Files that are named and not there. */
  missing: string[];
}

/**
 * @param name of the primary file, without .yaml
 * @throws ConfigError for defaults lists without end
 */
export function compose(name: string, files: ConfigFiles, choices: readonly GroupChoice[]): Composition {
  return new Composer(files, choices).run(name);
}

/** The choice that an argument makes; null: it sets a key. A group is a folder of configuration files. */
export function groupChoice(argument: string, files: ConfigFiles): GroupChoice | null {
  const [, sign, group, at, option] = /^([+~]*)([\w/]+)(?:@([\w.]*))?(?:=(.*))?$/.exec(argument) ?? [];
  if (group === undefined || !files.group(group)) return null;
  if (option === undefined && sign !== '~') return null;
  const isOption = option !== undefined && files.file(`${group}/${option}`) !== null;
  // A section of the same name as a group is set by a value: model={...}.
  if (sign !== '~' && at === undefined && !isOption && !/^\w+$/.test(option ?? '')) return null;
  const none = sign === '~' || option === undefined || /^null$/i.test(option);
  return { group, package: at ?? null, option: none ? null : option, added: sign === '+' };
}

/** verl's largest have some dozens. */
const MOST_FILES = 1000;

const join = (...parts: string[]): string => parts.filter((part) => part !== '').join('.');

class Composer {
  private readonly result: Composition = { tree: {}, missing: [] };
  private added = 0;
  /** `group@package` -> option; the outermost says it. */
  private readonly chosen = new Map<string, string | null>();

  constructor(
    private readonly files: ConfigFiles,
    private readonly choices: readonly GroupChoice[],
  ) {
    for (const choice of choices) if (!choice.added) this.choose(choice.group, choice.package, choice.option);
  }

  run(name: string): Composition {
    this.add(name, '');
    for (const { group, package: given, option, added } of this.choices)
      if (added && option !== null) this.add(`${group}/${option}`, given ?? group.replaceAll('/', '.'));
    return this.result;
  }

  private choose(group: string, given: string | null, option: string | null): void {
    const key = `${group}@${given ?? group.replaceAll('/', '.')}`;
    if (!this.chosen.has(key)) this.chosen.set(key, option);
  }

  private count(name: string): void {
    this.added++;
    if (this.added <= MOST_FILES) return;
    throw new ConfigError(
      `${name}.yaml: expected at most ${MOST_FILES} files by defaults lists, and there are more: one of them leads back to itself`,
    );
  }

  private add(name: string, given: string): void {
    this.count(name);
    const file = this.files.file(name);
    if (file === null) {
      this.result.missing.push(name);
      return;
    }
    const own = file.package === '_global_' ? '' : (file.package ?? given);
    for (const entry of file.defaults) {
      const { kind, group, package: at, option } = this.entry(entry, name, own);
      if (kind === 'override') this.choose(group, at, option);
    }
    let merged = false;
    for (const entry of file.defaults) {
      const { kind, group, package: at, option } = this.entry(entry, name, own);
      if (kind === 'self') {
        merged = true;
        this.merge(own, file.values);
      } else if (kind === 'file') this.add(group, own);
      else if (kind !== 'override') {
        const key = `${group}@${at}`;
        const chosen = this.chosen.has(key) ? (this.chosen.get(key) as string | null) : option;
        this.chosen.set(key, chosen);
        if (chosen === null) continue;
        const target = `${group}/${this.interpolated(chosen)}`;
        if (kind === 'optional' && this.files.file(target) === null) continue;
        this.add(target, at);
      }
    }
    if (!merged) this.merge(own, file.values);
  }

  private entry(
    entry: unknown,
    name: string,
    own: string,
  ): {
    kind: 'self' | 'file' | 'group' | 'override' | 'optional';
    group: string;
    package: string;
    option: string | null;
  } {
    const within = (relative: string): string =>
      relative.startsWith('/') ? relative.slice(1) : path.posix.join(path.posix.dirname(name), relative);
    if (!isTree(entry)) {
      const file = String(entry);
      if (file === '_self_') return { kind: 'self', group: '', package: own, option: null };
      return { kind: 'file', group: within(file.replace(/\.yaml$/, '')), package: own, option: null };
    }
    const [[key, option] = ['', null]] = Object.entries(entry);
    const [, word, group = '', at] = /^(?:(override|optional) +)?([^@]*)(?:@(.*))?$/.exec(key) ?? [];
    const kind = word === 'override' || word === 'optional' ? word : 'group';
    const relative = at ?? group.replace(/^[./]+/, '').replaceAll('/', '.');
    const target = relative.startsWith('_global_')
      ? relative.replace(/^_global_\.?/, '')
      : join(own, relative.replace(/^_here_\.?/, ''));
    return {
      kind,
      group: within(group),
      package: target,
      option: option === null || option === undefined ? null : String(option).replace(/\.yaml$/, ''),
    };
  }

  /** An option may be named by the choice of another group. */
  private interpolated(option: string): string {
    return option.replace(/\$\{([\w/]+)\}/g, (whole, group: string) => {
      const key = `${group}@${group.replaceAll('/', '.')}`;
      return this.chosen.get(key) ?? whole;
    });
  }

  private merge(at: string, values: Tree): void {
    const { tree } = this.result;
    if (at !== '' && !isTree(getPath(tree, at))) setPath(tree, at, {});
    mergeInto(at === '' ? tree : (getPath(tree, at) as Tree), structuredClone(values));
  }
}
