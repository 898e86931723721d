/** What travels between an engine and another program that holds the same model. */
export type WeightDtype = 'float32' | 'bfloat16';

export const WEIGHT_BYTES: Readonly<Record<WeightDtype, number>> = { float32: 4, bfloat16: 2 };

/** A tensor by its Hugging Face name, with the shape that it has in a Hugging Face directory. */
export interface WeightTensor {
  name: string;
  dtype: WeightDtype;
  shape: number[];
}

/** A tensor, or some rows of one that is larger than a bucket. */
export interface WeightPart extends WeightTensor {
  /** First row of `data` in the tensor: its offset along dimension 0. */
  row: number;
  /** Rows in `data`; `shape[0]` for a whole tensor, 1 for a number without dimensions. */
  rows: number;
  /**
   * The rows in row-major order, little-endian: rows x shape[1] x ... elements. Those of an export begin at a multiple of the element's
   * size in their ArrayBuffer, so `new Float32Array(data.buffer, data.byteOffset, data.length / 4)` is a view of them.
   */
  data: Uint8Array;
}

export interface WeightBucket {
  parts: WeightPart[];
  /** Of all parts. */
  bytes: number;
}

/** What has been moved. */
export interface WeightTransfer {
  bytes: number;
  /** Whole tensors. */
  tensors: number;
  buckets: number;
  /** Time spent in the workers and on the way from or to them; not what the other side of the stream took. */
  seconds: number;
}

/** Of a whole tensor. */
export const rowCount = ({ shape }: Pick<WeightTensor, 'shape'>): number => shape[0] ?? 1;

export const rowBytes = ({ shape, dtype }: WeightTensor): number =>
  shape.slice(1).reduce((n, d) => n * d, WEIGHT_BYTES[dtype]);
