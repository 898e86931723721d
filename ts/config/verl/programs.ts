import path from 'node:path';
import { ConfigError } from '../../errors';
import {
  type ConfigFiles,
  checkoutAt,
  checkoutOf,
  directoryFiles,
  searchPath,
  tableFiles,
} from './config_files';
import { VERL_VERSIONS } from './versions';

/** What a program of verl is here. */
export interface VerlProgram {
  program: 'train' | 'sft';
  /** Its primary configuration file, without .yaml. */
  config: string;
  /** Folder of that file in the table of defaults; '': verl's own. */
  folder: string;
  /** How it learns while it generates, which it says in sections of its own; null: it does not, or says it by trainer.v1. */
  asynchronous: 'one step off' | 'fully' | null;
  /** Why it is not one that exists here; null: it is. */
  needs: string | null;
}

/** Ends of module names that train here as they do there. */
const KNOWN: readonly (readonly [RegExp, Omit<VerlProgram, 'needs'>])[] = [
  [/(^|\.)verl\.trainer\.main_ppo(_sync|_format)?$/, train('ppo_trainer')],
  [
    /(^|\.)verl\.trainer\.sft_trainer(_ray)?$/,
    { program: 'sft', config: 'sft_trainer_engine', folder: '', asynchronous: null },
  ],
  [
    /(^|\.)verl\.trainer\.fsdp_sft_trainer$/,
    { program: 'sft', config: 'sft_trainer', folder: '', asynchronous: null },
  ],
  [/(^|\.)(recipe\.|verl_recipe\.)?dapo\.main_dapo$/, train('dapo_trainer', 'recipe.dapo/')],
  [
    /(^|\.)one_step_off_policy\.main_ppo$/,
    train('one_step_off_ppo_trainer', 'one_step_off/', 'one step off'),
  ],
  [/(^|\.)fully_async_policy\.fully_async_main$/, train('fully_async_ppo_trainer', 'fully_async/', 'fully')],
];

/** Where a checkout has the files of a folder of the table. */
const PLACES: Readonly<Record<string, readonly string[]>> = {
  'recipe.dapo/': ['recipe/dapo/config'],
  'one_step_off/': ['verl/experimental/one_step_off_policy/config', 'recipe/one_step_off_policy/config'],
  'fully_async/': ['verl/experimental/fully_async_policy/config', 'recipe/fully_async_policy/config'],
};

function train(
  config: string,
  folder = '',
  asynchronous: VerlProgram['asynchronous'] = null,
): Omit<VerlProgram, 'needs'> {
  return { program: 'train', config, folder, asynchronous };
}

const NO_TRAINER = /main_(generation|eval)/;

/** @param name a module, or the file of one */
export function verlProgram(name: string): VerlProgram {
  const module = moduleOf(name);
  const known = KNOWN.find(([pattern]) => pattern.test(module));
  // A bare main_ppo.py is taken for verl's own.
  if (known !== undefined) return { ...known[1], needs: null };
  if (/^main_ppo$/.test(module)) return { ...train('ppo_trainer'), needs: null };
  const needs = NO_TRAINER.test(module)
    ? `needs the program ${name}, which generates or evaluates and does not train, and which is not there: troupe generate --output writes responses to the rows of a file, and troupe eval scores them`
    : `needs the program ${name}, a trainer of its own, which is not there`;
  return { ...train('ppo_trainer'), program: /sft/.test(module) ? 'sft' : 'train', needs };
}

/** Dots for slashes, without .py and what leads to the checkout. */
export const moduleOf = (name: string): string =>
  name
    .replace(/\.py$/, '')
    .replace(/^.*\/(?=(verl|recipe)\/)/, '')
    .replace(/^[./]+/, '')
    .replaceAll('/', '.');

/** verl's own files. */
export interface VerlFiles {
  files: ConfigFiles;
  /** Whose they are, for people. */
  version: string;
  /** Of the table, for what is not among them. */
  tableVersion: string;
}

/**
 * verl's own files: of the version or the directory asked for, or of the checkout that the script lies in, or else of the newest
 * known; another version's where that has no file of the name.
 * @throws ConfigError when `asked` is neither
 */
export function verlFiles(script: string, { config, folder }: VerlProgram, asked: string | null): VerlFiles {
  const newest = VERL_VERSIONS.at(-1) as string;
  const has = (version: string): boolean => tableFiles(version, folder).file(config) !== null;
  const isKnown = asked !== null && VERL_VERSIONS.includes(asked);
  const version = isKnown ? asked : (VERL_VERSIONS.findLast(has) ?? newest);
  const [own, above] = [tableFiles(version, folder), folder === '' ? [] : [tableFiles(version)]];
  const table = searchPath(own, ...above);
  if (isKnown) return { files: table, version, tableVersion: version };
  const checkout = asked === null ? checkoutOf(script) : checkoutAt(asked);
  if (checkout === null && asked !== null)
    throw new ConfigError(
      `verl: expected one of ${VERL_VERSIONS.join(', ')}, or the directory of a checkout or of an installed verl, got "${asked}"`,
    );
  if (checkout === null) {
    const why = version === newest ? 'the newest known' : `the newest known that has ${config}.yaml`;
    return { files: table, version: `${version} (${why}; --verl says another)`, tableVersion: version };
  }
  const places = [
    checkout.directory,
    ...(PLACES[folder] ?? []).map((place) => path.join(checkout.root, place)),
  ];
  const there = searchPath(...places.map(directoryFiles));
  const from = `${checkout.version}, of ${asked === null ? 'the checkout' : asked}`;
  if (there.file(config) !== null) return { files: there, version: from, tableVersion: version };
  // Programs of verl-recipe lie in no checkout of verl, and come and go with its versions.
  const borrowed = `${from}; ${config}.yaml is not there, and that of ${version} is taken`;
  return { files: searchPath(there, table), version: borrowed, tableVersion: version };
}
