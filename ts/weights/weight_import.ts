import { isUint8Array } from 'node:util/types';
import { badOption } from '../base/check_options';
import { show } from '../base/text';
import { oneToAll } from '../controller/dispatch';
import type { RoleEngine } from '../engine/role_engine';
import { TroupeError } from '../errors';
import { isPredictionLayer } from '../model/prediction_layers';
import type { TensorMapping } from '../model/tensor_mapping';
import type { FileTensor } from '../model/tensor_names';
import { fileTensors } from '../model/tensor_names';
import type { NativeWeightBucket } from '../native/bridge';
import { chunksOf } from './plan_buckets';
import {
  rowBytes,
  rowCount,
  WEIGHT_BYTES,
  type WeightBucket,
  type WeightPart,
  type WeightTransfer,
} from './weight_bucket';

const SHOWN = 5;

const refused = (message: string): TroupeError =>
  new TroupeError('INVALID_MODEL', `[importWeights] ${message}`);

/** What has come of a model so far. Parts of a tensor come in the order of its rows. */
class Intake {
  private readonly tensors: ReadonlyMap<string, FileTensor>;
  private readonly received = new Map<string, number>();

  /** optional: names of tensors that may all be left out. */
  constructor(
    mapping: readonly TensorMapping[],
    private readonly optional: (hf: string) => boolean,
  ) {
    this.tensors = new Map(fileTensors(mapping).map((tensor) => [tensor[0].hf, tensor]));
  }

  /** Checks a bucket as a whole before any of it counts. */
  accept(bucket: WeightBucket): NativeWeightBucket {
    const parts = bucket?.parts;
    if (!Array.isArray(parts)) throw refused(`expected buckets { parts: [...] } but got ${show(bucket)}`);
    const rows = new Map(this.received);
    const chunks = parts.flatMap((part) => {
      const tensor = this.check(part, rows.get(part.name) ?? 0, parts[0]?.dtype);
      rows.set(part.name, part.row + part.rows);
      return chunksOf(tensor, part.row, part.rows);
    });
    for (const [name, row] of rows) this.received.set(name, row);
    return { dtype: parts[0]?.dtype ?? 'float32', chunks };
  }

  get complete(): number {
    return [...this.tensors.values()].filter(([m]) => this.received.get(m.hf) === rowCount(m)).length;
  }

  /** @throws INVALID_MODEL listing what has not come, or not all of it */
  checkComplete(): void {
    const all = [...this.received.keys()].some(this.optional);
    const expected = [...this.tensors.values()].filter(([m]) => all || !this.optional(m.hf));
    const missing = expected.filter(([m]) => this.received.get(m.hf) !== rowCount(m));
    if (missing.length === 0) return;
    const names = missing.slice(0, SHOWN).map(([m]) => {
      const rows = this.received.get(m.hf);
      return rows === undefined ? m.hf : `${m.hf} (${rows} of ${rowCount(m)} rows came)`;
    });
    const more = missing.length > SHOWN ? ` and ${missing.length - SHOWN} more` : '';
    throw refused(
      `expected all ${expected.length} tensors of the model, but ${missing.length} are missing: ${names.join(', ')}${more}`,
    );
  }

  private check(part: WeightPart, expectedRow: number, dtype: string | undefined): FileTensor {
    checkForm(part);
    const { name, shape, row, rows, data } = part;
    const tensor = this.tensors.get(name);
    if (tensor === undefined) {
      const example = this.tensors.keys().next().value;
      throw refused(`tensor '${name}' does not belong to this engine, whose names are like '${example}'`);
    }
    const [m] = tensor;
    if (!Object.hasOwn(WEIGHT_BYTES, part.dtype) || part.dtype !== dtype) {
      throw refused(
        `tensor '${name}': expected dtype ${dtype === part.dtype ? 'float32 or bfloat16' : `${dtype} as in the rest of the bucket`} but got ${part.dtype}`,
      );
    }
    if (shape.length !== m.shape.length || shape.some((d, i) => d !== m.shape[i])) {
      throw refused(
        `tensor '${name}': expected shape [${m.shape.join(', ')}] but got [${Array.from(shape).join(', ')}]`,
      );
    }
    const all = rowCount(m);
    if (row !== expectedRow || !Number.isInteger(rows) || rows < 1 || row + rows > all) {
      throw refused(
        `tensor '${name}': expected rows that begin at ${expectedRow} and end at ${all} or before, but got ${row} to ${row + rows}`,
      );
    }
    const bytes = rows * rowBytes(part);
    if (data.byteLength !== bytes) {
      throw refused(`tensor '${name}': expected ${bytes} bytes for ${rows} rows but got ${data.byteLength}`);
    }
    return tensor;
  }
}

/** Of an array that is large its name alone. */
const kindOf = (value: unknown): string =>
  ArrayBuffer.isView(value) ? `a ${value.constructor.name}` : show(value);

/** That what is read of a part is there, and bytes are bytes: numbers of another array would be cut to them one by one. */
function checkForm(part: WeightPart): void {
  const { name, shape, data } = part ?? {};
  if (typeof name !== 'string')
    throw refused(`expected parts with the name of a tensor but got ${show(part)}`);
  if (!Array.isArray(shape))
    throw refused(`tensor '${name}': expected a shape, a list of numbers, but got ${show(shape)}`);
  if (!isUint8Array(data))
    throw refused(`tensor '${name}': expected the bytes of its rows, a Uint8Array, but got ${kindOf(data)}`);
}

/**
 * Replaces the weights with those of a stream such as `exportWeights` gives: all tensors of the model, or of an engine with `lora` all
 * of the adapter. Optimiser state and steps stay.
 *
 * Rejects with INVALID_MODEL for a name, shape, dtype or order that does not fit, or when tensors are missing at the end; with
 * NON_FINITE for NaN or infinity; with the stream's own error. When a part has been replaced by then, the message says so, and the engine
 * refuses all work until what the message names succeeds: another import, `rollout.updateWeights` of a directory (without `lora`), or a
 * loaded checkpoint. An import is that remedy, too, for a directory that failed half way; for a checkpoint with optimiser state only a
 * checkpoint is.
 */
export async function importWeights(
  engine: RoleEngine,
  source: AsyncIterable<WeightBucket> | Iterable<WeightBucket>,
): Promise<WeightTransfer> {
  const stream = source as Partial<AsyncIterable<unknown> & Iterable<unknown>> | null | undefined;
  const buckets = typeof (stream?.[Symbol.asyncIterator] ?? stream?.[Symbol.iterator]) === 'function';
  if (!buckets || ArrayBuffer.isView(source))
    throw badOption(
      'importWeights',
      `expected a stream of buckets such as exportWeights gives but got ${show(source)}`,
    );
  const { group, name } = engine;
  const { config, mapping } = engine.model;
  // Layers for further tokens stay as they are where none of them comes, if they are whole.
  const { leftHalf } = engine;
  const optional = (hf: string): boolean => !leftHalf && isPredictionLayer(config, hf);
  const intake = new Intake(engine.lora?.mapping ?? mapping, optional);
  const moved: WeightTransfer = { bytes: 0, tensors: 0, buckets: 0, seconds: 0 };
  await engine.replaceWeights('importWeights', async (touch) => {
    for await (const bucket of source) {
      const native = intake.accept(bucket);
      if (native.chunks.length === 0) continue;
      const bytes = joined(bucket.parts);
      const started = performance.now();
      // The core refuses a bucket as a whole.
      await group.callAll(name, 'importWeights', (rank) => [native, rank === 0 ? bytes : null]);
      touch();
      moved.seconds += (performance.now() - started) / 1000;
      moved.buckets += 1;
      moved.bytes += bytes.length;
      moved.tensors = intake.complete;
    }
    intake.checkComplete();
    // Says so to the core, which remembers a load that has failed half way.
    await oneToAll(group, name, 'importTensors', ['param', []]);
  });
  return moved;
}

function joined(parts: readonly WeightPart[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((sum, { data }) => sum + data.byteLength, 0));
  let at = 0;
  for (const { data } of parts) {
    all.set(data, at);
    at += data.byteLength;
  }
  return all;
}
