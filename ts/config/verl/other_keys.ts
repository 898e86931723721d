import { show } from '../../base/text';
import { deletePath, getPath, isTree, type Tree } from '../reading/tree';
import type { ImportNote } from './import';
import type { Computed, OwnSections, Renamed } from './own_sections';
import type { VerlSource } from './source';

// What verl says by one key and Troupe by another, where a table of names is not enough.

/** Where Megatron keeps the optimiser's state and how it gets it there: nothing that is computed depends on these. */
const OFFLOADING = [
  'optimizer_cpu_offload',
  'optimizer_offload_fraction',
  'overlap_cpu_optimizer_d2h_h2d',
  'use_precision_aware_optimizer',
];

/** Filled key by key. */
interface Found extends OwnSections {
  source: VerlSource & { given: Set<string> };
  renamed: Renamed[];
  computed: Computed[];
  withoutEffect: ImportNote[];
}

/** Takes such keys out of the source. */
export function otherKeys(source: VerlSource): OwnSections {
  const tree = structuredClone(source.tree);
  const given = new Set(source.given);
  const result: Found = {
    source: { ...source, tree, given },
    renamed: [],
    computed: [],
    changed: [],
    withoutEffect: [],
    notMapped: [],
  };
  const { program } = source;
  if (program.program === 'train') {
    for (const role of ['actor_rollout_ref.actor', 'critic']) offloading(result, role);
    for (const role of ['actor_rollout_ref', 'critic']) modelConfig(result, role);
    if (program.folder === 'recipe.dapo/') generated(result);
  }
  return result;
}

/** What two passes found; the source is that of the second. */
export const both = (first: OwnSections, second: OwnSections): OwnSections => ({
  source: second.source,
  renamed: [...first.renamed, ...second.renamed],
  computed: [...first.computed, ...second.computed],
  changed: [...first.changed, ...second.changed],
  withoutEffect: [...first.withoutEffect, ...second.withoutEffect],
  notMapped: [...first.notMapped, ...second.notMapped],
});

/** Dotted paths of what is given of a section, or the key itself. */
const givenOf = ({ source }: Found, key: string): string[] =>
  [...source.given].filter((path) => path === key || path.startsWith(`${key}.`));

function take(result: Found, key: string): void {
  deletePath(result.source.tree, key);
  for (const path of givenOf(result, key)) result.source.given.delete(path);
}

/** The section of a key, where it has keys and all of them are among `names`. */
function sectionOf({ source }: Found, key: string, names: readonly string[]): Tree | null {
  const section = getPath(source.tree, key);
  const isOne = isTree(section) && Object.keys(section).length > 0;
  return isOne && Object.keys(section).every((name) => names.includes(name)) ? section : null;
}

function offloading(result: Found, role: string): void {
  const key = `${role}.optim.override_optimizer_config`;
  const section = sectionOf(result, key, OFFLOADING);
  if (section === null) return;
  const from = givenOf(result, key);
  take(result, key);
  const to = `${role}.megatron.optimizer_offload`;
  if (section['optimizer_cpu_offload'] !== true) {
    const why = 'says how the optimiser’s state gets to the host, where it is not';
    result.withoutEffect.push(...from.map((path) => ({ key: path, why })));
    return;
  }
  take(result, to);
  const why = `${to}=true: the optimiser’s state lies on the host, all of it`;
  result.computed.push({ from, to, value: true, why });
}

/** verl looks for the keys of config.json there first. */
function modelConfig(result: Found, role: string): void {
  const name = 'max_position_embeddings';
  const section = `${role}.model.override_config`;
  const value = sectionOf(result, `${section}.model_config`, [name])?.[name];
  if (value === undefined || !givenOf(result, `${section}.model_config`).length) return;
  take(result, `${section}.model_config`);
  result.renamed.push({
    from: `${section}.model_config.${name}`,
    to: `${section}.${name}`,
    value,
  });
}

/** Where nothing is filtered, main_dapo learns from all that it generates, whatever train_batch_size is. */
function generated(result: Found): void {
  const { tree } = result.source;
  const [from, to] = ['data.gen_batch_size', 'data.train_batch_size'] as const;
  const value = getPath(tree, from);
  const trained = getPath(tree, to);
  if (getPath(tree, 'algorithm.filter_groups.enable') === true) return;
  if (typeof value !== 'number' || value === trained) return;
  const keys = [from, to].filter((key) => result.source.given.has(key));
  for (const key of [from, to]) take(result, key);
  const why = `${value} prompts are generated, and without algorithm.filter_groups verl learns from all of them: ${to}=${value}, not ${show(trained)}`;
  result.computed.push({ from: keys, to, value, why });
}
