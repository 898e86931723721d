import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { writeSafetensors } from './e2e_workspace';
import { floats, readSafetensors } from './safetensors';

/** Not negative, in the order of their codes (OFP8, E4M3). */
const E4M3 = Array.from({ length: 127 }, (_, code) =>
  code < 8 ? code / 512 : (8 + (code % 8)) * 2 ** (Math.floor(code / 8) - 10),
);
const LARGEST = E4M3[126] as number;

export interface Fp8Copies {
  /** With matrices in blocks. */
  packed: string;
  /** With what these are, in float32. */
  values: string;
}

/** A model with matrices of layers, also those of experts in one tensor, quantised in blocks. `block` may be larger than a matrix. */
export function writeFp8Model(from: string, to: string, block: readonly [number, number]): Fp8Copies {
  const [packed, values] = [join(to, 'packed'), join(to, 'values')];
  const tensors = readSafetensors(join(from, 'model.safetensors'));
  const all = Object.entries(tensors).map(([name, { shape }]) => {
    const data = Float32Array.from(floats(tensors, name));
    const matrix = /layers\..*(_proj\.weight|experts\.\w+_proj)$/.test(name);
    return { name, shape, data, quantized: matrix ? quantized(data, shape, block) : null };
  });
  for (const directory of [packed, values]) {
    mkdirSync(directory, { recursive: true });
    for (const file of readdirSync(from)) copyFileSync(join(from, file), join(directory, file));
  }
  writeSafetensors(
    join(values, 'model.safetensors'),
    all.map(({ name, shape, data, quantized }) => ({ name, shape, data: quantized?.values ?? data })),
  );
  writeSafetensors(
    join(packed, 'model.safetensors'),
    all.flatMap(({ name, shape, data, quantized }) =>
      quantized === null
        ? [{ name, shape, data }]
        : [
            { name: `${name}_scale_inv`, shape: quantized.grid, data: quantized.scales },
            { name, shape, data: quantized.codes, dtype: 'F8_E4M3' },
          ],
    ),
  );
  const config = join(packed, 'config.json');
  writeFileSync(
    config,
    JSON.stringify({
      ...JSON.parse(readFileSync(config, 'utf8')),
      quantization_config: { quant_method: 'fp8', fmt: 'e4m3', weight_block_size: block },
    }),
  );
  return { packed, values };
}

function quantized(data: Float32Array, shape: readonly number[], [height, width]: readonly [number, number]) {
  const [rows, columns] = shape.slice(-2) as [number, number];
  const grid = [...shape.slice(0, -2), Math.ceil(rows / height), Math.ceil(columns / width)];
  const [across, down] = [Math.ceil(columns / width), Math.ceil(rows / height)];
  const scaleAt = (i: number): number => {
    const [part, row, column] = [Math.floor(i / rows / columns), Math.floor(i / columns) % rows, i % columns];
    return (part * down + Math.floor(row / height)) * across + Math.floor(column / width);
  };
  const scales = new Float32Array(grid.reduce((count, extent) => count * extent, 1));
  data.forEach((value, i) => {
    scales[scaleAt(i)] = Math.max(scales[scaleAt(i)] as number, Math.abs(value) / LARGEST);
  });
  const codes = Uint8Array.from(data, (value, i) => {
    const share = Math.abs(value) / (scales[scaleAt(i)] as number);
    const above = E4M3.findIndex((number) => number >= share);
    const code = above === -1 ? 126 : above;
    return value < 0 ? code + 128 : code;
  });
  const values = Float32Array.from(codes, (code, i) => {
    const number = (E4M3[code % 128] as number) * (scales[scaleAt(i)] as number);
    return code < 128 ? number : -number;
  });
  return { grid, scales, codes, values };
}
