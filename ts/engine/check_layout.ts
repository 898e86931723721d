// Whether a model can be spread as an engine's options say: before any process is started.
import { badOption } from '../base/check_options';
import { layersByPart, pipelineProblem } from '../model/pipeline_parts';
import { linearProblem, tensorProblem } from '../model/tensor_parts';
import type { NativeModelConfig } from '../native/bridge';
import type { ResolvedEngineOptions } from './engine_options';

type Layout = Pick<ResolvedEngineOptions, 'ulysses' | 'parallel' | 'pipeline'>;

/**
 * Ranks that share micro-batches or matrices each have whole heads, those that share experts as many of them, and every part of a
 * pipeline at least one layer; the first one has those behind which features of images are added.
 * @param dir of the model, for messages
 * @throws TroupeError INVALID_ARGUMENT, with the numbers
 */
export function checkLayout(
  where: string,
  { ulysses, parallel, pipeline }: Layout,
  { config, dir }: { config: NativeModelConfig; dir: string },
): void {
  if (config.prediction?.trained && (ulysses > 1 || parallel.cp > 1))
    throw badOption(
      where,
      `parallel.ulysses ${ulysses}, parallel.cp ${parallel.cp}: layers that predict further tokens (mtp) read the rows of whole sequences, and ranks cannot ` +
        'share these: expected both to be 1 (parallel.tp shares heads)',
    );
  if (config.prediction !== null && config.vision !== null)
    throw badOption(
      where,
      `mtp: layers that predict further tokens read text alone, and the model in ${dir} is read with its tower for images: leave one of them out`,
    );
  if (config.numHeads % ulysses !== 0)
    throw badOption(
      where,
      `parallel.ulysses ${ulysses}: expected a divisor of the ${config.numHeads} attention heads of the model in ${dir}`,
    );
  const heads = tensorProblem(parallel.tp, config);
  if (heads !== null) throw badOption(where, `parallel.tp ${parallel.tp}: ${heads} of the model in ${dir}`);
  // Ranks that share rows share these, too.
  const linear = linearProblem(parallel.tp * parallel.cp * ulysses, config.linear);
  if (linear !== null)
    throw badOption(
      where,
      `parallel.tp ${parallel.tp} x parallel.cp ${parallel.cp} x parallel.ulysses ${ulysses}: ${linear} of the model in ${dir}`,
    );
  const experts = config.moe?.numExperts ?? 0;
  if (parallel.ep > 1 && (experts === 0 || experts % parallel.ep !== 0))
    throw badOption(
      where,
      `parallel.ep ${parallel.ep}: expected a divisor of the ${experts} experts of the model in ${dir}`,
    );
  const layers = pipelineProblem(config.numLayers, pipeline);
  if (layers !== null) throw badOption(where, `${layers} (the model in ${dir})`);
  const features = config.vision?.deepstackLayers.length ?? 0;
  const [first] = layersByPart(config.numLayers, pipeline) as [number];
  if (first < features)
    throw badOption(
      where,
      `parallel.pp ${pipeline.stages} x parallel.vpp ${pipeline.chunks}: features of images are added behind the first ${features} layers of the model ` +
        `in ${dir}, and the first part of the pipeline has ${first}: expected at least ${features} (fewer parts, or more layers in the first)`,
    );
}
