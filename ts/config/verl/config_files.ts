import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { boolYaml11Tag, CORE_SCHEMA, intYaml11Tag, mergeTag, NOT_RESOLVED } from 'js-yaml';
import { parseYamlTree, readConfigText } from '../reading/read';
import { setPath, type Tree } from '../reading/tree';
import table from './defaults_table.json';
import { VERL_VERSIONS } from './versions';

// The configuration files of verl: out of a checkout, or as the table of keys and defaults has them (scripts/verl_defaults.mjs).

/** One file of a configuration tree in Hydra's sense. */
export interface ConfigFile {
  /** Of its `# @package` line. */
  package: string | null;
  /** Its defaults list, as it stands there. */
  defaults: readonly unknown[];
  values: Tree;
}

/** Where files are looked for. */
export interface ConfigFiles {
  /** @param name without .yaml, below the root, such as actor/dp_actor; null: there is none */
  file(name: string): ConfigFile | null;
  /** Whether there are files in a folder, such as actor. */
  group(name: string): boolean;
}

type ByVersion<T> = Readonly<Record<string, T>>;
interface TableFile {
  package: ByVersion<string | null>;
  defaults: ByVersion<readonly unknown[]>;
  keys: Readonly<Record<string, ByVersion<unknown>>>;
}
const FILES = table.files as unknown as Readonly<Record<string, TableFile>>;

/** The value of one version, whose position is one of the digits of a key. */
function ofVersion<T>(values: ByVersion<T>, version: string): T | undefined {
  const digit = String(VERL_VERSIONS.indexOf(version));
  return Object.entries(values).find(([versions]) => versions.includes(digit))?.[1];
}

/** @param folder of the table, such as recipe.dapo/; '': verl's own */
export function tableFiles(version: string, folder = ''): ConfigFiles {
  return {
    file(name) {
      const entry = Object.hasOwn(FILES, folder + name) ? FILES[folder + name] : undefined;
      const defaults = entry === undefined ? undefined : ofVersion(entry.defaults, version);
      if (entry === undefined || defaults === undefined) return null;
      const values: Tree = {};
      for (const [key, byVersion] of Object.entries(entry.keys)) {
        const value = ofVersion(byVersion, version);
        if (value !== undefined) setPath(values, key, structuredClone(value));
      }
      return { package: ofVersion(entry.package, version) ?? null, defaults, values };
    },
    group: (name) =>
      Object.entries(FILES).some(
        ([file, { defaults }]) =>
          file.startsWith(`${folder}${name}/`) && ofVersion(defaults, version) !== undefined,
      ),
  };
}

/** Scalars as OmegaConf reads them, in YAML 1.1: 100_000 and 010 are integers, yes and off booleans, but for y and n. Dates are text. */
export const VERL_YAML = CORE_SCHEMA.withTags(
  {
    ...boolYaml11Tag,
    resolve: (source, ...rest) =>
      /^[yn]$/i.test(source) ? NOT_RESOLVED : boolYaml11Tag.resolve(source, ...rest),
  },
  intYaml11Tag,
  mergeTag,
);

/** @throws ConfigError for a file that is not YAML */
export function directoryFiles(directory: string): ConfigFiles {
  return {
    file(name) {
      const file = path.join(directory, `${name}.yaml`);
      if (!existsSync(file)) return null;
      const text = readConfigText(file);
      const { defaults, hydra: _, ...values } = parseYamlTree(text, file, VERL_YAML);
      return {
        package: /^# *@package +(\S+)/m.exec(text)?.[1] ?? null,
        defaults: Array.isArray(defaults) ? defaults : [],
        values,
      };
    },
    group: (name) => isDirectory(path.join(directory, name)),
  };
}

/** The first that has a file wins. */
export function searchPath(...places: readonly ConfigFiles[]): ConfigFiles {
  return {
    file: (name) => places.map((place) => place.file(name)).find((file) => file !== null) ?? null,
    group: (name) => places.some((place) => place.group(name)),
  };
}

/** verl as it lies on a disk. */
export interface Checkout {
  /** Directory that holds the package verl. */
  root: string;
  /** Of its configuration files. */
  directory: string;
  version: string;
}

/** verl in the directory, which is a checkout, or where packages are installed, or the package itself; null: it is not there. */
export function checkoutAt(place: string): Checkout | null {
  const root = path.resolve(place);
  const inside = { root, package: path.join(root, 'verl') };
  const itself = { root: path.dirname(root), package: root };
  for (const found of path.basename(root) === 'verl' ? [inside, itself] : [inside]) {
    const directory = path.join(found.package, 'trainer/config');
    if (!existsSync(path.join(directory, 'ppo_trainer.yaml'))) continue;
    const version = path.join(found.package, 'version/version');
    const said = existsSync(version) ? readFileSync(version, 'utf8').trim() : 'unknown';
    return { root: found.root, directory, version: said };
  }
  return null;
}

/** The checkout that holds `file`; null: it is in none. */
export function checkoutOf(file: string): Checkout | null {
  for (let at = path.dirname(path.resolve(file)); ; at = path.dirname(at)) {
    const found = checkoutAt(at);
    if (found !== null) return found;
    if (at === path.dirname(at)) return null;
  }
}

function isDirectory(name: string): boolean {
  try {
    readdirSync(name);
    return true;
  } catch {
    return false;
  }
}
