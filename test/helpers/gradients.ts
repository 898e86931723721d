import { loadModelDirectory, type ModelReading } from '../../ts/checkpoint/model_dir';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { floats, type TestTensor } from './safetensors';

/** The gradients that the engine `name` has kept, by the names of the model's files: those of `tensors`, which have their shapes. */
export async function* gradientsOf(
  group: WorkerGroup,
  name: string,
  model: string,
  head: 'lm' | 'value',
  tensors: Record<string, TestTensor>,
  reading: ModelReading = {},
): AsyncGenerator<[name: string, gradient: number[]]> {
  const { mapping } = loadModelDirectory(model, head, reading);
  for (const [hf, { shape }] of Object.entries(tensors)) {
    const parts = mapping.filter((m) => m.hf === hf);
    if (parts.length === 0) throw new Error(`no parameter maps to ${hf}`);
    const ours: number[] = [];
    for (const { param, row, rows, transpose, part } of parts) {
      const [whole] = await group.callAll(name, 'getTensor', () => ['grad', param]);
      const width = shape.slice(part === undefined ? 1 : 2).reduce((n, d) => n * d, 1);
      const columns = transpose ? (shape.at(-2) as number) : width;
      const own = (whole as Float32Array).subarray(row * columns, (row + rows) * columns);
      if (!transpose) for (const value of own) ours.push(value);
      else
        for (let c = 0; c < columns; c++)
          for (let r = 0; r < rows; r++) ours.push(own[r * columns + c] as number);
    }
    yield [hf, ours];
  }
}

/** These gradients are those of `expected` times `factor`: within 1e-4 of each tensor's largest entry. */
export async function expectGradients(
  group: WorkerGroup,
  name: string,
  model: string,
  head: 'lm' | 'value',
  expected: Record<string, TestTensor>,
  factor = 1,
  reading: ModelReading = {},
): Promise<void> {
  for await (const [hf, ours] of gradientsOf(group, name, model, head, expected, reading)) {
    const theirs = Array.from(floats(expected, hf), (v) => v * factor);
    const largest = theirs.reduce((m, v) => Math.max(m, Math.abs(v)), 1e-12);
    theirs.forEach((value, i) => {
      if (!(Math.abs(value - (ours[i] as number)) <= 1e-4 * largest))
        throw new Error(`${hf}[${i}]: ${ours[i]} against ${value}`);
    });
  }
}
