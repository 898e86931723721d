import { badOption, checkOptionNames, choiceOption, flagOption, numberOption } from '../base/check_options';
import { oneToAll, rankZero } from '../controller/dispatch';
import type { RoleEngine } from '../engine/role_engine';
import { decoderMapping } from '../model/prediction_layers';
import type { NativeExportedWeights, NativeTensorKind } from '../native/bridge';
import { type PlannedBucket, planBuckets } from './plan_buckets';
import {
  rowBytes,
  rowCount,
  type WeightBucket,
  type WeightDtype,
  type WeightTensor,
  type WeightTransfer,
} from './weight_bucket';

export interface WeightExportOptions {
  /** No bucket has more bytes of tensors, 64 MiB. One row of the widest tensor must fit. */
  bucketBytes?: number;
  /** Default: the compute dtype of the engine. Buffers (a router's correction bias) are float32 whatever it is. */
  dtype?: WeightDtype;
  /**
   * With `lora`: `merged` (default) is the model with the adapters merged in, under the model's names; `adapter` is what is trained
   * alone, under PEFT's names.
   */
  lora?: 'merged' | 'adapter';
  /** Also the layers that predict further tokens, of an engine with the option `mtp`; default false: engines draft without them, or with their own. */
  predictions?: boolean;
}

const DEFAULT_BUCKET_BYTES = 64 * 2 ** 20;
/** A bucket is whole in the memory of both ends. */
const MOST_BUCKET_BYTES = 2 ** 30;

/**
 * The weights of an engine, bucket by bucket. Nothing happens until it is iterated; each iteration is an export of its own. One
 * bucket is on its way at a time, and every rank gathers one parameter group at a time.
 *
 * An iteration rejects with INVALID_ARGUMENT when the weights have changed between two of its buckets.
 */
export class WeightExport implements AsyncIterable<WeightBucket> {
  /** All tensors that will come, in order: what an inference engine asks for before a transfer. */
  readonly tensors: readonly WeightTensor[];
  readonly numBuckets: number;
  /** Of all buckets. */
  readonly numBytes: number;
  private moved: WeightTransfer = { bytes: 0, tensors: 0, buckets: 0, seconds: 0 };

  constructor(
    private readonly engine: RoleEngine,
    private readonly kind: NativeTensorKind,
    private readonly plan: readonly PlannedBucket[],
  ) {
    this.tensors = plan.flatMap(({ parts }) =>
      parts.filter(({ row }) => row === 0).map(({ name, dtype, shape }) => ({ name, dtype, shape })),
    );
    this.numBuckets = plan.length;
    this.numBytes = plan.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** What the latest iteration has moved so far. */
  get transferred(): WeightTransfer {
    return { ...this.moved };
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<WeightBucket, void, undefined> {
    const { group, name } = this.engine;
    const { kind } = this;
    const moved: WeightTransfer = { bytes: 0, tensors: 0, buckets: 0, seconds: 0 };
    this.moved = moved;
    let version: number | null = null;
    let unfinished = false;
    try {
      for (const [i, planned] of this.plan.entries()) {
        this.engine.checkOpen();
        const started = performance.now();
        const more = i + 1 < this.plan.length;
        const native = { dtype: planned.dtype, chunks: planned.chunks };
        const exported: NativeExportedWeights = await rankZero(group, name, 'exportWeights', [
          kind,
          native,
          version,
          more,
        ]);
        version = exported.version;
        const bucket = filled(planned, exported.bytes as Uint8Array);
        moved.seconds += (performance.now() - started) / 1000;
        moved.buckets += 1;
        moved.bytes += bucket.bytes;
        moved.tensors += planned.parts.filter((part) => part.row + part.rows === rowCount(part)).length;
        unfinished = more;
        yield bucket;
        unfinished = false;
      }
    } finally {
      // Left early: the ranks let go of the group that they kept for the next bucket.
      if (unfinished && this.engine.isOpen) {
        await oneToAll(group, name, 'exportWeights', [kind, { dtype: 'float32', chunks: [] }, null, false]);
      }
    }
  }
}

export function exportWeights(engine: RoleEngine, o: WeightExportOptions): WeightExport {
  const where = 'exportWeights';
  engine.checkOpen();
  checkOptionNames(where, o, ['bucketBytes', 'dtype', 'lora', 'predictions']);
  const bucketBytes = numberOption(where, 'bucketBytes', o.bucketBytes, DEFAULT_BUCKET_BYTES, {
    integer: true,
    min: 1,
    max: MOST_BUCKET_BYTES,
  });
  const dtype = choiceOption<WeightDtype>(
    where,
    'dtype',
    o.dtype,
    ['float32', 'bfloat16'],
    engine.options.dtype,
  );
  const lora = choiceOption(where, 'lora', o.lora, ['merged', 'adapter'], 'merged');
  if (o.lora !== undefined && engine.lora === null)
    throw badOption(where, `lora: the ${engine.role} was created without the option lora: leave it out`);
  const adapter = engine.lora !== null && lora === 'adapter' ? engine.lora : null;
  const kind = adapter === null ? engine.exportKind : 'param';
  const predictions = flagOption(where, 'predictions', o.predictions, false);
  if (predictions && engine.predictions === null)
    throw badOption(
      where,
      `predictions: the ${engine.role} was created without the option mtp: leave it out`,
    );
  const { config, mapping: whole } = engine.model;
  const mapping = adapter?.mapping ?? (predictions ? whole : decoderMapping(config, whole));
  return new WeightExport(engine, kind, planBuckets(where, mapping, dtype, bucketBytes));
}

function filled({ parts, bytes }: PlannedBucket, sent: Uint8Array): WeightBucket {
  // Arrays of bytes arrive at any address.
  const all = sent.byteOffset % 4 === 0 ? sent : new Uint8Array(sent);
  let at = 0;
  return {
    bytes,
    parts: parts.map((part) => {
      const length = part.rows * rowBytes(part);
      at += length;
      return { ...part, data: all.subarray(at - length, at) };
    }),
  };
}
