import path from 'node:path';
import { getPath, leafPaths, setPath, type Tree } from '../reading/tree';
import { type Field, isLeaf, type Leaf, leafAt, movedTo, type Section } from '../schema/field';

/** A key that the source leaves to verl, whose default is not ours. */
export interface OtherDefault {
  key: string;
  verl: unknown;
  ours: unknown;
}

/** What verl's own engine needs by default, and ours does not: it changes where work is done, not what is learnt. */
const OF_THE_ENGINE: ReadonlySet<string> = new Set(['actor_rollout_ref.rollout.tensor_model_parallel_size']);

/**
 * Writes verl's default into `config` for every key that the source leaves to it and whose default here is another one, so that
 * the run is the one that verl would have made. `tree`: the composed configuration; `taken`: whether a key is looked at; `refused` is told
 * of defaults that there cannot be here.
 */
export function writeOtherDefaults(
  schema: Section,
  tree: Tree,
  config: Tree,
  taken: (key: string) => boolean,
  refused: (key: string, value: unknown, expected: string) => void,
): OtherDefault[] {
  const written: OtherDefault[] = [];
  const followers: { key: string; field: Field<unknown>; value: unknown }[] = [];
  const write = (key: string, verl: unknown, ours: unknown): void => {
    setPath(config, key, verl);
    written.push({ key, verl, ours });
  };
  for (const given of leafPaths(tree)) {
    const value = getPath(tree, given);
    if (value === null || value === undefined || value === '???' || !taken(given)) continue;
    const found = fieldOf(schema, given);
    if (found === null) continue;
    const { key, field } = found;
    if (getPath(config, key) !== undefined || !taken(key) || OF_THE_ENGINE.has(key)) continue;
    const parsed = field.type.schema.safeParse(value);
    if (!parsed.success) {
      refused(given, value, field.type.name);
      continue;
    }
    if (field.from !== null) followers.push({ key, field, value });
    else if (!same(parsed.data, field.value)) write(key, value, field.value ?? null);
  }
  // A key that follows another one follows what has been decided by now.
  for (const { key, field, value } of followers) {
    const ours = effective(schema, config, field.from as string);
    if (!same(field.type.schema.parse(value), ours)) write(key, value, ours);
  }
  return written.filter(({ key, verl }) => {
    if (key !== 'trainer.default_local_dir' || verl !== localDirectory(schema, config)) return true;
    delete (config['trainer'] as Tree)['default_local_dir'];
    return false;
  });
}

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);

/** What a key has when the configuration is read: its own value, or its default. */
export function effective(schema: Section, config: Tree, key: string): unknown {
  const given = getPath(config, key) ?? null;
  const leaf = leafAt(schema, key);
  if (leaf === null || leaf.kind !== 'field') return given;
  if (given !== null) {
    const parsed = leaf.type.schema.safeParse(given);
    return parsed.success ? parsed.data : given;
  }
  return leaf.from === null ? (leaf.value ?? null) : effective(schema, config, leaf.from);
}

function localDirectory(schema: Section, config: Tree): string {
  const name = (key: string): string => String(effective(schema, config, `trainer.${key}`));
  return path.join('checkpoints', name('project_name'), name('experiment_name'));
}

/** The field that a key of verl means, under the name it has now: also below a section that has moved. */
function fieldOf(schema: Section, key: string): { key: string; field: Field<unknown> } | null {
  const names = key.split('.');
  let node: Leaf | Section | undefined = schema;
  for (const [depth, name] of names.entries()) {
    node = Object.hasOwn(node, name) ? ((node as Section)[name] as Leaf | Section) : undefined;
    if (node === undefined) return null;
    if (!isLeaf(node)) continue;
    const isLast = depth === names.length - 1;
    if (node.kind === 'field') return isLast ? { key, field: node } : null;
    if (node.kind !== 'moved') return null;
    const to = movedTo(node.to, names.slice(0, depth + 1).join('.'));
    return fieldOf(schema, [to, ...names.slice(depth + 1)].join('.'));
  }
  return null;
}
