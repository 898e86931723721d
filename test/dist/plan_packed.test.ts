// `troupe plan` of models whose files are quantised.
import { cpSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { formatBytes } from '../../ts/base/byte_size';
import { readTensors } from '../../ts/checkpoint/safetensors';
import { writeSafetensors } from '../helpers/e2e_workspace';
import { config, engines, troupe } from '../helpers/planned';

const directory = mkdtempSync(join(tmpdir(), 'troupe-plan-packed-'));
afterAll(async () => {
  rmSync(directory, { recursive: true, force: true });
  await engines.close();
});

test('a model in MXFP4: what its files have, and what it becomes', () => {
  const model = `actor_rollout_ref.model.path=${resolve(__dirname, '../fixtures/mxfp4/actor')}`;
  const lengths = ['data.max_prompt_length=64', 'data.max_response_length=64'];
  const { code, stdout } = troupe(config, model, ...lengths, '--gpus', '2', '--gpu-memory', '80GiB');
  expect(code).toBe(0);
  // 49152 values in experts with 17 bytes per 32 of them, and 55376 others in bfloat16.
  const files = (49152 / 32) * 17 + 55376 * 2;
  expect(stdout).toContain(
    `\nactor: ${formatBytes(files)} in its files, with experts in MXFP4; ${formatBytes(2 * 104528)} in bfloat16, over all ranks\n`,
  );
});

test('a model in FP8: what its files have, what it becomes, and what makes no difference', () => {
  const model = join(directory, 'fp8');
  cpSync(resolve(__dirname, '../fixtures/fp8/channels'), model, { recursive: true });
  const before = [...readTensors(model).values()];
  const files = before.reduce((all, { bytes }) => all + bytes, 0);
  const count = before
    .filter(({ name }) => !name.endsWith('_scale'))
    .reduce((all, { shape }) => all + shape.reduce((product, extent) => product * extent, 1), 0);
  const unused = 'model.layers.0.self_attn.q_proj.input_scale';
  writeSafetensors(join(model, 'model.safetensors'), [
    ...before.map(({ name, dtype, shape, file, offset, bytes }) => {
      const data = readFileSync(file).subarray(offset, offset + bytes);
      return { name, dtype, shape, data };
    }),
    { name: unused, shape: [1], data: Float32Array.of(1) },
  ]);
  const lengths = ['data.max_prompt_length=64', 'data.max_response_length=64'];
  const path = `actor_rollout_ref.model.path=${model}`;
  const { code, stdout } = troupe(config, path, ...lengths, '--gpus', '2', '--gpu-memory', '80GiB');
  expect(code).toBe(0);
  expect(stdout).toContain(
    `\nactor: ${formatBytes(files)} in its files, with matrices in FP8; ${formatBytes(2 * count)} in bfloat16, over all ranks\n` +
      `actor: 1 tensor of its files makes no difference, scales of activations or of keys and values in a cache, which are not quantised here: ${unused}\n`,
  );
});
