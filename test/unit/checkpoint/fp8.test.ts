import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { dequantizedRows, unusedScalesNote } from '../../../ts/checkpoint/fp8';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { unpackedChunks } from '../../../ts/checkpoint/packed_chunks';
import { isPacked } from '../../../ts/checkpoint/packed_tensor';
import { readTensors, type StoredTensor } from '../../../ts/checkpoint/safetensors';
import { writeModelFiles } from '../../../ts/checkpoint/save_files';
import { planWrite } from '../../../ts/checkpoint/write_plan';
import { writeSafetensors } from '../../helpers/e2e_workspace';
import { changeTensorHeader, type HeaderEntry } from '../../helpers/tensor_header';

const FIXTURE = path.join(__dirname, '../../fixtures/fp8');
const DOWN = 'model.layers.1.mlp.down_proj.weight';
const SCALES = `${DOWN}_scale_inv`;

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-fp8-'));
  cpSync(path.join(FIXTURE, 'blocks'), dir, { recursive: true });
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const file = (): string => path.join(dir, 'model.safetensors');

const change = (name: string, changes: Partial<HeaderEntry>): void =>
  changeTensorHeader(file(), (header) => Object.assign(header[name] as HeaderEntry, changes));

const rename = (from: string, to: string): void =>
  changeTensorHeader(file(), (header) => {
    header[to] = header[from] as HeaderEntry;
    delete header[from];
  });

function changeConfig(changes: Record<string, unknown>): void {
  const config = path.join(dir, 'config.json');
  const before = JSON.parse(readFileSync(config, 'utf8'));
  writeFileSync(config, JSON.stringify({ ...before, ...changes }));
}

/** With further tensors of one number each. */
function add(...names: string[]): void {
  const tensors = [...readTensors(dir).values()].map(({ name, dtype, shape, offset, bytes }) => ({
    name,
    dtype,
    shape,
    data: readFileSync(file()).subarray(offset, offset + bytes),
  }));
  const further = names.map((name) => ({ name, dtype: 'F32', shape: [1], data: Float32Array.of(1) }));
  writeSafetensors(file(), [...tensors, ...further]);
}

test('codes are the numbers of OFP8, and products are those of float32', () => {
  const codes = Uint8Array.from({ length: 256 }, (_, code) => code);
  const { values } = dequantizedRows(codes, 0, 256, Float32Array.of(1), [1, 256]);
  // Section 5.1: exponents of bias 7, subnormal numbers below 2^-6, one NaN of either sign and no infinities.
  expect([...values.slice(0, 10)]).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map((n) => n * 2 ** -9));
  expect([values[0x38], values[0x7e], values[0x08]]).toEqual([1, 448, 2 ** -6]);
  expect([values[0x7f], values[0xff]]).toEqual([Number.NaN, Number.NaN]);
  for (let code = 0; code < 127; code++) expect(values[code + 128]).toBe(-(values[code] as number));
  expect(Object.is(values[128], -0)).toBe(true);
  const scale = Math.fround(0.1);
  const product = dequantizedRows(codes.slice(0, 127), 0, 127, Float32Array.of(scale), [1, 127]).values;
  for (let code = 0; code < 127; code++)
    expect(product[code]).toBe(Math.fround((values[code] as number) * scale));
});

test('each row and column has the scale of its block, wherever rows begin', () => {
  const ones = new Uint8Array(7 * 5).fill(0x38);
  const scales = Float32Array.from({ length: 3 * 2 }, (_, i) => i + 1);
  const whole = dequantizedRows(ones, 0, 5, scales, [3, 4]).values;
  expect([...whole]).toEqual(
    Array.from({ length: 35 }, (_, i) => 1 + 2 * Math.floor(i / 15) + (i % 5 === 4 ? 1 : 0)),
  );
  for (let row = 0; row < 7; row++)
    expect(dequantizedRows(ones.slice(0, 10), row, 5, scales, [3, 4]).values.slice(0, 5)).toEqual(
      whole.slice(5 * row, 5 * row + 5),
    );
});

test('a matrix and its scales are one tensor', () => {
  const { stored, dtypes, files, mapping, unusedScales } = loadModelDirectory(dir, 'lm');
  expect([...stored.keys()]).toEqual(mapping.map(({ hf }) => hf));
  expect(new Set(dtypes.values())).toEqual(new Set(['BF16']));
  expect(unusedScales).toEqual([]);
  const [codes, scales] = [readTensors(dir).get(DOWN), readTensors(dir).get(SCALES)] as StoredTensor[];
  const slice = files[0]?.tensors.find(({ label }) => label === DOWN);
  expect(slice).toEqual({
    param: 'layers.1.mlp.out.weight',
    row: 0,
    rows: 40,
    transpose: false,
    label: DOWN,
    dtype: 'F8_E4M3',
    offset: codes?.offset,
    scales: { path: file(), offset: scales?.offset, dtype: 'F32', blockRows: 32, blockColumns: 24 },
  });
});

test('of a layer that predicts further tokens, too', () => {
  const { predictionLayers, dtypes } = loadModelDirectory(path.join(FIXTURE, 'experts'), 'lm');
  const name = 'model.layers.2.mlp.experts.3.up_proj.weight';
  expect(predictionLayers.get(name)).toMatchObject({ dtype: 'F8_E4M3', shape: [32, 48] });
  expect(dtypes.get(name)).toBe('BF16');
  expect([...predictionLayers.keys()].some((hf) => hf.includes('_scale'))).toBe(false);
});

test('scales of activations and of a cache make no difference', () => {
  const further = [
    'model.layers.0.self_attn.q_proj.input_scale',
    'model.layers.0.self_attn.k_proj.k_scale',
    'model.layers.0.self_attn.v_scale',
    'model.layers.1.mlp.down_proj.activation_scale',
    'model.layers.1.mlp.down_proj.output_scale',
  ];
  add(...further);
  const { unusedScales, stored } = loadModelDirectory(dir, 'lm');
  expect(unusedScales).toEqual(further);
  expect(unusedScalesNote(unusedScales)).toBe(
    '5 tensors of its files make no difference, scales of activations or of keys and values in a cache, which are not quantised here: ' +
      `${further.slice(0, 3).join(', ')}, ...`,
  );
  expect(unusedScalesNote(further.slice(4))).toMatch(/^1 tensor of its files makes .*: model.*output_scale$/);
  expect(unusedScalesNote([])).toBeNull();
  expect(stored.size).toBe(loadModelDirectory(path.join(FIXTURE, 'blocks'), 'lm').stored.size);
});

test('one scale for a whole matrix, as a number or in a vector of one', () => {
  changeConfig({ quantization_config: { quant_method: 'fp8', weight_block_size: null } });
  const matrices = [...readTensors(dir).values()].filter(({ dtype }) => dtype === 'F8_E4M3');
  const written = (shape: number[]): void =>
    writeSafetensors(
      file(),
      [...readTensors(path.join(FIXTURE, 'blocks')).values()].map((tensor) => {
        const { name, dtype, offset, bytes } = tensor;
        if (name.endsWith('_scale_inv')) return { name, shape, data: Float32Array.of(2) };
        const data = readFileSync(tensor.file).subarray(offset, offset + bytes);
        return { name, dtype, shape: tensor.shape, data };
      }),
    );
  for (const shape of [[], [1], [1, 1]]) {
    written(shape);
    const { stored } = loadModelDirectory(dir, 'lm');
    for (const { name, shape: own } of matrices) expect(stored.get(name)?.packing?.block).toEqual(own);
  }
});

test.each([
  [
    'missing scales',
    () => rename(SCALES, 'spare'),
    /down_proj.weight': expected its scales beside it, .*weight_scale_inv or .*weight_scale, which no file has/,
  ],
  [
    'a missing weight',
    () => rename(DOWN, 'spare.weight'),
    /down_proj.weight_scale_inv': these are scales, and no file has .*down_proj.weight/,
  ],
  [
    'scales of nothing',
    () => add('model.nothing_scale'),
    /model.nothing_scale': these are scales, and no file has what they belong to, model.nothing: fetch/,
  ],
  [
    'scales of another shape',
    () => change(SCALES, { shape: [3, 2] }),
    /down_proj.weight_scale_inv': expected the shape \[2, 3\] or \[1, 1\] .*down_proj.weight \[40, 72\], got \[3, 2\]/,
  ],
  [
    'scales of another dtype',
    () => change(SCALES, { dtype: 'I32' }),
    /down_proj.weight_scale_inv': expected scales in F32, F16, BF16 or F8_E8M0, got I32/,
  ],
  [
    'weights in E5M2',
    () => change(DOWN, { dtype: 'F8_E5M2' }),
    /down_proj.weight': expected F8_E4M3, because there are scales for it, .*got F8_E5M2/,
  ],
  [
    'a vector',
    () => change(DOWN, { shape: [40 * 72] }),
    /down_proj.weight': expected a matrix, or one for each expert, in F8_E4M3, got the shape \[2880\]/,
  ],
  [
    'a model of another width',
    () => {
      change(DOWN, { shape: [72, 40] });
      change(SCALES, { shape: [3, 2] });
    },
    /1 of the wrong shape:\s+.*down_proj.weight: expected \[40, 72\] but the file has \[72, 40\]/,
  ],
  [
    'scales twice',
    () => add(`${DOWN}_scale`),
    /down_proj.weight_scale': .*down_proj.weight_scale_inv is there as well/,
  ],
  [
    'no quantization_config',
    () => changeConfig({ quantization_config: null }),
    /14 of an unsupported dtype .*:\s+.*: F8_E4M3 without a quantization_config in config.json: expected the one/,
  ],
  [
    'blocks of another size',
    () => changeConfig({ quantization_config: { quant_method: 'fp8', weight_block_size: [128, 128] } }),
    /expected the shape \[1, 1\] by the quantization_config of config.json/,
  ],
])('%s', (_, spoil, message) => {
  spoil();
  expect(() => loadModelDirectory(dir, 'lm')).toThrow(message);
});

test('what is saved is bfloat16, and says so', () => {
  const model = loadModelDirectory(dir, 'lm');
  const out = path.join(dir, 'out');
  cpSync(path.join(FIXTURE, 'blocks'), out, { recursive: true });
  const plan = planWrite(out, 'model', model.mapping, (hf) => model.dtypes.get(hf) ?? 'F32');
  writeModelFiles(model, out, plan, null);
  const config = JSON.parse(readFileSync(path.join(out, 'config.json'), 'utf8'));
  expect(config).not.toHaveProperty('quantization_config');
  expect(config).toMatchObject({ dtype: 'bfloat16', intermediate_size: 72 });
});

describe('numbers without the core', () => {
  /** Of a matrix of ones, 4 x 6 in blocks of 2 x 4, with these scales. */
  function numbers(scales: ArrayBufferView, dtype: string, codes = new Uint8Array(24).fill(0x38)): number[] {
    writeSafetensors(file(), [
      { name: 'w', dtype: 'F8_E4M3', shape: [4, 6], data: codes },
      { name: 'w_scale', dtype, shape: [2, 2], data: scales },
    ]);
    const tensors = readTensors(dir);
    const [w, scale] = [tensors.get('w'), tensors.get('w_scale')] as [StoredTensor, StoredTensor];
    const scaleDtype = dtype as 'F32';
    const packed = {
      ...w,
      packing: { scales: scale, scaleDtype, block: [2, 4] as const, transposed: false },
    };
    if (!isPacked(packed)) throw new Error('not packed');
    return [...unpackedChunks(packed)].flatMap(({ bytes }) => [...new Float32Array(bytes.buffer)]);
  }
  const BLOCKS = [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 2, 2, 2, 2, 3, 3];

  test.each([
    ['F32', Float32Array.of(1, 2, 0.5, 3), [1, 2, 0.5, 3]],
    ['BF16', Uint16Array.of(0x3f80, 0x4000, 0x3f00, 0x4040), [1, 2, 0.5, 3]],
    ['F16', Uint16Array.of(0x3c00, 0x4000, 0x3800, 0x4200), [1, 2, 0.5, 3]],
    ['F8_E8M0', Uint8Array.of(127, 128, 126, 0), [1, 2, 0.5, 2 ** -127]],
  ])('scales in %s', (dtype, scales, values) => {
    expect(numbers(scales, dtype)).toEqual(BLOCKS.map((block) => values[block]));
  });

  test.each([
    ['F32', Float32Array.of(1, Number.NaN, 1, 1), /a scale is NaN or infinity \(scale 1 of a matrix\)/],
    ['F16', Uint16Array.of(1, 1, 0x7c00, 1), /a scale is NaN or infinity \(scale 2 of a matrix\)/],
    ['F8_E8M0', Uint8Array.of(1, 1, 1, 255), /a scale is NaN \(0xff, scale 3 of a matrix\)/],
    ['F32', Float32Array.of(1, 1, 0, 1), /w_scale .* a scale is 0 for element 12 of w, which is not: fetch/],
  ])('scales in %s that are no numbers, or 0', (dtype, scales, message) => {
    expect(() => numbers(scales, dtype)).toThrow(message);
  });

  test('zeros may have a scale of 0', () => {
    const codes = new Uint8Array(24).fill(0x80);
    expect(numbers(new Float32Array(4), 'F32', codes)).toEqual(new Array(24).fill(-0));
  });
});
