// Which ranks of a pool do something of their own, so that each is planned.
import { layersByPart, ONE_STAGE } from '../model/pipeline_parts';
import type { PlanSpec, RoleLayout, RoleSpec } from './plan';

/** Every rank has all of it, but for what data parallelism shards. */
export const ONE_MODEL: RoleLayout = {
  parallel: { tp: 1, cp: 1, sequenceParallel: false, ep: 1 },
  pipeline: ONE_STAGE,
};

/** A rank, and the pipeline stage of each role that it has. */
export interface Place {
  rank: number;
  /** In the order of the roles; 0 for one without a pipeline. */
  stages: number[];
}

/** Ranks that each have a part of a micro-batch's rows, and room for `capacity` of its tokens. */
export const rowParts = ({ ulysses, layout }: Pick<RoleSpec, 'ulysses' | 'layout'>): number =>
  ulysses * layout.parallel.cp;

/**
 * The first rank of a stage: of the ranks of a tensor-parallel group it has the most words of the vocabulary, and those of data and
 * expert parallelism all hold as much.
 */
export const firstRankOf = ({ layout }: RoleSpec, stage: number, worldSize: number): number =>
  (stage * worldSize) / layout.pipeline.stages;

/**
 * One rank for each combination of stages that holds something else than another one. Of the stages between the first and the last
 * those with as many layers are taken to hold what the foremost of them does, which has the most micro-batches in flight.
 */
export function placesThatDiffer({ roles, worldSize }: Pick<PlanSpec, 'roles' | 'worldSize'>): Place[] {
  const likes = roles.map(stagesAlike);
  const starts = roles.flatMap((role) =>
    Array.from({ length: role.layout.pipeline.stages }, (_, stage) => firstRankOf(role, stage, worldSize)),
  );
  const places = new Map<string, Place>();
  for (const rank of [...new Set(starts)].sort((a, b) => a - b)) {
    const stages = roles.map(({ layout }) => Math.floor((rank * layout.pipeline.stages) / worldSize));
    const key = stages.map((stage, i) => likes[i]?.[stage]).join(' ');
    if (!places.has(key)) places.set(key, { rank, stages });
  }
  return [...places.values()];
}

/** Of each stage the first one that holds no less. */
function stagesAlike({ layout: { pipeline }, model }: RoleSpec): number[] {
  const { stages } = pipeline;
  const layers = layersByPart(model.numLayers, pipeline);
  const ofStage = Array.from({ length: stages }, (_, stage) =>
    layers.filter((_count, part) => part % stages === stage).reduce((sum, count) => sum + count, 0),
  );
  return ofStage.map((count, stage) =>
    stage === 0 || stage === stages - 1 ? stage : ofStage.findIndex((other, i) => i > 0 && other === count),
  );
}
