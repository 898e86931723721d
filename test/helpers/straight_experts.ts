import { copyFileSync, mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { writeSafetensors } from './e2e_workspace';
import { floats, readSafetensors } from './safetensors';

/** Writes a model whose experts lie transposed in one tensor per layer (Qwen3-VL, as published) as transformers 5 writes it: not transposed. */
export function writeStraightExperts(from: string, to: string): void {
  mkdirSync(to, { recursive: true });
  for (const name of readdirSync(from)) copyFileSync(join(from, name), join(to, name));
  const tensors = readSafetensors(join(from, 'model.safetensors'));
  const straight = Object.entries(tensors).map(([name, { shape }]) => {
    const data = Float32Array.from(floats(tensors, name));
    return name.includes('.mlp.experts.') ? turned(name, shape, data) : { name, shape, data };
  });
  writeSafetensors(join(to, 'model.safetensors'), straight);
}

function turned(name: string, shape: readonly number[], data: Float32Array) {
  const [experts, rows, columns] = shape as [number, number, number];
  const out = new Float32Array(data.length);
  for (let e = 0; e < experts; e++)
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++)
        out[(e * columns + c) * rows + r] = data[(e * rows + r) * columns + c] as number;
  return { name, shape: [experts, columns, rows], data: out };
}
