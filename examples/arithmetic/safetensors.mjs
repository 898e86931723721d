// Tensors of float32 in a safetensors file: u64 header length, JSON header padded to 8 bytes, then the tensors.
import { readFileSync, writeFileSync } from 'node:fs';

/** @typedef {{ name: string, shape: number[], data: Float32Array }} Tensor */

/** @param {string} file @param {Tensor[]} tensors in the order in which they are stored */
export function writeTensors(file, tensors) {
  const header = { __metadata__: { format: 'pt' } };
  let end = 0;
  for (const { name, shape, data } of tensors) {
    header[name] = { dtype: 'F32', shape, data_offsets: [end, end + data.byteLength] };
    end += data.byteLength;
  }
  const json = JSON.stringify(header);
  const padded = Buffer.from(json.padEnd(Math.ceil(json.length / 8) * 8, ' '));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  const bytes = tensors.map(({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  writeFileSync(file, Buffer.concat([length, padded, ...bytes]));
}

/** @returns {Tensor[]} by name */
export function readTensors(file) {
  const bytes = readFileSync(file);
  const start = 8 + Number(bytes.readBigUInt64LE(0));
  const { __metadata__, ...tensors } = JSON.parse(bytes.toString('utf8', 8, start));
  return Object.entries(tensors)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, { dtype, shape, data_offsets: offsets }]) => {
      if (dtype !== 'F32') throw new Error(`${file}: expected tensors of F32, but ${name} is ${dtype}`);
      const [from, to] = offsets.map((offset) => start + offset);
      return { name, shape, data: new Float32Array(Uint8Array.from(bytes.subarray(from, to)).buffer) };
    });
}
