// The pipeline that a role's update would run as.
import { ConfigError } from '../errors';
import { layersByPart, ONE_STAGE, pipelineProblem } from '../model/pipeline_parts';
import type { PipelineShape } from './pipeline_timeline';
import type { RoleSpec } from './plan';
import { microBatchesOf } from './simulate';

/** The pipeline that a configuration gives a role that learns. */
export const pipelineShape = (role: RoleSpec): PipelineShape => ({
  stages: role.layout.pipeline.stages,
  chunks: role.layout.pipeline.chunks,
  microBatches: microBatchesOf(role),
  order: role.layout.pipeline.order,
  backwardCost: role.gradientCheckpointing ? 3 : 2,
});

export interface RolePipeline {
  shape: PipelineShape;
  /** Of each range of layers, in order. */
  layers: number[];
}

/**
 * One mini-batch of `role` over `worldSize` workers in pipelines of so many stages. The workers of a pipeline share the data, so each
 * pipeline has as many more micro-batches as it has stages.
 * @throws ConfigError with the numbers, for layers or workers that do not come out
 */
export function pipelineOf(
  role: RoleSpec,
  worldSize: number,
  { stages, chunks }: { stages: number; chunks: number },
): RolePipeline {
  const split = { ...ONE_STAGE, stages, chunks };
  if (chunks > 1 && stages === 1)
    throw new ConfigError(
      `--pipeline: expected at least 2 stages with ${chunks} ranges of layers each, got 1`,
    );
  if (worldSize % stages !== 0)
    throw new ConfigError(
      `--pipeline: expected a number of stages that divides the ${worldSize} workers, got ${stages}`,
    );
  const problem = pipelineProblem(role.model.numLayers, split);
  if (problem !== null) throw new ConfigError(`--pipeline: ${role.name}: ${problem}`);
  const more = stages / role.layout.pipeline.stages;
  const update = role.update && { ...role.update, sequences: Math.ceil(role.update.sequences * more) };
  return {
    shape: {
      stages,
      chunks,
      microBatches: microBatchesOf({ ...role, update }),
      order: '1f1b',
      backwardCost: role.gradientCheckpointing ? 3 : 2,
    },
    layers: layersByPart(role.model.numLayers, split),
  };
}
