import { cpSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { dequantized } from '../../../ts/checkpoint/mxfp4';
import { writeModelFiles } from '../../../ts/checkpoint/save_files';
import { planWrite } from '../../../ts/checkpoint/write_plan';
import {
  changeTensorHeader,
  type HeaderEntry,
  readTensorHeader,
  type TensorHeader,
} from '../../helpers/tensor_header';

const FIXTURE = path.join(__dirname, '../../fixtures/mxfp4');
const ACTOR = path.join(FIXTURE, 'actor');
const FILES = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'] as const;
const GATE_UP = 'model.layers.0.mlp.experts.gate_up_proj';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-mxfp4-'));
  cpSync(ACTOR, dir, { recursive: true });
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** Changes the header of the file that has the tensor, and the index with it. */
function change(tensor: string, work: (header: TensorHeader) => void): void {
  const index = path.join(dir, 'model.safetensors.index.json');
  for (const name of FILES) {
    const file = path.join(dir, name);
    if (tensor in readTensorHeader(file).header) changeTensorHeader(file, work);
  }
  const held = FILES.flatMap((name) =>
    Object.keys(readTensorHeader(path.join(dir, name)).header)
      .filter((key) => key !== '__metadata__')
      .map((key) => [key, name]),
  );
  writeFileSync(index, JSON.stringify({ weight_map: Object.fromEntries(held) }));
}

const rename = (from: string, to: string): void =>
  change(from, (header) => {
    header[to] = header[from] as HeaderEntry;
    delete header[from];
  });

const reshape = (name: string, shape: number[]): void =>
  change(name, (header) => {
    (header[name] as HeaderEntry).shape = shape;
  });

test('values under every scale are those of transformers, bit for bit', () => {
  const expected = JSON.parse(readFileSync(path.join(FIXTURE, 'values.json'), 'utf8')) as number[][];
  expect(expected).toHaveLength(255);
  // Sixteen codes, twice: a block of its own for each scale, which is a row each.
  const pairs = Array.from({ length: 8 }, (_, i) => (2 * i) | ((2 * i + 1) << 4));
  const blocks = Uint8Array.from(expected.flatMap(() => [...pairs, ...pairs]));
  const bits = dequantized(
    blocks,
    Uint8Array.from(expected, (_, scale) => scale),
    255,
  );
  for (const [scale, values] of expected.entries())
    expect([scale, ...values.map((_, i) => bits[i * 255 + scale])]).toEqual([scale, ...values]);
  expect(new Set(dequantized(new Uint8Array(16), Uint8Array.of(255), 1))).toEqual(new Set([0x7fc0]));
});

test('experts are one tensor each, with their blocks and scales wherever they are', () => {
  const { stored, dtypes, files } = loadModelDirectory(ACTOR, 'lm');
  expect(stored.get(GATE_UP)).toMatchObject({ dtype: 'MXFP4', shape: [4, 64, 64] });
  expect(stored.get('model.layers.1.mlp.experts.down_proj')).toMatchObject({ shape: [4, 32, 64] });
  expect(new Set(dtypes.values())).toEqual(new Set(['BF16']));
  const { header, rest } = readTensorHeader(path.join(ACTOR, FILES[0]));
  const [scaleHeader, scaleStart] = [
    readTensorHeader(path.join(ACTOR, FILES[1])).header,
    statSync(path.join(ACTOR, FILES[1])).size - readTensorHeader(path.join(ACTOR, FILES[1])).rest.length,
  ];
  const start = statSync(path.join(ACTOR, FILES[0])).size - rest.length;
  const slice = files
    .flatMap(({ tensors }) => tensors)
    .find(({ param }) => param === 'layers.0.moe.experts.3.in.weight');
  expect(slice).toEqual({
    param: 'layers.0.moe.experts.3.in.weight',
    row: 0,
    rows: 64,
    transpose: false,
    label: GATE_UP,
    dtype: 'MXFP4',
    offset: start + (header[`${GATE_UP}_blocks`]?.data_offsets[0] ?? 0) + 3 * 64 * 32,
    scales: {
      path: path.join(ACTOR, FILES[1]),
      offset: scaleStart + (scaleHeader[`${GATE_UP}_scales`]?.data_offsets[0] ?? 0) + 3 * 64 * 2,
      dtype: 'F8_E8M0',
      blockRows: 1,
      blockColumns: 32,
    },
  });
});

test.each([
  [
    'missing scales',
    () => rename(`${GATE_UP}_scales`, 'spare'),
    /gate_up_proj_blocks': expected .*gate_up_proj_scales beside it/,
  ],
  [
    'missing blocks',
    () => rename(`${GATE_UP}_blocks`, 'spare'),
    /gate_up_proj_scales': expected .*gate_up_proj_blocks beside it/,
  ],
  [
    'scales of another shape',
    () => reshape(`${GATE_UP}_scales`, [4, 32, 4]),
    /gate_up_proj_scales': expected the shape \[4, 64, 2\], .*got \[4, 32, 4\]/,
  ],
  [
    'blocks of another length',
    () => reshape(`${GATE_UP}_blocks`, [4, 64, 4, 8]),
    /expected the shape \[experts, outputs, blocks, 16\], got \[4, 64, 4, 8\]/,
  ],
  [
    'blocks of another dtype',
    () =>
      change(`${GATE_UP}_blocks`, (header) => {
        (header[`${GATE_UP}_blocks`] as HeaderEntry).dtype = 'I8';
      }),
    /gate_up_proj_blocks': expected U8, got I8/,
  ],
  [
    'a model of another width',
    () => {
      reshape(`${GATE_UP}_blocks`, [4, 32, 4, 16]);
      reshape(`${GATE_UP}_scales`, [4, 32, 4]);
    },
    /1 of the wrong shape:\s+.*gate_up_proj_blocks: expected \[4, 64, 2, 16\] but the file has \[4, 32, 4, 16\]/,
  ],
  [
    'both kinds of weights',
    () => rename('model.norm.weight', GATE_UP),
    /gate_up_proj_blocks': .*gate_up_proj is there as well/,
  ],
])('%s', (_, spoil, message) => {
  spoil();
  expect(() => loadModelDirectory(dir, 'lm')).toThrow(message);
});

test('what is saved is bfloat16, and says so', () => {
  const model = loadModelDirectory(ACTOR, 'lm');
  const plan = planWrite(dir, 'model', model.mapping, (hf) => model.dtypes.get(hf) ?? 'F32');
  writeModelFiles(model, dir, plan, null);
  const config = JSON.parse(readFileSync(path.join(dir, 'config.json'), 'utf8'));
  expect(config).not.toHaveProperty('quantization_config');
  expect(config).toMatchObject({ torch_dtype: 'bfloat16', num_local_experts: 4 });
});
