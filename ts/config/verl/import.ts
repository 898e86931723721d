import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { show } from '../../base/text';
import { type Carried, hide } from '../reading/hidden';
import { nearestPath } from '../reading/nearest';
import { getPath, isTree, setPath, type Tree } from '../reading/tree';
import { type Field, isLeaf, type Leaf, type Section } from '../schema/field';
import { ppoSchema } from '../schema/ppo_schema';
import { sftSchema } from '../schema/sft_schema';
import { isSftTree, type VerlSource } from './source';

/** A key of verl and why it is treated so. */
export interface ImportNote {
  key: string;
  why: string;
}

/** What became of every key of a configuration of verl: each is in exactly one of the lists. */
export interface VerlImport {
  program: 'train' | 'sft';
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
  /** Keys that the source leaves to verl's default, which is another one than ours. */
  defaults: ImportNote[];
}

/** Translates key by key through the schema of our configuration. */
export function importVerl(source: VerlSource): VerlImport {
  return new Import(source).run();
}

/** Keys whose default here is not verl's, with what a run of verl would have had. */
const OTHER_DEFAULTS: readonly (readonly [string, unknown, string])[] = [
  ['trainer.device', 'cuda', 'auto: cuda where there is one'],
  ['trainer.n_gpus_per_node', 8, '1'],
  ['trainer.logger', ['console', 'wandb'], 'console; metrics.jsonl is always written'],
  ['actor_rollout_ref.actor.clip_ratio_low', 0.2, 'clip_ratio'],
  ['actor_rollout_ref.actor.clip_ratio_high', 0.2, 'clip_ratio'],
  ['actor_rollout_ref.actor.fsdp_config.dtype', 'bfloat16', 'float32 on cpu, bfloat16 on cuda'],
  ['critic.ppo_mini_batch_size', 256, 'that of the actor'],
  ['critic.ppo_epochs', 1, 'that of the actor'],
];

/** Written even when not given: a run of verl is one on a GPU. */
const WRITTEN_DEFAULT = 'trainer.device';

const PATHS =
  /(^|\.)(train_files|val_files|path|tokenizer_path|default_local_dir|resume_from_path|.*_data_dir)$/;

class Import {
  private readonly schema: Section;
  private readonly result: VerlImport;
  private readonly renamed: Carried[] = [];

  constructor(private readonly source: VerlSource) {
    const sft = isSftTree(source.tree);
    this.schema = sft ? sftSchema : ppoSchema;
    this.result = {
      program: sft ? 'sft' : 'train',
      config: {},
      written: {},
      mapped: [],
      changed: [],
      withoutEffect: [],
      notMapped: source.unread.map(({ key, why }) => ({ key, why })),
      defaults: [],
    };
  }

  run(): VerlImport {
    this.section(this.schema, this.source.tree, '');
    for (const key of this.source.removed)
      this.note('withoutEffect', key, 'is taken away (~): the default holds');
    if (this.result.program === 'train') this.otherDefaults();
    this.result.written = hide(this.result.config, this.source.hidden, { moved: this.renamed, copied: [] });
    return this.result;
  }

  private section(schema: Section, given: Tree, prefix: string): void {
    for (const [key, value] of Object.entries(given)) {
      const path = prefix + key;
      const entry = Object.hasOwn(schema, key) ? schema[key] : undefined;
      // What could not be read is reported already.
      if (value === undefined) continue;
      if (key === '_target_') this.note('withoutEffect', path, 'names a Python class of verl');
      else if (entry === undefined) this.unknown(schema, prefix, key, value);
      else if (isLeaf(entry)) this.leaf(entry, path, value, path);
      else if (isTree(value)) this.section(entry, value, `${path}.`);
      else if (value === null) this.note('withoutEffect', path, 'is null: the defaults of the section hold');
      else this.note('notMapped', path, `expected a section with keys, got ${show(value)}`);
    }
  }

  /** @param from the key of verl, when it has another name here */
  private leaf(leaf: Leaf, path: string, value: unknown, from: string): void {
    if (value === '???') {
      this.note('notMapped', from, 'has no value in the source (???): it must be given');
    } else if (leaf.kind === 'ignored') {
      this.note('withoutEffect', from, leaf.reason);
    } else if (leaf.kind === 'fixed') {
      const json = JSON.stringify(value);
      const accepted = value === null || leaf.accepts.some((allowed) => JSON.stringify(allowed) === json);
      if (accepted) this.note('withoutEffect', from, 'is what happens here anyway');
      else this.note('notMapped', from, `got ${this.shown(from, value)}: ${leaf.reason}`);
    } else if (leaf.kind === 'moved') {
      this.moved(leaf.to, path, value);
    } else {
      this.field(leaf, path, value, from);
    }
  }

  private moved(to: string, path: string, value: unknown): void {
    const target = to.includes('.') ? to : path.slice(0, path.lastIndexOf('.') + 1) + to;
    const leaf = schemaAt(this.schema, target);
    if (value === null) this.note('withoutEffect', path, `is null, and an older name of ${target}`);
    else if (leaf === null)
      this.note('notMapped', path, `is an older name of ${target}, which is not available`);
    else this.leaf(leaf, target, value, path);
  }

  private field(leaf: Field<unknown>, path: string, given: unknown, from: string): void {
    const value = PATHS.test(path) ? withHome(given) : given;
    const parsed = leaf.type.schema.safeParse(value);
    if (!parsed.success) {
      if (value === null) this.note('withoutEffect', from, 'is null: the default holds');
      else this.note('notMapped', from, `expected ${leaf.type.name}, got ${this.shown(from, value)}`);
      return;
    }
    if (path.endsWith('custom_reward_function.path') && /\.py$/.test(String(value))) {
      this.note(
        'notMapped',
        from,
        `${value} is a Python module: write the function as a JavaScript or TypeScript module`,
      );
      return;
    }
    const there = getPath(this.result.config, path) ?? null;
    if (there !== null && JSON.stringify(there) !== JSON.stringify(value)) {
      this.note(
        'notMapped',
        from,
        `${path} is given as well, with another value: ${this.shown(path, there)}, not ${this.shown(from, value)}`,
      );
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
    if (/model\.path$/.test(path) && isHubName(value)) {
      this.note(
        'changed',
        from,
        `${this.shown(from, value)} is a name on the Hugging Face hub: fetch it, and give its directory`,
      );
    }
  }

  private unknown(schema: Section, prefix: string, key: string, value: unknown): void {
    const path = prefix + key;
    const nearest = nearestPath(this.schema, schema, prefix, key);
    const hint = nearest === null ? '' : `; the nearest is ${nearest}`;
    this.note('notMapped', path, `is not known here${hint} (its value: ${this.shown(path, value)})`);
  }

  private otherDefaults(): void {
    for (const [key, verl, here] of OTHER_DEFAULTS) {
      if (getPath(this.source.tree, key) !== undefined) continue;
      // A role that does not run has no say.
      if (key.startsWith('critic.') && getPath(this.source.tree, 'critic') === undefined) continue;
      if (key === WRITTEN_DEFAULT) {
        setPath(this.result.config, key, verl);
        this.result.defaults.push({ key, why: `verl's default ${show(verl)} is written; ours is ${here}` });
      } else {
        this.result.defaults.push({ key, why: `is ${show(verl)} in verl unless given, here: ${here}` });
      }
    }
  }

  /** A value in a message; the report stands in the file. */
  private shown(from: string, value: unknown): string {
    const keys = from.split('.');
    const secret = this.source.hidden.some(({ path }) => keys.every((key, i) => path[i] === key));
    return secret ? 'a value of the environment' : show(value);
  }

  private note(list: 'changed' | 'withoutEffect' | 'notMapped', key: string, why: string): void {
    this.result[list].push({ key, why });
  }
}

function schemaAt(schema: Section, path: string): Leaf | null {
  let node: Leaf | Section | undefined = schema;
  for (const key of path.split('.')) {
    if (node === undefined || isLeaf(node)) return null;
    node = Object.hasOwn(node, key) ? (node[key] as Leaf | Section) : undefined;
  }
  return node !== undefined && isLeaf(node) ? node : null;
}

/** verl expands ~ in the names of files. */
function withHome(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withHome);
  if (typeof value !== 'string') return value;
  return value.replace(/^~(?=\/|$)/, homedir());
}

const isHubName = (value: unknown): boolean =>
  typeof value === 'string' && /^[\w-]+\/[\w.-]+$/.test(value) && !existsSync(value);
