// How an engine's options spread a model over workers.
import { badOption, checkOptionNames, choiceOption, countOption, flagOption } from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import type { NativeParallelOptions, NativePipelineOptions, Reduction, Sharding } from '../native/bridge';
import type { EngineOptions, ResolvedEngineOptions } from './engine_options';

type Parallel = NonNullable<EngineOptions['parallel']>;

const PIPELINE_KEYS = [
  'pp',
  'vpp',
  'firstStageLayers',
  'lastStageLayers',
  'countEmbedding',
  'countHead',
].concat(['schedule']);
const PARALLEL_KEYS = [
  'tp',
  'sequenceParallel',
  'cp',
  'ep',
  'ulysses',
  'fsdpSize',
  'sharding',
  'prefetch',
].concat(['reduce', 'reduceDtype', ...PIPELINE_KEYS]);
const SHARDINGS: readonly Sharding[] = ['full_shard', 'shard_grad_op', 'no_shard'];
const REDUCE_DTYPES = ['float32', 'bfloat16'] as const;
const REDUCTIONS: readonly Reduction[] = ['micro_batch', 'mini_batch'];

/**
 * Applies the defaults.
 * @throws TroupeError INVALID_ARGUMENT for layouts that do not come out, with the numbers
 */
export function resolveParallel(
  where: string,
  o: Parallel,
  worldSize: number,
  strategy: 'fsdp' | 'megatron',
): Pick<
  ResolvedEngineOptions,
  'sharding' | 'shardSize' | 'ulysses' | 'parallel' | 'pipeline' | 'prefetch' | 'reduction' | 'reduceDtype'
> {
  checkOptionNames(`${where}.parallel`, o, PARALLEL_KEYS);
  const { fsdpSize = -1, sharding, ulysses = 1, prefetch, reduce, reduceDtype } = o;
  const parallel = resolveTensor(where, o, worldSize);
  const pipeline = resolvePipeline(where, o, worldSize);
  const { tp } = parallel;
  const { stages } = pipeline;
  const dataRanks = worldSize / (tp * stages);
  if (!Number.isInteger(dataRanks))
    throw badOption(
      where,
      `parallel.tp ${tp}, parallel.pp ${stages}: expected tp(${tp}) x pp(${stages}) x dp = worldSize(${worldSize}), which has no whole dp`,
    );
  const ranks = dataRanksText(worldSize, tp, stages);
  const { cp } = parallel;
  if (ulysses !== 1 && cp > 1)
    throw badOption(
      where,
      `parallel.ulysses ${String(ulysses)}, parallel.cp ${cp}: both share the rows of micro-batches: expected one of them to be 1`,
    );
  if (dataRanks % cp !== 0) throw badOption(where, `parallel.cp ${cp}: expected a divisor of ${ranks}`);
  if (ulysses !== 1 && tp > 1)
    throw badOption(
      where,
      `parallel.ulysses ${String(ulysses)}, parallel.tp ${tp}: both share the attention heads: expected one of them to be 1`,
    );
  if (!Number.isInteger(ulysses) || ulysses < 1 || dataRanks % ulysses !== 0)
    throw badOption(where, `parallel.ulysses ${String(ulysses)}: expected a divisor of ${ranks}`);
  const { ep } = parallel;
  if (dataRanks % ep !== 0) throw badOption(where, `parallel.ep ${ep}: expected a divisor of ${ranks}`);
  if (
    !Number.isInteger(fsdpSize) ||
    !(fsdpSize === -1 || fsdpSize >= dataRanks || dataRanks % fsdpSize === 0)
  ) {
    throw badOption(
      where,
      `parallel.fsdpSize ${String(fsdpSize)}: expected -1, a divisor of ${ranks}, or more than it`,
    );
  }
  if (ep > 1 && fsdpSize > 1 && fsdpSize < dataRanks)
    throw badOption(where, `parallel.fsdpSize ${fsdpSize}: expected -1 or 1 beside parallel.ep ${ep}`);
  // What Megatron's distributed optimiser shards, and its gradients.
  const sharded = strategy === 'megatron' ? 'shard_grad_op' : 'full_shard';
  const fallback = fsdpSize === 1 ? 'no_shard' : sharded;
  const chosen = choiceOption(where, 'parallel.sharding', sharding, SHARDINGS, fallback);
  const shared = {
    ulysses,
    parallel,
    pipeline,
    prefetch: flagOption(where, 'parallel.prefetch', prefetch, false),
    reduction: choiceOption(where, 'parallel.reduce', reduce, REDUCTIONS, 'micro_batch'),
    reduceDtype: choiceOption(where, 'parallel.reduceDtype', reduceDtype, REDUCE_DTYPES, 'float32'),
  };
  if (worldSize === 1) return { sharding: null, shardSize: 0, ...shared };
  return { sharding: chosen, shardSize: fsdpSize === -1 || fsdpSize >= dataRanks ? 0 : fsdpSize, ...shared };
}

/** Where the ranks of data and context parallelism come from. */
function dataRanksText(worldSize: number, tp: number, stages: number): string {
  if (tp * stages === 1) return `worldSize = ${worldSize}`;
  const dataRanks = worldSize / (tp * stages);
  if (stages === 1) return `worldSize / parallel.tp = ${worldSize} / ${tp} = ${dataRanks}`;
  if (tp === 1) return `worldSize / parallel.pp = ${worldSize} / ${stages} = ${dataRanks}`;
  return `worldSize / (parallel.tp x parallel.pp) = ${worldSize} / (${tp} x ${stages}) = ${dataRanks}`;
}

function resolveTensor(where: string, o: Parallel, worldSize: number): NativeParallelOptions {
  const tp = countOption(where, 'parallel.tp', o.tp, RUN_LIMITS.ranks, 1);
  const sequenceParallel = flagOption(where, 'parallel.sequenceParallel', o.sequenceParallel, false);
  if (worldSize % tp !== 0)
    throw badOption(
      where,
      `parallel.tp ${tp}: expected tp(${tp}) x dp = worldSize(${worldSize}), which has no whole dp`,
    );
  const cp = countOption(where, 'parallel.cp', o.cp, RUN_LIMITS.ranks, 1);
  const ep = countOption(where, 'parallel.ep', o.ep, RUN_LIMITS.ranks, 1);
  return { tp, sequenceParallel: sequenceParallel && tp > 1, cp, ep };
}

function resolvePipeline(where: string, o: Parallel, worldSize: number): NativePipelineOptions {
  const stages = countOption(where, 'parallel.pp', o.pp, RUN_LIMITS.ranks, 1);
  const chunks = countOption(where, 'parallel.vpp', o.vpp, RUN_LIMITS.ranks, 1);
  const layers = (key: 'firstStageLayers' | 'lastStageLayers'): number =>
    o[key] === undefined ? 0 : countOption(where, `parallel.${key}`, o[key], RUN_LIMITS.ranks);
  const counted = (key: 'countEmbedding' | 'countHead'): boolean =>
    flagOption(where, `parallel.${key}`, o[key], false);
  const options: NativePipelineOptions = {
    stages,
    chunks,
    firstLayers: layers('firstStageLayers'),
    lastLayers: layers('lastStageLayers'),
    countEmbedding: counted('countEmbedding'),
    countHead: counted('countHead'),
    order: choiceOption<'1f1b' | 'gpipe'>(where, 'parallel.schedule', o.schedule, ['1f1b', 'gpipe'], '1f1b'),
  };
  if (worldSize % stages !== 0)
    throw badOption(
      where,
      `parallel.pp ${stages}: expected a divisor of worldSize = ${worldSize}: pp(${stages}) x dp = ${worldSize} has no whole dp`,
    );
  if (chunks > 1 && stages === 1)
    throw badOption(where, `parallel.vpp ${chunks}: expected parallel.pp >= 2 beside it, got ${stages}`);
  const given = options.firstLayers > 0 || options.lastLayers > 0;
  if (given && stages === 1)
    throw badOption(
      where,
      'parallel.firstStageLayers, lastStageLayers: expected parallel.pp >= 2 beside them, got 1',
    );
  if (given && (options.countEmbedding || options.countHead))
    throw badOption(
      where,
      'parallel.countEmbedding, countHead: the layers of the first or last range are given: embeddings and head cannot be counted as layers, too',
    );
  return options;
}
