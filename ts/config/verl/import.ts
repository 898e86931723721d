import { show } from '../../base/text';
import { defaultPreset } from '../derived/correction';
import { type Carried, hide } from '../reading/hidden';
import { nearestPath } from '../reading/nearest';
import { getPath, isTree, leafPaths, setPath, type Tree } from '../reading/tree';
import {
  type Field,
  isAccepted,
  isLeaf,
  isUnset,
  type Leaf,
  leafAt,
  missing,
  movedTo,
  type Section,
  sectionAt,
  withNames,
} from '../schema/field';
import { ppoSchema } from '../schema/ppo_schema';
import { sftSchema } from '../schema/sft_schema';
import { effective, type OtherDefault, writeOtherDefaults } from './default_values';
import { earlierVersions } from './earlier_versions';
import { isHubName, withHome } from './file_names';
import { otherKeys } from './other_keys';
import { OwnSections } from './own_sections';
import type { Computed, Rewritten } from './rewriting';
import type { VerlSource } from './source';

/** A key of verl and why it is treated so. */
export interface ImportNote {
  key: string;
  why: string;
}

/** What became of every key of a configuration of verl: each is in exactly one of the lists. */
export interface VerlImport {
  program: 'train' | 'sft';
  /** Whose defaults hold for what the source does not say. */
  version: string;
  /** Our configuration: the keys that map. */
  config: Tree;
  /** The same as it is written down: what comes from the environment is taken from there again. */
  written: Tree;
  mapped: string[];
  /** Mapped, but under another name or with another value, or something else is to be done. */
  changed: ImportNote[];
  /** Ask for what happens here anyway, or concern what does not exist here. */
  withoutEffect: ImportNote[];
  /** Ask for something that is not done: the run will differ. */
  notMapped: ImportNote[];
  /** Keys that the source leaves to verl's default, which is another one than ours: they are written. */
  defaults: ImportNote[];
}

/** Translates key by key through the schema of our configuration. */
export function importVerl(source: VerlSource): VerlImport {
  const sections = new OwnSections(source);
  earlierVersions(sections);
  otherKeys(sections);
  sections.run();
  const rewritten = sections.result();
  return new Import(rewritten.source, rewritten).run();
}

/** Keys that, said on a command line, say what kind of run it is, though verl's default has the same value. */
const TELLING: Readonly<Record<string, string>> = {
  'data.video_key': 'needs videos, which are not there: models read text and images',
  'data.audio_key': 'needs sound, which is not there: models read text and images',
};

/** It asks for nothing while it is not enabled. */
const OVERLONG = 'reward.reward_kwargs.overlong_buffer_cfg';

/** Limits of the rollout, which are those of the data here. */
const LIMITS: Readonly<Record<string, string>> = {
  'actor_rollout_ref.rollout.prompt_length': 'data.max_prompt_length',
  'actor_rollout_ref.rollout.response_length': 'data.max_response_length',
};

const DATE = /20\d\d[-_.]?[01]\d[-_.]?[0-3]\d|\b1[6-9]\d{8}\b/;

class Import {
  private readonly schema: Section;
  private readonly result: VerlImport;
  /** Paths of what the source gives, and of the sections around it. */
  private readonly asked = new Set<string>();
  private readonly renamed: Carried[] = [];

  constructor(
    private readonly source: VerlSource,
    private readonly said: Rewritten,
  ) {
    const { program, version, unread, tree } = source;
    this.schema = program.program === 'sft' ? sftSchema : withNames<Section>(ppoSchema, tree);
    this.result = {
      program: program.program,
      version,
      config: {},
      written: {},
      mapped: [],
      changed: [],
      withoutEffect: [],
      notMapped: unread.map(({ key, why }) => ({ key, why })),
      defaults: [],
    };
    if (program.needs !== null) this.note('notMapped', 'the program', program.needs);
  }

  run(): VerlImport {
    const { tree, given, removed } = this.source;
    for (const path of given) {
      const dormant = this.dormancy(path);
      if (dormant !== null) {
        this.note('withoutEffect', path, dormant);
        continue;
      }
      for (let at = path.length; at >= 0; at = path.lastIndexOf('.', at - 1)) {
        this.asked.add(path.slice(0, at));
        if (at === 0) break;
      }
    }
    this.launcher();
    this.rewritten();
    this.section(this.schema, tree, '', '');
    for (const key of removed) this.note('withoutEffect', key, 'is taken away (~): the default holds');
    const unread = new Set(this.source.unread.map(({ key }) => key));
    // Also what follows from a name that could not be read, or is refused.
    if (this.result.notMapped.some(({ key }) => /^trainer\.(project|experiment)_name$/.test(key)))
      unread.add('trainer.default_local_dir');
    const isLeft = (key: string): boolean => !given.has(key) && !unread.has(key) && this.isUsed(key);
    const refused = (key: string, value: unknown, expected: string): void =>
      this.refusedDefault(key, value, `expected ${expected}`);
    for (const other of writeOtherDefaults(this.schema, tree, this.result.config, isLeft, refused))
      this.otherDefault(other);
    for (const key of leafPaths(tree)) {
      const [leaf, value] = [leafAt(this.schema, key), getPath(tree, key)];
      if (leaf?.kind === 'fixed' && value !== undefined && isLeft(key) && !isAccepted(leaf, value))
        this.refusedDefault(key, value, leaf.reason);
    }
    this.correction();
    this.dated();
    this.result.written = hide(this.result.config, this.source.hidden, { moved: this.renamed, copied: [] });
    return this.result;
  }

  /** Why a key of ours asks for nothing, which is not looked at further then. */
  private dormancy(path: string): string | null {
    if (leafAt(this.schema, path) === null) return null;
    const mode = getPath(this.source.tree, 'trainer.resume_mode');
    if (path === 'trainer.resume_from_path' && mode !== 'resume_path')
      return `is not read while trainer.resume_mode is ${String(mode)}`;
    const off = (key: string): boolean => (getPath(this.source.tree, key) ?? 0) === 0;
    const [, alpha] = /^(.*\.lora_)alpha$/.exec(path) ?? [];
    const [, lora] = /^(.*model\.lora\.)(?!rank$)/.exec(path) ?? [];
    const rank = `${alpha ?? lora}rank`;
    if ((alpha ?? lora) !== undefined && off(rank)) return `is of adapters, and ${rank} is 0`;
    return path.startsWith(`${OVERLONG}.`) && getPath(this.source.tree, `${OVERLONG}.enable`) === false
      ? `asks for nothing while ${OVERLONG}.enable is false`
      : null;
  }

  /** torchrun says how many processes a run of the SFT trainer has. */
  private launcher(): void {
    const { launch } = this.source;
    if (this.result.program !== 'sft' || launch === null || launch.processes === null) return;
    for (const [key, value, option] of [
      ['trainer.n_gpus_per_node', launch.processes, '--nproc_per_node'],
      ['trainer.nnodes', launch.machines, '--nnodes'],
    ] as const) {
      setPath(this.result.config, key, value);
      this.note('changed', option, `of torchrun is now ${key}=${value}`);
    }
  }

  private rewritten(): void {
    const { renamed, computed, changed, withoutEffect, notMapped, defaults } = this.said;
    for (const one of computed) this.computed(one);
    for (const { from, to, value } of renamed) {
      const leaf = leafAt(this.schema, to);
      if (leaf !== null) this.leaf(leaf, to, value, from);
    }
    this.result.changed.push(...changed);
    this.result.withoutEffect.push(...withoutEffect);
    this.result.notMapped.push(...notMapped);
    this.result.defaults.push(...defaults);
  }

  private computed({ from, to, value, why }: Computed): void {
    const leaf = leafAt(this.schema, to);
    const isOne = leaf?.kind === 'field' && leaf.type.schema.safeParse(value).success;
    if (isOne) {
      setPath(this.result.config, to, value);
      this.result.mapped.push(...from);
    }
    const expected = leaf?.kind === 'field' && !isOne ? `; ${to} expects ${leaf.type.name}` : '';
    for (const key of from) this.note(isOne ? 'changed' : 'notMapped', key, `${why}${expected}`);
  }

  /** Older versions do by default what is refused here. */
  private refusedDefault(key: string, value: unknown, why: string): void {
    const { literal, program } = this.source;
    if (program.needs === null && literal.has(key))
      this.note('notMapped', key, `${this.shown(key, value)} is the default of this version of verl: ${why}`);
  }

  /** Where nothing is said of it, responses from other weights are corrected here, and not in verl. */
  private correction(): void {
    const preset = this.result.program === 'train' ? defaultPreset(this.result.config) : null;
    if (preset === null) return;
    const key = 'algorithm.rollout_correction.bypass_mode';
    setPath(this.result.config, key, false);
    const why = `verl's default, no correction, is written; ours is preset ${preset} where responses come from other weights`;
    this.result.defaults.push({ key, why });
  }

  /** @param from what stands before the key in verl's tree, where that is another one than ours (`prefix`) */
  private section(schema: Section, given: Tree, prefix: string, from: string): void {
    for (const [key, value] of Object.entries(given)) {
      const path = prefix + key;
      const verl = from + key;
      // What could not be read is reported already.
      if (value === undefined || !this.asked.has(verl)) continue;
      const entry = Object.hasOwn(schema, key) ? schema[key] : undefined;
      const isVerls = this.source.asVerl.has(verl);
      if (key === '_target_') this.note('withoutEffect', verl, 'names a Python class of verl');
      else if (entry === undefined) this.unknown(schema, prefix, key, verl, value);
      else if (isLeaf(entry)) {
        if (isVerls && entry.kind === 'fixed') this.note('withoutEffect', verl, 'is verl’s default');
        else this.leaf(entry, path, value, verl);
      } else if (isTree(value)) this.section(entry, value, `${path}.`, `${verl}.`);
      else if (value === null) this.note('withoutEffect', verl, 'is null: the defaults of the section hold');
      else this.note('notMapped', verl, `expected a section with keys, got ${show(value)}`);
    }
  }

  /** @param from the key of verl, which may have another name here */
  private leaf(leaf: Leaf, path: string, value: unknown, from: string): void {
    const telling = Object.hasOwn(TELLING, from) && !this.source.asVerl.has(from) ? TELLING[from] : undefined;
    if (value === '???') {
      this.note('notMapped', from, 'has no value in the source (???): it must be given');
    } else if (telling !== undefined && value !== null) {
      this.note('notMapped', from, `got ${show(value)}: ${telling}`);
    } else if (leaf.kind === 'ignored') {
      if (this.takenByClass(path, value, from)) return;
      const limit = LIMITS[path];
      const holds = limit === undefined ? null : getPath(this.source.tree, limit);
      if (limit === undefined || holds === value) this.note('withoutEffect', from, leaf.reason);
      else
        this.note(
          'notMapped',
          from,
          `got ${this.shown(from, value)}, but ${limit} is ${show(holds)}: one limit holds for both`,
        );
    } else if (leaf.kind === 'fixed') {
      if (isAccepted(leaf, value)) this.note('withoutEffect', from, 'is what happens here anyway');
      else this.note('notMapped', from, `got ${this.shown(from, value)}: ${leaf.reason}`);
    } else if (leaf.kind === 'moved') {
      this.moved(leaf.to, path, value, from);
    } else {
      this.field(leaf, path, value, from);
    }
  }

  private moved(to: string, path: string, value: unknown, from: string): void {
    const target = movedTo(to, path);
    const leaf = leafAt(this.schema, target);
    const section = sectionAt(this.schema, target);
    if (value === null) this.note('withoutEffect', from, `is null, and an older name of ${target}`);
    else if (leaf !== null) this.leaf(leaf, target, value, from);
    else if (section !== null && isTree(value)) this.section(section, value, `${target}.`, `${from}.`);
    else
      this.note(
        'notMapped',
        from,
        `is an older name of ${target}: expected a section with keys, got ${show(value)}`,
      );
  }

  private field(leaf: Field<unknown>, path: string, given: unknown, from: string): void {
    const value = withHome(path, given);
    const parsed = leaf.type.schema.safeParse(value);
    if (!parsed.success) {
      if (value === null) this.note('withoutEffect', from, 'is null: the default holds');
      else {
        const npu = from === 'trainer.device' && value === 'npu' ? `: ${missing('an engine for NPUs')}` : '';
        this.note('notMapped', from, `expected ${leaf.type.name}, got ${this.shown(from, value)}${npu}`);
      }
      return;
    }
    const there = getPath(this.result.config, path) ?? null;
    if (there !== null && !isUnset(leaf, there) && JSON.stringify(there) !== JSON.stringify(value)) {
      const why = `${path} is given as well, with another value: ${this.shown(path, there)}, not ${this.shown(from, value)}`;
      // What the launcher says holds in verl as well.
      this.note(this.isLaunchers(path) || isUnset(leaf, value) ? 'withoutEffect' : 'notMapped', from, why);
      return;
    }
    setPath(this.result.config, path, value);
    this.result.mapped.push(from);
    if (from !== path) {
      this.note('changed', from, `is now ${path}`);
      this.renamed.push({ from, to: path });
    }
    if (JSON.stringify(value) !== JSON.stringify(given))
      this.note('changed', from, `is now ${this.shown(from, value)}`);
    if (isHubName(path, value)) {
      this.note(
        'changed',
        from,
        `${this.shown(from, value)} is a name on the Hugging Face hub: fetch it, and give its directory`,
      );
    }
  }

  private isLaunchers(path: string): boolean {
    const launched = this.result.program === 'sft' && (this.source.launch?.processes ?? null) !== null;
    return launched && (path === 'trainer.n_gpus_per_node' || path === 'trainer.nnodes');
  }

  private unknown(schema: Section, prefix: string, key: string, from: string, value: unknown): void {
    const { asVerl } = this.source;
    const all = isTree(value) ? leafPaths(value, `${from}.`) : [from];
    if (all.every((path) => asVerl.has(path))) {
      this.note('withoutEffect', from, 'is verl’s default');
      return;
    }
    if (this.takenByClass(prefix + key, value, from)) return;
    const nearest = nearestPath(this.schema, schema, prefix, key);
    const hint = nearest === null ? '' : `; the nearest is ${nearest}`;
    this.note('notMapped', from, `is not known here${hint} (its value: ${this.shown(from, value)})`);
  }

  /** A data set class sees all of its section, also what has no meaning here: such a key goes where the class finds it. */
  private takenByClass(path: string, value: unknown, from: string): boolean {
    const { asVerl, tree } = this.source;
    const hasClass = typeof getPath(tree, 'data.custom_cls.path') === 'string';
    if (!hasClass || this.result.program !== 'train' || !/^data\.\w+$/.test(path) || asVerl.has(from))
      return false;
    const to = path.replace('data.', 'data.custom_cls.config.');
    setPath(this.result.config, to, value);
    this.result.mapped.push(...(isTree(value) ? leafPaths(value, `${from}.`) : [from]));
    this.note('changed', from, `is for the class of data.custom_cls: is now ${to}`);
    this.renamed.push({ from, to });
    return true;
  }

  /** A value in a message; the report stands in the file. */
  private shown(from: string, value: unknown): string {
    const keys = from.split('.');
    const secret = this.source.hidden.some(({ path }) => keys.every((key, i) => path[i] === key));
    return secret ? 'a value of the environment' : show(value);
  }

  /** Sections of roles that do not run have no say. */
  private isUsed(key: string): boolean {
    if (this.result.program === 'sft') {
      if (key.startsWith('data.multiturn.'))
        return getPath(this.source.tree, 'data.multiturn.enable') === true;
      return !this.isLaunchers(key);
    }
    const value = (name: string): unknown => effective(this.schema, this.result.config, name);
    if (key.startsWith('critic.')) {
      const enabled = value('critic.enable');
      return enabled === null ? value('algorithm.adv_estimator') === 'gae' : enabled === true;
    }
    if (/^(reward\.)?reward_model\.(?!reward_manager$)/.test(key))
      return value('reward.reward_model.enable') === true;
    if (key.startsWith('actor_rollout_ref.ref.'))
      return (
        value('actor_rollout_ref.actor.use_kl_loss') === true || value('algorithm.use_kl_in_reward') === true
      );
    return true;
  }

  private otherDefault({ key, verl, ours }: OtherDefault): void {
    const value = withHome(key, verl);
    setPath(this.result.config, key, value);
    this.result.defaults.push({
      key,
      why: `verl's default ${show(value)} is written; ours is ${show(ours)}`,
    });
  }

  /** A name with the time in it was new with every start of the script; from now on it is one name. */
  private dated(): void {
    const key = 'trainer.experiment_name';
    const name = getPath(this.result.config, key);
    if (this.source.launch === null || typeof name !== 'string' || !DATE.test(name)) return;
    this.note(
      'changed',
      key,
      `holds the time of this import, ${show(name)}: runs with it go on where the last one ended (trainer.resume_mode)`,
    );
  }

  private note(list: 'changed' | 'withoutEffect' | 'notMapped', key: string, why: string): void {
    this.result[list].push({ key, why });
  }
}
