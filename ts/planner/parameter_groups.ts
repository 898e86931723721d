import { tensorMapping } from '../model/names';
import type { NativeModelConfig } from '../native/bridge';

/** Parameters that lie in one flat buffer, as native/model/parameter_store.cc groups them. */
export interface ParameterGroup {
  /** 'embed', 'layers.0', ..., 'head' (final norm and head). */
  name: string;
  parameters: number;
  /** Length of the flat buffer before it is cut into shards. */
  elements: number;
}

/** Every parameter starts on a multiple of so many elements (kAlignment of parameter_store.cc). */
const ALIGNMENT = 16;

export const roundUp = (value: number, multiple: number): number => Math.ceil(value / multiple) * multiple;

/** The groups in their order in memory. Depends on the shape of the model alone. */
export function parameterGroups(config: NativeModelConfig): ParameterGroup[] {
  const counts = new Map<string, number>();
  for (const { param, shape } of tensorMapping(config)) {
    const count = shape.reduce((n, extent) => n * extent, 1);
    counts.set(param, (counts.get(param) ?? 0) + count);
  }
  const groups: ParameterGroup[] = [];
  for (const [param, count] of counts) {
    const name = groupOf(param);
    let group = groups.at(-1);
    if (group?.name !== name) {
      group = { name, parameters: 0, elements: 0 };
      groups.push(group);
    }
    group.parameters += count;
    group.elements = roundUp(group.elements + count, ALIGNMENT);
  }
  return groups;
}

/** Name of the group that a parameter lies in. */
export function groupOf(param: string): string {
  const layer = /^layers\.\d+/.exec(param);
  if (layer !== null) return layer[0];
  return param.includes('embed') ? 'embed' : 'head';
}

/** A group's flat buffer with the padding that makes `ways` equal shards of it. */
export const paddedElements = (group: ParameterGroup, ways: number): number =>
  roundUp(group.elements, ALIGNMENT * ways);
