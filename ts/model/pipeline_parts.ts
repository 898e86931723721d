// How many layers each part of a pipeline has: native/model/stage_range.h, before any process is started.
import type { NativePipelineOptions } from '../native/bridge';

/** No pipeline. */
export const ONE_STAGE: Readonly<NativePipelineOptions> = {
  stages: 1,
  chunks: 1,
  firstLayers: 0,
  lastLayers: 0,
  countEmbedding: false,
  countHead: false,
  order: '1f1b',
};

type Split = Omit<NativePipelineOptions, 'order'>;

/** Layers of each of the stages * chunks parts in order, larger ones in the middle; some may be 0 or less where it does not come out. */
export function layersByPart(
  numLayers: number,
  { stages, chunks, firstLayers, lastLayers, countEmbedding, countHead }: Split,
): number[] {
  const parts = stages * chunks;
  if (parts === 1) return [numLayers];
  const ends = (firstLayers > 0 ? 1 : 0) + (lastLayers > 0 ? 1 : 0);
  const extra = (countEmbedding ? 1 : 0) + (countHead ? 1 : 0);
  const shared = share(numLayers + extra - firstLayers - lastLayers, parts - ends);
  const counts = [
    ...(firstLayers > 0 ? [firstLayers] : []),
    ...shared,
    ...(lastLayers > 0 ? [lastLayers] : []),
  ];
  if (countEmbedding) counts[0] = (counts[0] as number) - 1;
  if (countHead) counts[parts - 1] = (counts[parts - 1] as number) - 1;
  return counts;
}

function share(total: number, parts: number): number[] {
  const base = Math.floor(total / parts);
  const counts = Array.from({ length: parts }, () => base);
  const middleFirst = [...counts.keys()].sort((a, b) => Number(isEnd(a, parts)) - Number(isEnd(b, parts)));
  for (const i of middleFirst.slice(0, total - base * parts)) counts[i] = base + 1;
  return counts;
}

const isEnd = (part: number, parts: number): boolean => part === 0 || part === parts - 1;

/** Why a model of so many layers cannot be cut like this; null: it can. */
export function pipelineProblem(numLayers: number, split: Split): string | null {
  const { stages, chunks, firstLayers, lastLayers } = split;
  const counts = layersByPart(numLayers, split);
  if (counts.every((count) => count > 0) && counts.reduce((a, b) => a + b) === numLayers) return null;
  const ends =
    firstLayers > 0 || lastLayers > 0
      ? ` with ${firstLayers || 'as many as the others'} in the first and ${lastLayers || 'as many as the others'} in the last`
      : '';
  return (
    `parallel.pp ${stages} x parallel.vpp ${chunks}: ${numLayers} layers do not make ${stages * chunks} parts${ends}: ` +
    `they would have ${counts.join(', ')} layers`
  );
}
