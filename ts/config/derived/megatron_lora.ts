// The section `lora` of a model: verl's names of LoRA for Megatron, which mean what the keys beside the section mean.
import { printable } from '../../base/printable';
import { ConfigError } from '../../errors';
import type { Carried } from '../reading/hidden';
import type { ConfigNote } from '../reading/resolve';
import { getPath, isTree, setPath, type Tree } from '../reading/tree';
import { type Field, isAccepted, type Leaf } from '../schema/field';
import { MEGATRON_MODULES, megatronLora } from '../schema/lora_section';

const MODELS = ['actor_rollout_ref.model', 'critic.model', 'model'];

/**
 * The tree with lora_rank, lora_alpha, target_modules and lora_adapter_path as the sections `lora` say them, where their rank is not 0, and which key
 * each came from. Sections without a rank lose what the schema would refuse, with a note; others, also wrong ones, stay as they are: the schema judges
 * them.
 * @throws ConfigError where the section and the keys beside it ask for different adapters
 */
export function adoptMegatronLora(given: Tree): { tree: Tree; copied: Carried[]; notes: ConfigNote[] } {
  const { tree: active, notes } = withoutDormant(given);
  return { ...adopted(active), notes };
}

/** Without adapters it is of no consequence what they are like. */
function withoutDormant(given: Tree): { tree: Tree; notes: ConfigNote[] } {
  const tree = structuredClone(given);
  const notes = MODELS.flatMap((model) => {
    const section = getPath(tree, `${model}.lora`);
    if (!isTree(section) || (section['rank'] ?? 0) !== 0) return [];
    const refused = Object.keys(section).filter((key) => key !== 'rank' && isRefused(section, key));
    for (const key of refused) delete section[key];
    const reason = `there are no adapters: ${model}.lora.rank is 0`;
    return refused.map((key) => ({ path: `${model}.lora.${printable(key, { max: 100 })}`, reason }));
  });
  return { tree, notes };
}

function isRefused(section: Tree, key: string): boolean {
  const schema: Readonly<Record<string, Leaf>> = megatronLora;
  const leaf = Object.hasOwn(schema, key) ? schema[key] : undefined;
  // Where no rank is given an unknown key may be a slip in its name.
  if (leaf === undefined) return Object.hasOwn(section, 'rank');
  const value = section[key] ?? null;
  if (leaf.kind === 'fixed') return !isAccepted(leaf, value);
  return leaf.kind === 'field' && value !== null && !leaf.type.schema.safeParse(value).success;
}

function adopted(given: Tree): { tree: Tree; copied: Carried[] } {
  const sections = MODELS.flatMap((model) => {
    const section = getPath(given, `${model}.lora`);
    const asked = isTree(section) ? adapters(section) : null;
    return asked === null ? [] : [{ model, asked }];
  });
  if (sections.length === 0) return { tree: given, copied: [] };
  const tree = structuredClone(given);
  const copied: Carried[] = [];
  for (const { model, asked } of sections) {
    for (const { key, from, value } of asked) {
      const to = `${model}.${key}`;
      const there = getPath(tree, to) ?? null;
      // The others have defaults, which configurations of verl write down.
      if ((key === 'lora_rank' || key === 'lora_adapter_path') && there && there !== value)
        throw new ConfigError(
          `${model}.lora.${from}: ${to} is given as well, with another value: leave one of them out`,
          `${model}.lora.${from}`,
        );
      setPath(tree, to, value);
      copied.push({ from: `${model}.lora.${from}`, to });
    }
  }
  return { tree, copied };
}

interface Adopted {
  key: string;
  from: string;
  value: unknown;
}

/** null: the section asks for no adapters, or is wrong. */
function adapters(section: Tree): Adopted[] | null {
  const read = <T>(key: string, { type, value }: Field<T>): T | undefined => {
    const given = section[key] ?? value;
    const parsed = type.schema.safeParse(given);
    return parsed.success ? parsed.data : undefined;
  };
  const rank = read('rank', megatronLora.rank);
  const alpha = read('alpha', megatronLora.alpha);
  const modules = read('target_modules', megatronLora.target_modules);
  const adapter = read('adapter_path', megatronLora.adapter_path);
  if (!rank || alpha === undefined || modules === undefined || adapter === undefined) return null;
  const names = new Set(modules.flatMap((name) => MEGATRON_MODULES[name] ?? []));
  // verl's default says every layer, of models with other names for them (GPT-2) or without some of them (mixtures), too.
  const isEvery = Object.values(MEGATRON_MODULES).every((all) => all.every((name) => names.has(name)));
  return [
    { key: 'lora_rank', from: 'rank', value: rank },
    { key: 'lora_alpha', from: 'alpha', value: alpha },
    { key: 'target_modules', from: 'target_modules', value: isEvery ? ['all-linear'] : [...names] },
    ...(adapter === null ? [] : [{ key: 'lora_adapter_path', from: 'adapter_path', value: adapter }]),
  ];
}
