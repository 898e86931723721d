import path from 'node:path';
import { readModelShape } from '../../../ts/checkpoint/model_shape';
import { readTensors } from '../../../ts/checkpoint/safetensors';
import { memoryWork } from '../../../ts/planner/engine_request';
import { ON_DEVICE } from '../../../ts/planner/placement';
import { ONE_MODEL } from '../../../ts/planner/places';
import type { RoleSpec } from '../../../ts/planner/plan';
import { CONFORMANCE } from '../../helpers/conformance';
import { NO_KEYS } from '../../helpers/role_keys';

// What is read when a model is loaded is counted in the dtype that its files have.
const specOf = (directory: string): RoleSpec => {
  const { config: model, stored } = readModelShape(directory, 'lm', 'model.path');
  return {
    name: 'actor',
    model,
    ...(stored === null ? {} : { stored }),
    dtype: 'float32',
    masterDtype: 'float32',
    strategy: 'full_shard',
    shardSize: null,
    ulysses: 1,
    layout: ONE_MODEL,
    placement: ON_DEVICE,
    capacity: 8,
    gradientCheckpointing: false,
    activationOffload: false,
    inference: null,
    update: null,
    rollouts: [],
    keys: NO_KEYS,
  };
};

test.each([
  ['of the headers', path.join(CONFORMANCE, 'models', 'qwen2_tied', 'actor'), 'F32', 4],
  [
    'bfloat16 where there is config.json alone',
    path.resolve(__dirname, '../../../examples/plan/llama-7b'),
    'BF16',
    2,
  ],
])('dtypes %s', (_, directory, dtype, bytes) => {
  const [file] = memoryWork(specOf(directory)).load;
  expect(new Set(file?.tensors.map((tensor) => tensor.dtype))).toEqual(new Set([dtype]));
  const [first, second] = file?.tensors ?? [];
  const width = specOf(directory).model.hiddenSize;
  expect((second?.offset ?? 0) - (first?.offset ?? 0)).toBe((first?.rows ?? 0) * width * bytes);
});

test('MXFP4 takes the bytes that it has in files', () => {
  const directory = path.join(CONFORMANCE, '../mxfp4/actor');
  const [file] = memoryWork(specOf(directory)).load;
  const inFiles = [...readTensors(directory).values()].reduce((all, { bytes }) => all + bytes, 0);
  expect(file?.size).toBe(inFiles);
  const experts = file?.tensors.filter(({ param }) => /experts\.\d+\.\w+\.weight/.test(param)) ?? [];
  expect(experts).toHaveLength(2 * 4 * 2);
  expect(new Set(experts.map(({ dtype, transpose }) => `${dtype} ${transpose}`))).toEqual(
    new Set(['MXFP4 false']),
  );
  const [first, second] = experts;
  expect((second?.offset ?? 0) - (first?.offset ?? 0)).toBe((64 * 64) / 2);
  expect((second?.scales?.offset ?? 0) - (first?.scales?.offset ?? 0)).toBe((64 * 64) / 32);
});

test.each(['blocks', 'experts', 'channels'])(
  '%s: FP8 takes the bytes that it has in files, with its scales',
  (name) => {
    const directory = path.join(CONFORMANCE, '../fp8', name);
    const [file] = memoryWork(specOf(directory)).load;
    const inFiles = [...readTensors(directory).values()].filter(
      (tensor) => !tensor.name.includes('layers.2.'),
    );
    expect(file?.size).toBe(inFiles.reduce((all, { bytes }) => all + bytes, 0));
    const packed = file?.tensors.filter(({ dtype }) => dtype === 'F8_E4M3') ?? [];
    expect(packed).toHaveLength(inFiles.filter(({ dtype }) => dtype === 'F8_E4M3').length);
    // Scales of each are behind it, and the next tensor is behind them.
    for (const { label, offset, scales } of packed) {
      const stored = inFiles.filter((tensor) => tensor.name.startsWith(label));
      const [own, other] = ['F8_E4M3', 'other'].map((dtype) =>
        stored.find((tensor) => (tensor.dtype === 'F8_E4M3') === (dtype === 'F8_E4M3')),
      );
      expect((scales?.offset ?? 0) - offset).toBe(own?.bytes);
      const end = (scales?.offset ?? 0) + (other?.bytes ?? 0);
      expect(end === file?.size || file?.tensors.some((tensor) => tensor.offset === end)).toBe(true);
    }
  },
);
