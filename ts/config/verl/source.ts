import { existsSync } from 'node:fs';
import path from 'node:path';
import { ConfigError } from '../../errors';
import type { Hidden } from '../reading/hidden';
import { parseYamlTree, readConfigText } from '../reading/read';
import { resolveReferences } from '../reading/references';
import { getPath, isSftTree, leafPaths, mergeInto, setPath, type Tree } from '../reading/tree';
import { missing as missingFeature } from '../schema/field';
import { applyArguments, type HydraArguments, hydraArguments, type Unread } from './arguments';
import { type Composition, compose } from './compose';
import { type ConfigFiles, directoryFiles, searchPath, tableFiles, VERL_YAML } from './config_files';
import { type Launch, launches, mainLaunch } from './launch';
import { moduleOf, type VerlProgram, verlFiles, verlProgram } from './programs';
import { runScript } from './run_script';
import { allWords, launchWords, type Word } from './shell';

/** What a configuration of verl says, and what of it could not be read. */
export interface VerlSource {
  /** The whole tree, verl's defaults included, with references resolved. */
  tree: Tree;
  /** Dotted paths of what the source itself gives; all else is verl's default. */
  given: ReadonlySet<string>;
  /** Those of them, in a file, that are verl's default all the same. */
  asVerl: ReadonlySet<string>;
  /** Keys that are left to verl and follow no other key; none where the engine is missing, and all of its keys with it. */
  literal: ReadonlySet<string>;
  program: VerlProgram;
  /** Whose defaults the tree has. */
  version: string;
  unread: Unread[];
  /** Keys taken away with ~. */
  removed: string[];
  /** What the environment has a part in by ${oc.env:...}. */
  hidden: Hidden[];
  /** The command of a script; null: there is none. */
  launch: Launch | null;
  /** Commands that start a trainer; the last one counts. */
  launchCount: number;
  /** Why a script was read and not run; null: it was run, or is none. */
  notRun: string | null;
}

export interface SourceOptions {
  environment: Readonly<Record<string, string | undefined>>;
  /** One of VERL_VERSIONS, or a directory with verl in it; null: the checkout around the file, or the newest. */
  version?: string | null;
  /** Where a script is run. Default: the working directory. */
  directory?: string;
  /** false: scripts are read without running them. true */
  run?: boolean;
}

/** What a file holds, before verl's defaults are put below it. */
interface Raw {
  program: VerlProgram;
  words: readonly Word[];
  /** The tree of a YAML file. */
  file: Tree | null;
  launch: Launch | null;
  launchCount: number;
  notRun: string | null;
}

/**
 * Reads a YAML file of verl (.yaml, .yml), a script that starts it (which is run in a sandbox), or a text with its arguments, and
 * puts `overrides` on top. Overrides of a script that are no key=value are its arguments, and then all are.
 * @throws ConfigError when there is nothing of the kind in the file
 */
export function readVerlSource(
  file: string,
  overrides: readonly string[],
  options: SourceOptions,
): VerlSource {
  const version = options.version ?? null;
  const text = readConfigText(file);
  try {
    const raw = /\.ya?ml$/.test(file) ? fromYaml(file, text) : fromScript(file, text, overrides, options);
    return composed(file, raw, overrides, version, path.resolve(options.directory ?? process.cwd()));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new ConfigError(
      `${file}: expected a configuration, got one that is nested too deeply, or in itself`,
    );
  }
}

const NO_LAUNCH = { launch: null, launchCount: 0, notRun: null };
const programFor = (tree: Tree): VerlProgram => verlProgram(programName(tree));

/** The program that has the sections of a tree. */
function programName(tree: Tree): string {
  if (isSftTree(tree))
    return getPath(tree, 'model.partial_pretrain') === undefined
      ? 'verl.trainer.sft_trainer'
      : 'verl.trainer.fsdp_sft_trainer';
  if ('async_training' in tree) return 'verl.experimental.fully_async_policy.fully_async_main';
  return 'rollout' in tree ? 'verl.experimental.one_step_off_policy.main_ppo' : 'verl.trainer.main_ppo';
}

function fromYaml(file: string, text: string): Raw {
  const tree = parseYamlTree(text, file, VERL_YAML);
  return { program: programFor(tree), words: [], file: tree, ...NO_LAUNCH };
}

const isKeyValue = (word: string): boolean => /^([+~]|[\w.@/-]+=)/.test(word);
const plain = (text: string): Word => ({ text, problem: null });

function fromScript(file: string, text: string, overrides: readonly string[], options: SourceOptions): Raw {
  const { environment, directory } = options;
  const args = overrides.every(isKeyValue) ? [] : overrides;
  const run =
    options.run === false
      ? { refused: 'not asked to run it' }
      : runScript(file, { args, environment, ...(directory === undefined ? {} : { directory }) });
  if (!('refused' in run)) {
    const all = launches(run.calls);
    const launch = mainLaunch(all);
    if (launch !== null) {
      const words = launch.args.map(plain);
      const launchCount = all.filter(({ program }) => program === launch.program).length;
      return { program: verlProgram(launch.program), words, file: null, launch, launchCount, notRun: null };
    }
    const bare = bareWords(text, environment);
    if (bare !== null) return bare;
    throw new ConfigError(`${file}: ${startedNothing(run.status, run.output, text)}`);
  }
  const found = launchWords(text, environment);
  if (found !== null) {
    const program = verlProgram(found.program);
    return { program, words: found.words, file: null, launch: null, launchCount: 1, notRun: run.refused };
  }
  const bare = bareWords(text, environment);
  if (bare !== null) return bare;
  throw new ConfigError(`${file}: ${EXPECTED}`);
}

const EXPECTED =
  'expected a YAML file (.yaml), a shell script that starts verl (python3 -m verl.trainer.main_ppo key=value ...), ' +
  'or a list of key=value';

function startedNothing(status: number, output: string, text: string): string {
  if (!/\b(python|torchrun|main_\w+|verl)/.test(text)) return EXPECTED;
  const lines = output.trim().split('\n');
  // Of set -x.
  const last = lines.findLast((line) => line.trim() !== '' && !/^\++ /.test(line))?.trim() ?? '';
  const said = last === '' ? '' : `: "${last.slice(-300)}"`;
  const unset = /(\w+): unbound variable/.exec(last)?.[1];
  const advice =
    unset !== undefined
      ? `set it in the environment, ${unset}=... troupe import-verl ...`
      : status === 124
        ? 'it waits for something; give a list of key=value instead'
        : 'give what it needs: environment variables in front of the command, its own arguments after the file';
  return `the script ended with exit code ${status} before it started a trainer of verl${said}; ${advice}`;
}

/** A text that is a list of key=value and nothing else. */
function bareWords(text: string, environment: SourceOptions['environment']): Raw | null {
  const words = allWords(text, environment);
  if (!words.some(({ text: word }) => /^\+{0,2}[A-Za-z_]\w*(\.\w+)+=/.test(word))) return null;
  if (!words.every(({ text: word }) => word === '' || word.startsWith('--config-') || isKeyValue(word)))
    return null;
  const tree: Tree = {};
  applyArguments(
    tree,
    {},
    words.map((word) => word.text),
    [],
  );
  return { program: programFor(tree), words, file: null, ...NO_LAUNCH };
}

function composed(
  file: string,
  raw: Raw,
  overrides: readonly string[],
  version: string | null,
  directory: string,
): VerlSource {
  const { program } = raw;
  const own = verlFiles(file, program, version);
  const at = raw.launch?.directory ?? directory;
  const filesFor = (configPath: string | null): ConfigFiles => {
    if (raw.file !== null) return searchPath(directoryFiles(path.dirname(path.resolve(file))), own.files);
    return configPath === null
      ? own.files
      : withPath(configPath, at, raw.launch, own.files, own.tableVersion);
  };
  const words = [...raw.words, ...overrides.filter(isKeyValue).map(plain)];
  const args: HydraArguments = hydraArguments(words, filesFor);
  const base = compose(program.program === 'sft' ? program.config : 'ppo_trainer', own.files, []).tree;
  const { unread } = args;
  const { tree, missing, unused } = primary(file, raw, args, own.files, filesFor(args.configPath));
  nameEngine(tree);
  for (const name of missing)
    unread.push({
      key: `the configuration file ${name}.yaml`,
      why: `is not among those of verl (${own.version}) nor beside the script: its keys are not known`,
    });
  for (const key of unused)
    unread.push({
      key,
      why: `chooses what no defaults list of verl ${own.version} has: verl would not start`,
    });
  // Before references are resolved: what follows another key is no decision of its own.
  const asVerl = new Set<string>();
  const given = new Set<string>();
  const engine = otherEngine(args);
  const megatron = engine !== null && /megatron|mcore/.test(engine);
  if (engine !== null && !megatron)
    unread.push({ key: engine, why: missingFeature('another engine than FSDP or Megatron') });
  if (args.overrides.some((text) => text.startsWith('model_engine=')) && !own.files.group('model_engine'))
    unread.push({
      key: 'model_engine',
      why: `is not there in verl ${own.version}: --config-name=ppo_megatron_trainer is Megatron`,
    });
  for (const key of leafPaths(tree)) {
    // All that another engine brings with it is missing for one reason.
    if (engine !== null && (raw.file === null || getPath(raw.file, key) === undefined)) continue;
    if (JSON.stringify(getPath(tree, key)) !== JSON.stringify(getPath(base, key))) given.add(key);
  }
  if (megatron) {
    for (const key of STRATEGIES) if (getPath(tree, key) === 'megatron') given.add(key);
  }
  if (raw.file !== null) {
    const { defaults, ...said } = raw.file;
    for (const key of leafPaths(said)) {
      if (!given.has(key)) asVerl.add(key);
      given.add(key);
    }
  }
  const set: Tree = {};
  const removed = applyArguments(tree, set, args.overrides, unread);
  for (const key of leafPaths(set)) {
    given.add(key);
    asVerl.delete(key);
  }
  const isLiteral = (key: string): boolean => !given.has(key) && !String(getPath(tree, key)).includes('${');
  const literal = new Set(engine !== null && !megatron ? [] : leafPaths(tree).filter(isLiteral));
  const hidden: Hidden[] = [];
  const unresolved = (key: string, why: string): void => {
    if (isWithin(given, key)) unread.push({ key, why });
  };
  const resolved = resolveReferences(tree, unresolved, hidden);
  const { launch, launchCount, notRun } = raw;
  return {
    tree: resolved,
    given,
    asVerl,
    literal,
    program,
    version: own.version,
    unread,
    removed,
    hidden,
    launch,
    launchCount,
    notRun,
  };
}

const STRATEGIES = ['actor_rollout_ref.actor.strategy', 'critic.strategy', 'engine.strategy'];

/** verl's SFT trainer knows Megatron by the class of the section alone. */
function nameEngine(tree: Tree): void {
  if (String(getPath(tree, 'engine._target_')).endsWith('.McoreEngineConfig'))
    setPath(tree, 'engine.strategy', 'megatron');
}

/** The argument that chooses an engine which is not FSDP; null: there is none. */
function otherEngine({ configName, choices }: HydraArguments): string | null {
  const pattern = /megatron|mcore|veomni|torchtitan|automodel|mlite/;
  if (configName !== null && pattern.test(configName)) return `--config-name=${configName}`;
  const choice = choices.find(({ group, option }) => group.endsWith('engine') && pattern.test(option ?? ''));
  return choice === undefined ? null : `${choice.group}=${choice.option}`;
}

const isWithin = (given: ReadonlySet<string>, key: string): boolean =>
  given.has(key) || [...given].some((other) => other.startsWith(`${key}.`) || key.startsWith(`${other}.`));

function primary(
  file: string,
  raw: Raw,
  args: HydraArguments,
  own: ConfigFiles,
  files: ConfigFiles,
): Composition {
  if (raw.file === null) return compose(args.configName ?? raw.program.config, files, args.choices);
  // A composed file says all; one that is written by hand leaves the rest to verl.
  const { tree } = compose(raw.program.config, own, []);
  if (Array.isArray(raw.file['defaults']) && file.endsWith('.yaml')) {
    const own = compose(path.basename(file, '.yaml'), files, args.choices);
    mergeInto(tree, own.tree);
    return { ...own, tree };
  }
  const { defaults, hydra, ...said } = structuredClone(raw.file);
  mergeInto(tree, said);
  return { tree, missing: [], unused: [] };
}

/** --config-path is absolute, or starts at the file of the program; people also mean their working directory. */
function withPath(
  given: string,
  directory: string,
  launch: Launch | null,
  own: ConfigFiles,
  version: string,
): ConfigFiles {
  const module = path.dirname(moduleOf(launch?.program ?? '').replaceAll('.', '/'));
  const places = [path.resolve(directory, module, given), path.resolve(directory, given)].filter(existsSync);
  const dapo = /recipe\/dapo\/config\/?$/.test(given) ? [tableFiles(version, 'recipe.dapo/')] : [];
  return searchPath(...places.map(directoryFiles), ...dapo, own);
}
