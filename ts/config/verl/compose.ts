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
  /** Choices, as arguments, of groups that no defaults list names: Hydra refuses them. */
  unused: string[];
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

/** The name of an option, several of them, or none. */
type Option = string | readonly string[] | null;

/** One entry of a defaults list. */
interface Entry {
  kind: 'self' | 'file' | 'group';
  /** It says what another list chooses, and names no file itself. */
  override: boolean;
  optional: boolean;
  /** Folder or file, from the folder of the list or, after a slash, from the root. */
  name: string;
  /** What stands behind @; null: nothing. */
  package: string | null;
  option: Option;
}

/** A file where a list, or the command line, puts it. */
interface Place {
  name: string;
  /** Where the names in its defaults list start. */
  folder: string;
  /** Package of the list that names it. */
  parent: string;
  /** Its own, below `parent`; null: what its first line says, or else `relative`. */
  package: string | null;
  relative: string;
  optional: boolean;
}

/** Keys of a file, and the section that they go to. */
interface Placed {
  at: string;
  values: Tree;
}

const join = (separator: string, ...parts: string[]): string =>
  parts.filter((part) => part !== '').join(separator);
const dotted = (folder: string): string => folder.replace(/^[./]+/, '').replaceAll('/', '.');
const GLOBAL = '_global_';

/** A package below that of the parent, or below the root where one of them says so. */
function packageBelow(parent: string, own: string): string {
  const whole = join('.', parent, own);
  const start = whole.lastIndexOf(GLOBAL);
  return start < 0 ? whole : whole.slice(start + GLOBAL.length + 1);
}

/** Names that follow a slash start at the root. */
const pathFrom = (folder: string, name: string): string =>
  path.posix.normalize(name.startsWith('/') ? name.slice(1) : join('/', folder, name));

const withoutEnd = (name: string): string => name.replace(/\.yaml$/, '');

const INTERPOLATED = /\$\{([\w/@.]+)\}/g;

class Composer {
  private readonly missing: string[] = [];
  private added = 0;
  /** `group@package` -> what the command line or a list with `override` chooses; the outermost comes first, and the last of a list. */
  private readonly chosen = new Map<string, Option>();
  /** What the groups so far have, by which options of others may be named. */
  private readonly known = new Map<string, Option>();

  constructor(
    private readonly files: ConfigFiles,
    private readonly choices: readonly GroupChoice[],
  ) {}

  run(name: string): Composition {
    const own = new Map<string, string>();
    for (const { group, package: given, option, added } of this.choices) {
      if (added) continue;
      const key = `${group}@${given === GLOBAL ? '' : (given ?? dotted(group))}`;
      this.chosen.set(key, option);
      own.set(key, `${given === null ? group : `${group}@${given}`}=${option ?? 'null'}`);
    }
    const more = this.choices
      .filter(({ added, option }) => added && option !== null)
      .map(({ group, package: given, option }): Entry => entryOf({ [withPackage(group, given)]: option }));
    const folder = path.posix.dirname(name) === '.' ? '' : path.posix.dirname(name);
    const place = { name, folder, parent: '', package: null, relative: dotted(folder), optional: false };
    const tree: Tree = {};
    for (const { at, values } of this.expand(place, more)) merge(tree, at, values);
    const unused = [...own].filter(([key]) => !this.known.has(key)).map(([, argument]) => argument);
    return { tree, missing: this.missing, unused };
  }

  private count(name: string): void {
    this.added++;
    if (this.added <= MOST_FILES) return;
    throw new ConfigError(
      `${name}.yaml: expected at most ${MOST_FILES} files by defaults lists, and there are more: one of them leads back to itself`,
    );
  }

  /** A file and those in its defaults list, in the order in which they are merged. Hydra goes through a list from its end, which decides between overrides. */
  private expand(place: Place, more: readonly Entry[] = []): Placed[] {
    this.count(place.name);
    const file = this.files.file(place.name);
    if (file === null) {
      if (!place.optional) this.missing.push(place.name);
      return [];
    }
    const header = file.package === null ? null : `${GLOBAL}.${file.package}`;
    const at = packageBelow(place.parent, place.package ?? header ?? place.relative);
    // Hydra's own settings say nothing of the run.
    const entries = file.defaults.map(entryOf).filter(({ name }) => !/^\/?hydra(\/|$)/.test(name));
    if (!entries.some(({ kind }) => kind === 'self')) entries.push(SELF);
    entries.push(...more);
    for (const entry of entries) {
      const key = keyOf(entry, place.folder, at);
      if (entry.override && !this.chosen.has(key)) this.chosen.set(key, entry.option);
    }
    const placed: Placed[][] = entries.map(() => []);
    const waiting: { index: number; entry: Entry; option: string }[] = [];
    for (const [index, entry] of [...entries.entries()].reverse()) {
      if (entry.kind === 'self') placed[index] = [{ at, values: file.values }];
      else if (!entry.override) {
        const option = this.chosen.get(keyOf(entry, place.folder, at));
        const decided = option === undefined ? entry.option : option;
        if (typeof decided === 'string' && decided.includes('${'))
          waiting.push({ index, entry, option: decided });
        else placed[index] = this.entry(entry, decided, place.folder, at);
      }
    }
    for (const { index, entry, option } of waiting)
      placed[index] = this.entry(entry, this.interpolated(option), place.folder, at);
    return placed.flat();
  }

  private entry(
    { kind, name, package: given, optional }: Entry,
    option: Option,
    folder: string,
    at: string,
  ): Placed[] {
    const place = { parent: at, package: given, optional };
    const whole = pathFrom(folder, name);
    if (kind === 'file') {
      const own = path.posix.dirname(name);
      const around = path.posix.dirname(whole);
      return this.expand({
        ...place,
        name: whole,
        folder: around === '.' ? '' : around,
        relative: own === '.' ? '' : dotted(own),
      });
    }
    this.known.set(keyOf({ name, package: given }, folder, at), option);
    return [option ?? []]
      .flat()
      .flatMap((one) =>
        this.expand({ ...place, name: `${whole}/${withoutEnd(one)}`, folder: whole, relative: dotted(name) }),
      );
  }

  /** An option may be named by the choice of another group. */
  private interpolated(option: string): string {
    return option.replace(INTERPOLATED, (text, key: string) => {
      const chosen = this.known.get(key.includes('@') ? key : `${key}@${dotted(key)}`);
      return typeof chosen === 'string' ? chosen : text;
    });
  }
}

const withPackage = (group: string, given: string | null): string =>
  given === null ? group : `${group}@${given}`;

const SELF: Entry = {
  kind: 'self',
  override: false,
  optional: false,
  name: '_self_',
  package: null,
  option: null,
};

/** An entry as YAML has it: a name, or one key with a value. */
function entryOf(entry: unknown): Entry {
  const isGroup = isTree(entry);
  const [[key, option] = ['', null]] = isGroup ? Object.entries(entry) : [[String(entry), null]];
  if (key === '_self_') return SELF;
  const [, words = '', name = '', at] = /^((?:(?:override|optional) +)*)([^@]*)(?:@(.*))?$/.exec(key) ?? [];
  const text = (one: unknown): string => withoutEnd(String(one));
  return {
    kind: isGroup ? 'group' : 'file',
    override: words.includes('override'),
    optional: words.includes('optional'),
    name: isGroup ? name : withoutEnd(name),
    package: at === '_here_' ? '' : (at ?? null),
    option: Array.isArray(option)
      ? option.map(text)
      : option === null || option === undefined
        ? null
        : text(option),
  };
}

/** The name by which a group is chosen, with its package though that be the usual one. */
const keyOf = (
  { name, package: given }: Pick<Entry, 'name' | 'package'>,
  folder: string,
  at: string,
): string => `${pathFrom(folder, name)}@${packageBelow(at, given ?? dotted(name))}`;

function merge(tree: Tree, at: string, values: Tree): void {
  if (at !== '' && !isTree(getPath(tree, at))) setPath(tree, at, {});
  mergeInto(at === '' ? tree : (getPath(tree, at) as Tree), structuredClone(values));
}
