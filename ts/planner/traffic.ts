// What a rank sends in one optimiser step along each axis of a layout, by formula: of the blocks. The rest, which is little but for what
// Gemma 4's layers get of tokens, is in the table alone.
import { headsAt } from '../model/layer_shapes';
import { linearColumns } from '../model/linear_columns';
import { layersByPart } from '../model/pipeline_parts';
import type { NativeSimulatedGroup } from '../native/bridge';
import { rowParts } from './places';
import type { RoleSpec } from './plan';
import { microBatchesOf, type RoleSimulation, sequencesPerMicroBatch } from './simulate';

/** Bytes along one axis: a factor times a factor ... */
export interface TrafficFormula {
  axis: 'tp' | 'cp' | 'pp' | 'dp' | 'ep';
  /** What is sent, and how often. */
  text: string;
  bytes: number;
}

/** Rows of tiles (kRowTile of native/base/parallel.h), of which micro-batches have whole ones. */
const ROW_TILE = 128;

const count = (n: number): string => n.toLocaleString('en-US');
const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

/**
 * Of one rank of `simulated`'s stage. Volumes of collectives are those of their definition: what one of N ranks sends of a whole of
 * X bytes is (N - 1) / N X in an all-gather and in a reduce-scatter, and twice that in an all-reduce, which is one after the other.
 */
export function trafficFormulas(
  role: RoleSpec,
  simulated: RoleSimulation,
  { worldSize, device }: { worldSize: number; device: 'cpu' | 'cuda' },
): TrafficFormula[] {
  const { parallel, pipeline } = role.layout;
  const stage = simulated.stages[0] as number;
  const part: Part = {
    role,
    rows: rowsOf(role, device),
    element: role.dtype === 'bfloat16' ? 2 : 4,
    micros: simulated.microBatches,
    learns: role.update !== null,
    layers: layersOf(role, stage),
    stage,
  };
  const dataRanks = worldSize / (parallel.tp * pipeline.stages);
  // Layers that predict further tokens run in the backward pass alone: of what they take part in the table alone.
  const alike = role.model.prediction?.trained !== true;
  return [
    // What Muon sums of matrices depends on where shards cut them.
    ...(parallel.tp > 1 && alike && role.muon === undefined ? [tensorTraffic(part)] : []),
    ...(parallel.cp > 1 ? [contextTraffic(part)] : []),
    ...(pipeline.stages > 1 ? [pipelineTraffic(part)] : []),
    ...(parallel.ep > 1 && alike ? [expertTraffic(part)] : []),
    ...(dataRanks > 1 && alike ? dataTraffic(part, simulated.simulation.groups, dataRanks) : []),
  ].filter(({ bytes }) => bytes > 0);
}

interface Part {
  role: RoleSpec;
  /** Of all micro-batches; with context parallelism this rank's part of them. */
  rows: number;
  /** Bytes of an element in the compute dtype. */
  element: number;
  micros: number;
  learns: boolean;
  /** Numbers of the layers of this rank. */
  layers: number[];
  stage: number;
}

/** Padded to whole tiles for each rank that has a part of them; on a GPU to the capacity. Divided by the ranks along cp. */
function rowsOf(role: RoleSpec, device: 'cpu' | 'cuda'): number {
  const load = role.update ?? role.inference;
  if (load === null) return 0;
  const { parallel } = role.layout;
  const tile = ROW_TILE * (parallel.sequenceParallel ? parallel.tp : 1) * rowParts(role);
  const padded = (rows: number): number => Math.ceil(rows / tile) * tile;
  const each = sequencesPerMicroBatch(role, load);
  const micros = microBatchesOf(role);
  const length = Math.min(load.longest, role.model.maxPositions) - 1;
  const last = (load.sequences - (micros - 1) * each) * length;
  const all =
    device === 'cuda'
      ? micros * padded(role.capacity * rowParts(role))
      : (micros - 1) * padded(each * length) + padded(last);
  return all / parallel.cp;
}

function layersOf({ model, layout: { pipeline } }: RoleSpec, stage: number): number[] {
  const own: number[] = [];
  let first = 0;
  for (const [part, layers] of layersByPart(model.numLayers, pipeline).entries()) {
    if (part % pipeline.stages === stage) for (let i = 0; i < layers; i++) own.push(first + i);
    first += layers;
  }
  return own;
}

/** "4 forward + 4 backward + 2 recomputed" of an update, "4" of a pass. */
function uses(
  { learns, role }: Part,
  [forward, backward, again]: readonly [number, number, number],
): { text: string; times: number } {
  if (!learns) return { text: String(forward), times: forward };
  const recomputed = role.gradientCheckpointing ? again : 0;
  return {
    text: `(${forward} forward + ${backward} backward${recomputed > 0 ? ` + ${recomputed} recomputed` : ''})`,
    times: forward + backward + recomputed,
  };
}

/**
 * Two pairs of matrices in a layer, one in a layer without an MLP, each with its way in and out (native/megatron/exchange.h). With sequence parallelism the rows that
 * go in are gathered again in the backward pass, for the gradients of the weights; recomputation ends where the last sum would begin,
 * but for models that need it (a norm behind it).
 */
function tensorTraffic(part: Part): TrafficFormula {
  const { role, rows, element, layers } = part;
  const { tp, sequenceParallel } = role.layout.parallel;
  const bare = layers.filter((layer) => role.model.bareLayers[layer] === true).length;
  const behind = role.model.postNorms ? layers.filter((layer) => !role.model.linearLayers[layer]).length : 0;
  const beside = role.model.moe?.besideMlp ? behind : 0;
  const normed = behind - beside;
  const plain = layers.length - bare - behind;
  const kinds = [
    { ...uses(part, sequenceParallel ? [4, 6, 3] : [4, 4, 2]), layers: plain, what: 'layers' },
    {
      ...uses(part, sequenceParallel ? [4, 6, 4] : [4, 4, 4]),
      layers: normed,
      what: plain > 0 ? 'layers with norms behind' : 'layers',
    },
    {
      // Their sums are two, each with a norm behind it.
      ...uses(part, sequenceParallel ? [5, 7, 5] : [6, 4, 6]),
      layers: beside,
      what: 'layers with experts beside an MLP',
    },
    { ...uses(part, sequenceParallel ? [2, 3, 1] : [2, 2, 0]), layers: bare, what: 'layers without an MLP' },
  ].filter((kind) => kind.layers > 0);
  const terms = kinds.map((kind) => `${kind.text} x ${kind.layers} ${kind.what}`).join(' + ');
  const hidden = role.model.hiddenSize;
  const times = sum(kinds.map((kind) => kind.times * kind.layers));
  return {
    axis: 'tp',
    text: `${kinds.length > 1 ? `(${terms})` : terms} x ${count(rows)} rows x ${hidden} x ${element} B x ${tp - 1}/${tp}`,
    bytes: (times * rows * hidden * element * (tp - 1)) / tp,
  };
}

/**
 * Keys and values to the ranks that share the context, in the forward and in the backward pass and where it is computed again, and
 * their gradients back, summed (native/megatron/context_group.h). Linear attention sends the columns of its rows to the ranks that have their heads,
 * and the results back (native/comm/row_exchange.h); so do the gradients.
 */
function contextTraffic(part: Part): TrafficFormula {
  const { role, rows, element, layers } = part;
  const { tp, cp } = role.layout.parallel;
  const { linear, linearLayers } = role.model;
  const terms: { text: string; bytes: number }[] = [];
  const scans = layers.filter((layer) => linearLayers[layer]).length;
  const second = (layer: number): boolean =>
    role.model.secondHeads !== null && role.model.secondRopeLayers[layer] === true;
  for (const kind of [false, true]) {
    const attending = layers.filter((layer) => !linearLayers[layer] && second(layer) === kind);
    if (attending.length === 0) continue;
    const { text, times } = uses(part, [1, 2, 1]);
    const { numKvHeads, headDim } = headsAt(role.model, attending[0] as number);
    const heads = Math.max(1, numKvHeads / tp); // fewer than tp: each rank has a copy of one
    terms.push({
      text: `${text} x 2 x ${attending.length} layers x ${count(rows)} rows x ${heads} key heads x ${headDim} x ${element} B x ${cp - 1}`,
      bytes: times * 2 * attending.length * rows * heads * headDim * element * (cp - 1),
    });
  }
  if (linear !== null && scans > 0) {
    const { text, times } = uses(part, [1, 1, 1]);
    const columns = (linearColumns(linear) + linear.valueHeads * linear.valueDim) / tp;
    terms.push({
      text: `${text} x ${scans} layers of linear attention x ${count(rows)} rows x ${columns} columns x ${element} B x ${cp - 1}/${cp}`,
      bytes: (times * scans * rows * columns * element * (cp - 1)) / cp,
    });
  }
  return {
    axis: 'cp',
    text: terms.map(({ text }) => text).join(' + '),
    bytes: sum(terms.map(({ bytes }) => bytes)),
  };
}

/** Activations to the next range of layers and gradients to the one before, with 16 bytes that say what comes. */
function pipelineTraffic({ role, rows, element, micros, learns, stage }: Part): TrafficFormula {
  const { parallel, pipeline } = role.layout;
  const parts = Array.from({ length: pipeline.chunks }, (_, chunk) => chunk * pipeline.stages + stage);
  const forward = parts.filter((index) => index < pipeline.stages * pipeline.chunks - 1).length;
  const backward = learns ? parts.filter((index) => index > 0).length : 0;
  const own = rows / (parallel.sequenceParallel ? parallel.tp : 1);
  const hidden = role.model.hiddenSize;
  return {
    axis: 'pp',
    text: `(${forward} forward + ${backward} backward) x (${count(own)} rows x ${hidden} x ${element} B + ${micros} x 16 B)`,
    bytes: (forward + backward) * (own * hidden * element + 16 * micros),
  };
}

/** Rows to the ranks that share the experts and the sums back (native/megatron/expert_rows.h). */
function expertTraffic(part: Part): TrafficFormula {
  const { role, rows, element, layers } = part;
  const { ep } = role.layout.parallel;
  const moe = layers.filter((layer) => role.model.moeLayers[layer] === true).length;
  const { text, times } = uses(part, [2, 3, 2]);
  const hidden = role.model.hiddenSize;
  return {
    axis: 'ep',
    text: `${text} x ${moe} layers x ${count(rows)} rows x ${hidden} x ${element} B x ${ep - 1}`,
    bytes: times * moe * rows * hidden * element * (ep - 1),
  };
}

/** Weights of blocks gathered, and gradients summed. */
function dataTraffic(part: Part, groups: readonly NativeSimulatedGroup[], ranks: number): TrafficFormula[] {
  const { role, element, micros, learns } = part;
  // Copies of shards, experts of their own ranks, adapters: the table alone.
  if ((role.shardSize !== null && role.shardSize < ranks) || role.layout.parallel.ep > 1 || role.lora)
    return [];
  // Buffers (corrections of routers) are whole on every rank.
  const blocks = groups.filter(({ name }) => name.startsWith('layers.') && !name.endsWith('.buffers'));
  const whole = sum(blocks.map((group) => group.whole));
  const { reduction, reduceDtype } = role.placement;
  const sums = role.strategy === 'no_shard' ? 2 : reduction === 'micro_batch' ? micros : 1;
  const sent = role.strategy !== 'no_shard' && reduceDtype === 'bfloat16' ? 2 : 4;
  const gathers =
    role.strategy === 'no_shard' ? 0 : role.strategy === 'shard_grad_op' ? 1 : micros * (learns ? 2 : 1);
  const momentum = role.muon !== undefined && role.strategy !== 'no_shard' ? 4 : 0;
  const learned = learns ? ` + ${sums} x ${sent} B${momentum > 0 ? ` + ${momentum} B of momentum` : ''}` : '';
  return [
    {
      axis: 'dp',
      text: `${count(whole)} parameters x (${gathers} x ${element} B${learned}) x ${ranks - 1}/${ranks}`,
      bytes: (whole * (gathers * element + (learns ? sums * sent + momentum : 0)) * (ranks - 1)) / ranks,
    },
  ];
}
