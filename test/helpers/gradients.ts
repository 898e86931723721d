import { loadModelDirectory } from '../../ts/checkpoint/model_dir';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { floats, type TestTensor } from './safetensors';

/**
 * The gradients that the engine `name` has kept are those of `expected`, by the names of the model's files, times `factor`: within 1e-4 of each tensor's largest entry.
 */
export async function expectGradients(
  group: WorkerGroup,
  name: string,
  model: string,
  head: 'lm' | 'value',
  expected: Record<string, TestTensor>,
  factor = 1,
): Promise<void> {
  const { mapping } = loadModelDirectory(model, head);
  for (const [hf, { shape }] of Object.entries(expected)) {
    const slice = mapping.find((m) => m.hf === hf);
    if (slice === undefined) throw new Error(`no parameter maps to ${hf}`);
    const [whole] = await group.callAll(name, 'getTensor', () => ['grad', slice.param]);
    const width = (shape.length === 2 ? shape[1] : 1) as number;
    const ours = (whole as Float32Array).subarray(slice.row * width, (slice.row + slice.rows) * width);
    const theirs = Array.from(floats(expected, hf), (v) => v * factor);
    const largest = theirs.reduce((m, v) => Math.max(m, Math.abs(v)), 1e-12);
    theirs.forEach((value, i) => {
      if (!(Math.abs(value - (ours[i] as number)) <= 1e-4 * largest))
        throw new Error(`${hf}[${i}]: ${ours[i]} against ${value}`);
    });
  }
}
