import { closeSync, openSync, writeSync } from 'node:fs';

const BYTES = { F32: 4, BF16: 2, I64: 8 };
const product = (shape) => shape.reduce((all, size) => all * size, 1);

/** Bits of the nearest bfloat16s, ties to even; no NaN among them. */
export function toBfloat16(values) {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return Uint16Array.from(bits, (b) => (b + 0x7fff + ((b >>> 16) & 1)) >>> 16);
}

/**
 * Writes a safetensors file tensor by tensor, so that only one of them is in memory.
 * @param {string} file
 * @param {[name: string, dtype: 'F32' | 'BF16' | 'I64', shape: number[], values: () => ArrayBufferView][]} tensors
 */
export function writeSafetensors(file, tensors) {
  let offset = 0;
  const header = { __metadata__: { format: 'pt' } };
  for (const [name, dtype, shape] of tensors) {
    const end = offset + product(shape) * BYTES[dtype];
    header[name] = { dtype, shape, data_offsets: [offset, end] };
    offset = end;
  }
  const text = Buffer.from(JSON.stringify(header));
  const padding = Buffer.alloc((8 - (text.length % 8)) % 8, ' ');
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length + padding.length));
  const fd = openSync(file, 'w');
  const write = (bytes) => {
    for (let at = 0; at < bytes.length; )
      at += writeSync(fd, bytes, at, Math.min(bytes.length - at, 2 ** 30));
  };
  try {
    for (const bytes of [length, text, padding]) write(bytes);
    for (const [, , , values] of tensors) {
      const { buffer, byteOffset, byteLength } = values();
      write(new Uint8Array(buffer, byteOffset, byteLength));
    }
  } finally {
    closeSync(fd);
  }
}
