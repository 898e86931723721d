import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { parseYamlTree, readConfigText } from '../reading/read';
import { setPath, type Tree } from '../reading/tree';
import table from './defaults_table.json';

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

/** Oldest first. */
export const VERL_VERSIONS: readonly string[] = table.versions;

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
    group: (name) => Object.keys(FILES).some((file) => file.startsWith(`${folder}${name}/`)),
  };
}

/** @throws ConfigError for a file that is not YAML */
export function directoryFiles(directory: string): ConfigFiles {
  return {
    file(name) {
      const file = path.join(directory, `${name}.yaml`);
      if (!existsSync(file)) return null;
      const text = readConfigText(file);
      const { defaults, hydra: _, ...values } = parseYamlTree(text, file);
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

/** verl's own files in the checkout that holds `file`; null: it is in none. */
export function checkoutOf(file: string): { root: string; directory: string; version: string } | null {
  for (let at = path.dirname(path.resolve(file)); ; at = path.dirname(at)) {
    const directory = path.join(at, 'verl/trainer/config');
    if (isDirectory(path.join(directory, 'actor'))) {
      const version = path.join(at, 'verl/version/version');
      const said = existsSync(version) ? readFileSync(version, 'utf8').trim() : 'unknown';
      return { root: at, directory, version: said };
    }
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
