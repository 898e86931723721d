import {
  type ConfigFiles,
  checkoutOf,
  directoryFiles,
  searchPath,
  tableFiles,
  VERL_VERSIONS,
} from './config_files';

/** What a program of verl is here. */
export interface VerlProgram {
  program: 'train' | 'sft';
  /** Its primary configuration file, without .yaml. */
  config: string;
  /** Folder of that file in the table of defaults; '': verl's own. */
  folder: string;
  /** Why it is not one that exists here; null: it is. */
  needs: string | null;
}

/** Ends of module names that train here as they do there. */
const KNOWN: readonly (readonly [RegExp, Omit<VerlProgram, 'needs'>])[] = [
  [/(^|\.)verl\.trainer\.main_ppo(_sync|_format)?$/, { program: 'train', config: 'ppo_trainer', folder: '' }],
  [/(^|\.)verl\.trainer\.sft_trainer(_ray)?$/, { program: 'sft', config: 'sft_trainer_engine', folder: '' }],
  [/(^|\.)verl\.trainer\.fsdp_sft_trainer$/, { program: 'sft', config: 'sft_trainer', folder: '' }],
  [
    /(^|\.)(recipe\.|verl_recipe\.)?dapo\.main_dapo$/,
    { program: 'train', config: 'dapo_trainer', folder: 'recipe.dapo/' },
  ],
];

const ASYNC = /fully_async|one_step_off|async_flow|partial_rollout|reward_queue/;
const NO_TRAINER = /main_(generation|eval)/;

/** @param name a module, or the file of one */
export function verlProgram(name: string): VerlProgram {
  const module = moduleOf(name);
  const known = KNOWN.find(([pattern]) => pattern.test(module));
  // A bare main_ppo.py is taken for verl's own.
  if (known !== undefined) return { ...known[1], needs: null };
  if (/^main_ppo$/.test(module)) return { program: 'train', config: 'ppo_trainer', folder: '', needs: null };
  const needs = NO_TRAINER.test(module)
    ? `needs the program ${name}, which generates or evaluates and does not train, and which is not there`
    : ASYNC.test(module)
      ? `needs asynchronous training (the program ${name}), which is not there`
      : `needs the program ${name}, a trainer of its own, which is not there`;
  return { program: /sft/.test(module) ? 'sft' : 'train', config: 'ppo_trainer', folder: '', needs };
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
  /** For people. */
  version: string;
  /** Of the table. */
  tableVersion: string;
}

/**
 * verl's own files: of the version asked for, or of the checkout that the script lies in, or else of the newest known; an older
 * version's where that has no file of the name.
 */
export function verlFiles(script: string, { config, folder }: VerlProgram, asked: string | null): VerlFiles {
  const checkout = asked === null ? checkoutOf(script) : null;
  const newest = VERL_VERSIONS.at(-1) as string;
  const has = (version: string): boolean => tableFiles(version, folder).file(config) !== null;
  const version = asked ?? (has(newest) ? newest : (VERL_VERSIONS.findLast(has) ?? newest));
  const table =
    folder === '' ? tableFiles(version) : searchPath(tableFiles(version, folder), tableFiles(version));
  if (checkout === null) return { files: table, version, tableVersion: version };
  return {
    files: searchPath(directoryFiles(checkout.directory), table),
    version: `${checkout.version}, of the checkout`,
    tableVersion: version,
  };
}
