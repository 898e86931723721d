import { type TensorMapping, tensorMapping } from '../model/tensor_names';
import type { NativeModelConfig } from '../native/bridge';

/** Parameters that lie in one flat buffer, as native/parameters/parameter_store.cc groups them. */
export interface ParameterGroup {
  /** 'embed', 'layers.0', ..., 'head' (final norm and head); with adapters 'value_head' and 'layers.0.lora', ... */
  name: string;
  parameters: number;
  /** Length of the flat buffer before it is cut into shards. */
  elements: number;
}

/** Every parameter starts on a multiple of so many elements (kAlignment of parameter_store.cc). */
const ALIGNMENT = 16;

export const roundUp = (value: number, multiple: number): number => Math.ceil(value / multiple) * multiple;

export function leastCommonMultiple(a: number, b: number): number {
  let multiple = a;
  while (multiple % b !== 0) multiple += a;
  return multiple;
}

/**
 * The groups in their order in memory. Depends on the shape of the model alone, and of its `adapters` (what is trained with LoRA, the
 * value head included).
 */
export function parameterGroups(
  config: NativeModelConfig,
  adapters: readonly TensorMapping[] | null = null,
): ParameterGroup[] {
  const counts = new Map<string, number>();
  const added = adapters?.filter(({ param }) => isAdapter(param)) ?? [];
  for (const { param, shape } of [...tensorMapping(config), ...added]) {
    const count = shape.reduce((n, extent) => n * extent, 1);
    counts.set(param, (counts.get(param) ?? 0) + count);
  }
  const trainedHead = adapters !== null && config.head === 'value';
  const groups: ParameterGroup[] = [];
  for (const [param, count] of counts) {
    const name = trainedHead && param.startsWith('head.') ? VALUE_HEAD : groupOf(param);
    let group = groups.find((other) => other.name === name);
    if (group === undefined) {
      group = { name, parameters: 0, elements: 0 };
      groups.push(group);
    }
    group.parameters += count;
    group.elements = roundUp(group.elements + count, ALIGNMENT);
  }
  return groups;
}

const VALUE_HEAD = 'value_head';
const ADAPTERS = '.lora';
const isAdapter = (param: string): boolean => param.includes(`${ADAPTERS}_`);

/** Of an engine with adapters: all other groups are frozen. */
export const trainsWithAdapters = ({ name }: ParameterGroup): boolean =>
  name === VALUE_HEAD || name.endsWith(ADAPTERS);

/** Name of the group that a parameter lies in, unless it is a value head beside adapters. */
export function groupOf(param: string): string {
  const layer = /^layers\.\d+/.exec(param);
  if (layer !== null) return isAdapter(param) ? `${layer[0]}${ADAPTERS}` : layer[0];
  return param.includes('embed') ? 'embed' : 'head';
}

/** A group's flat buffer with the padding that makes `ways` equal shards of it. */
export const paddedElements = (group: ParameterGroup, ways: number): number =>
  roundUp(group.elements, ALIGNMENT * ways);
