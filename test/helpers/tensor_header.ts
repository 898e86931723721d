import { readFileSync, writeFileSync } from 'node:fs';

export interface HeaderEntry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

/** Of a safetensors file. */
export type TensorHeader = Record<string, HeaderEntry>;

export function readTensorHeader(file: string): { header: TensorHeader; rest: Buffer } {
  const bytes = readFileSync(file);
  const length = Number(bytes.readBigUInt64LE(0));
  return { header: JSON.parse(bytes.toString('utf8', 8, 8 + length)), rest: bytes.subarray(8 + length) };
}

/** Writes the file again with another header, whatever it says. */
export function changeTensorHeader(file: string, work: (header: TensorHeader) => void): void {
  const { header, rest } = readTensorHeader(file);
  work(header);
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(file, Buffer.concat([length, text, rest]));
}
