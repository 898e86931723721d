import { readFileSync } from 'node:fs';

export interface TestTensor {
  shape: number[];
  data: Float32Array | Float64Array | BigInt64Array;
}

const ARRAYS: Record<string, (bytes: ArrayBuffer) => TestTensor['data']> = {
  F32: (bytes) => new Float32Array(bytes),
  F64: (bytes) => new Float64Array(bytes),
  I64: (bytes) => new BigInt64Array(bytes),
};

/** A whole safetensors file of F32, F64 and I64 tensors, read without the code under test. */
export function readSafetensors(file: string): Record<string, TestTensor> {
  const bytes = readFileSync(file);
  const headerLength = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + headerLength)) as Record<
    string,
    { dtype: string; shape: number[]; data_offsets: [number, number] }
  >;
  const tensors: Record<string, TestTensor> = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    const { dtype, shape } = entry;
    const [begin, end] = entry.data_offsets;
    const copy = new Uint8Array(bytes.subarray(8 + headerLength + begin, 8 + headerLength + end)).buffer;
    const make = ARRAYS[dtype];
    if (make === undefined) throw new Error(`${file}: ${name} is ${dtype}`);
    tensors[name] = { shape, data: make(copy) };
  }
  return tensors;
}

export function floats(tensors: Record<string, TestTensor>, name: string): Float32Array | Float64Array {
  const data = tensors[name]?.data;
  if (data === undefined || data instanceof BigInt64Array) throw new Error(`no float tensor ${name}`);
  return data;
}

export function integers(tensors: Record<string, TestTensor>, name: string): BigInt64Array {
  const tensor = tensors[name];
  if (!(tensor?.data instanceof BigInt64Array)) throw new Error(`no I64 tensor ${name}`);
  return tensor.data;
}

/** Largest |a - b|. */
export function maxDifference(a: ArrayLike<number>, b: ArrayLike<number>): number {
  if (a.length !== b.length) throw new Error(`lengths differ: ${a.length} and ${b.length}`);
  let worst = 0;
  for (let i = 0; i < a.length; i++) {
    const difference = Math.abs((a[i] as number) - (b[i] as number));
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}
