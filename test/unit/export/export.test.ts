import { createHash } from 'node:crypto';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { convertFloats } from '../../../ts/checkpoint/float_bytes';
import { readTensors } from '../../../ts/checkpoint/safetensors';
import { type ExportOptions, exportCheckpoint } from '../../../ts/export/export_checkpoint';
import { findCheckpoint } from '../../../ts/export/find_checkpoint';
import { CheckpointStore } from '../../../ts/run/checkpoint_store';
import { CONFORMANCE } from '../../helpers/conformance';
import { languageModel } from '../../helpers/language_model';
import { writeStraightExperts } from '../../helpers/straight_experts';
import { visionModel } from '../../helpers/vision_model';

const MODELS = path.join(CONFORMANCE, 'models');
const model = (name: string, role = 'actor') => path.join(MODELS, name, role);

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-export-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const at = (...parts: string[]) => path.join(dir, ...parts);

interface Read {
  dtype: string;
  shape: number[];
  bytes: Buffer;
}

/** By name, over all files. */
function tensorsIn(directory: string): Record<string, Read> {
  return Object.fromEntries(
    [...readTensors(directory)].map(([name, { dtype, shape, file, offset, bytes }]) => [
      name,
      { dtype, shape, bytes: readFileSync(file).subarray(offset, offset + bytes) },
    ]),
  );
}

const printed = (tensors: Record<string, Read>) =>
  Object.fromEntries(
    Object.entries(tensors).map(([name, { dtype, shape, bytes }]) => [
      name,
      `${dtype} [${shape}] ${createHash('sha256').update(bytes).digest('hex')}`,
    ]),
  );
const expectSame = (a: string, b: string) => expect(printed(tensorsIn(a))).toEqual(printed(tensorsIn(b)));

/** Of a model with images whose language model alone is read, that one. */
function whatComesOut(source: string): { config: object; tensors: Record<string, Read> } {
  const config = JSON.parse(readFileSync(path.join(source, 'config.json'), 'utf8'));
  const tensors = tensorsIn(source);
  if (config.model_type !== 'qwen3_5_moe') return { config, tensors };
  const { text_config: text, transformers_version } = config;
  return {
    config: { ...text, transformers_version, architectures: ['Qwen3_5MoeForCausalLM'] },
    tensors: languageModel(tensors),
  };
}

test.each(readdirSync(MODELS))('%s comes out as it went in, also over many files', async (name) => {
  const source = model(name);
  const expected = whatComesOut(source);
  for (const [out, maxShardBytes] of [
    ['whole', undefined],
    ['many', 20_000],
  ] as const) {
    await exportCheckpoint(source, at(out), maxShardBytes === undefined ? {} : { maxShardBytes });
    expect(printed(tensorsIn(at(out)))).toEqual(printed(expected.tensors));
    expect(JSON.parse(readFileSync(at(out, 'config.json'), 'utf8'))).toEqual(expected.config);
  }
  // Layers that predict further tokens have a file of their own.
  const predicts = Object.keys(expected.tensors).some((hf) => hf.startsWith('mtp.'));
  expect(readdirSync(at('whole')).filter((file) => file.endsWith('.safetensors'))).toEqual(
    predicts
      ? ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
      : ['model.safetensors'],
  );
  const many = readdirSync(at('many')).filter((file) => file.endsWith('.safetensors'));
  expect(many.length).toBeGreaterThan(2);
  expect(many[0]).toBe(`model-00001-of-${String(many.length).padStart(5, '0')}.safetensors`);
  expect(existsSync(at('many', 'model.safetensors.index.json'))).toBe(true);
});

test.each(['qwen3_5', 'qwen3_5_moe'] as const)(
  '%s comes out with its tower, or as its language model',
  async (name) => {
    const { model: source } = visionModel(name).options;
    const config = (of: string) => JSON.parse(readFileSync(path.join(of, 'config.json'), 'utf8'));
    await exportCheckpoint(source, at('whole'));
    expectSame(at('whole'), source);
    expect(config(at('whole'))).toEqual(config(source));
    expect(existsSync(at('whole', 'preprocessor_config.json'))).toBe(true);
    await exportCheckpoint(source, at('text'), { readsImages: false });
    expect(printed(tensorsIn(at('text')))).toEqual(printed(languageModel(tensorsIn(source))));
    expect(config(at('text'))).toMatchObject({ model_type: `${name}_text` });
    expect(existsSync(at('text', 'preprocessor_config.json'))).toBe(false);
    // The dtype of what is written stands wherever config.json has one.
    writeFileSync(
      at('whole', 'config.json'),
      JSON.stringify({
        ...config(source),
        text_config: { ...config(source).text_config, dtype: 'float32' },
        vision_config: { ...config(source).vision_config, torch_dtype: 'float32' },
      }),
    );
    await exportCheckpoint(at('whole'), at('narrow'), { dtype: 'bfloat16' });
    expect(config(at('narrow'))).toMatchObject({
      dtype: 'bfloat16',
      text_config: { dtype: 'bfloat16' },
      vision_config: { torch_dtype: 'bfloat16' },
    });
  },
);

test('a mixture of Qwen3-VL comes out as it went in, its experts transposed or not', async () => {
  const { model: source } = visionModel('qwen3_vl_moe').options;
  writeStraightExperts(source, at('straight'));
  const of = (where: string) => tensorsIn(where)['model.language_model.layers.2.mlp.experts.gate_up_proj'];
  expect([of(source)?.shape, of(at('straight'))?.shape]).toEqual([
    [6, 32, 24],
    [6, 24, 32],
  ]);
  for (const from of [source, at('straight')]) {
    await exportCheckpoint(from, at(`out_${path.basename(from)}`));
    expectSame(at(`out_${path.basename(from)}`), from);
  }
});

test('in bfloat16, with a config that says so', async () => {
  const source = model('qwen3_headdim');
  await exportCheckpoint(source, at('out'), { dtype: 'bfloat16' });
  const config = JSON.parse(readFileSync(at('out', 'config.json'), 'utf8'));
  expect(config.dtype ?? config.torch_dtype).toBe('bfloat16');
  const exact = tensorsIn(source);
  for (const [name, { dtype, shape, bytes }] of Object.entries(tensorsIn(at('out')))) {
    expect([dtype, shape]).toEqual(['BF16', exact[name]?.shape]);
    const wrong = Array.from({ length: bytes.length / 2 }, (_, i) => {
      const wide = exact[name]?.bytes.readFloatLE(4 * i) as number;
      const narrow = Buffer.from([0, 0, bytes[2 * i] as number, bytes[2 * i + 1] as number]).readFloatLE();
      // Half of the last of 8 significant bits.
      return Math.abs(narrow - wide) > 2 ** (Math.floor(Math.log2(Math.abs(wide))) - 8);
    });
    expect(wrong).not.toContain(true);
  }
  // And back: nothing is lost.
  await exportCheckpoint(at('out'), at('back'), { dtype: 'float32' });
  await exportCheckpoint(at('back'), at('again'), { dtype: 'bfloat16' });
  expectSame(at('again'), at('out'));
});

describe('conversions', () => {
  const floats = (...values: number[]) => new Uint8Array(Float32Array.from(values).buffer);
  const halves = (...bits: number[]) => new Uint8Array(Uint16Array.from(bits).buffer);
  const words = ({ bytes }: { bytes: Uint8Array | null }) =>
    Array.from(new Uint16Array((bytes as Uint8Array).slice().buffer));
  const numbers = ({ bytes }: { bytes: Uint8Array | null }) =>
    Array.from(new Float32Array((bytes as Uint8Array).slice().buffer));

  test('float32 to bfloat16 rounds to nearest, ties to even', () => {
    const values = [1, -2.5, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, 0, -0, 1e-40];
    expect(words(convertFloats(floats(...values), 'F32', 'BF16'))).toEqual([
      0x3f80, 0xc020, 0x3f80, 0x3f82, 0x3f81, 0, 0x8000, 1,
    ]);
  });

  test('float16, denormals too, to float32 and bfloat16', () => {
    const source = halves(0x3c00, 0xc500, 0x7bff, 0x0400, 0x0001, 0x83ff, 0x8000);
    const expected = [1, -5, 65504, 2 ** -14, 2 ** -24, -1023 * 2 ** -24, -0];
    expect(numbers(convertFloats(source, 'F16', 'F32'))).toEqual(expected);
    expect(words(convertFloats(halves(0x3c00, 0x3c01), 'F16', 'BF16'))).toEqual([0x3f80, 0x3f80]);
  });

  test('bfloat16 to float32', () => {
    expect(numbers(convertFloats(halves(0x3f80, 0xc020, 0x8000), 'BF16', 'F32'))).toEqual([1, -2.5, -0]);
  });

  test.each([
    ['F32', 'same', floats(1, Number.NaN), { index: 1, overflow: false }],
    ['F32', 'BF16', floats(Number.NEGATIVE_INFINITY), { index: 0, overflow: false }],
    ['F32', 'BF16', floats(1, 2, 3.4e38), { index: 2, overflow: true }],
    ['F16', 'F32', halves(0xfc00), { index: 0, overflow: false }],
    ['BF16', 'same', halves(0x3f80, 0x7f81), { index: 1, overflow: false }],
  ] as const)('%s to %s finds what is no finite number', (from, to, source, bad) => {
    expect(convertFloats(source, from, to)).toEqual({ bytes: null, bad });
  });
});

describe('refuses', () => {
  const refuses = async (source: string, o: ExportOptions, expected: object) => {
    await expect(exportCheckpoint(source, at('out'), o)).rejects.toMatchObject(expected);
    expect(readdirSync(dir).filter((name) => name === 'out' || name.startsWith('.'))).toEqual([]);
  };
  const message = (pattern: RegExp) => ({ message: expect.stringMatching(pattern) });

  test('what is there already', async () => {
    mkdirSync(at('mine'));
    writeFileSync(at('mine', 'thesis.txt'), '');
    await expect(exportCheckpoint(model('gemma2'), at('mine'))).rejects.toMatchObject({
      code: 'IO',
      ...message(/mine exists already: choose another directory/),
    });
    expect(readdirSync(at('mine'))).toEqual(['thesis.txt']);
    symlinkSync('nowhere', at('link'));
    await expect(exportCheckpoint(model('gemma2'), at('link'))).rejects.toThrow(/link exists already/);
    expect(readlinkSync(at('link'))).toBe('nowhere');
    symlinkSync('loop', at('loop'));
    await expect(exportCheckpoint(model('gemma2'), at('loop', 'out'))).rejects.toMatchObject({
      code: 'IO',
      ...message(/cannot write .*loop\/out: ELOOP/),
    });
  });

  test('what is no checkpoint', async () => {
    await refuses(at('missing'), {}, message(/missing is not a directory/));
    mkdirSync(at('empty'));
    await refuses(at('empty'), {}, message(/empty holds no model: expected a run directory/));
    mkdirSync(at('torn'));
    writeFileSync(at('torn', 'trainer.json'), '{}');
    await refuses(
      at('torn'),
      {},
      message(/torn is a checkpoint without actor\/engine\.json and critic\/engine\.json: .* copy it anew/),
    );
    await refuses(model('gemma2'), { mergeLora: true }, message(/holds a whole model and no adapters/));
    await refuses(
      model('gemma2'),
      { readsImages: true },
      message(/reads text alone: leave --read-images out/),
    );
    await refuses(model('gemma2'), { role: 'critic' }, message(/no value head: leave --role critic out/));
  });

  test('weights that are no numbers, naming tensor and element', async () => {
    mkdirSync(at('bad'));
    for (const file of readdirSync(model('qwen3_headdim')))
      writeFileSync(at('bad', file), readFileSync(path.join(model('qwen3_headdim'), file)));
    const tensor = readTensors(at('bad')).get('model.norm.weight');
    const bytes = readFileSync(at('bad', 'model.safetensors'));
    bytes.writeFloatLE(Number.NaN, (tensor?.offset as number) + 4 * 7);
    writeFileSync(at('bad', 'model.safetensors'), bytes);
    await refuses(
      at('bad'),
      {},
      {
        code: 'NON_FINITE',
        ...message(/tensor model\.norm\.weight in .*: element 7 is NaN or infinity/),
      },
    );
    bytes.writeFloatLE(3.4e38, (tensor?.offset as number) + 4 * 7);
    writeFileSync(at('bad', 'model.safetensors'), bytes);
    await refuses(at('bad'), { dtype: 'bfloat16' }, message(/element 7 does not fit BF16/));
  });
});

test('weights of a run that are not as they were saved are refused', async () => {
  const store = new CheckpointStore<object>(at('run'));
  const step = await store.save(3, {}, async (directory) => {
    cpSync(model('gpt2'), path.join(directory, 'actor'), { recursive: true });
    writeFileSync(path.join(directory, 'actor/engine.json'), '{"role":"actor"}');
  });
  await exportCheckpoint(step, at('sound'));
  const weights = path.join(step, 'actor/model.safetensors');
  const bytes = readFileSync(weights);
  bytes[bytes.length - 5] = (bytes[bytes.length - 5] as number) ^ 1;
  writeFileSync(weights, bytes);
  for (const from of [at('run'), step, path.join(step, 'actor')]) {
    await expect(exportCheckpoint(from, at('damaged'))).rejects.toThrow(
      /global_step_3\/actor\/model\.safetensors is not what was saved/,
    );
  }
  expect(existsSync(at('damaged'))).toBe(false);
});

describe('where the weights are', () => {
  const engine = (directory: string, state: object) => {
    mkdirSync(directory, { recursive: true });
    writeFileSync(path.join(directory, 'engine.json'), JSON.stringify(state));
  };
  beforeEach(() => {
    for (const step of [3, 10]) {
      engine(at('run', `global_step_${step}`, 'actor'), { role: 'actor', adapter: step === 10 });
      engine(at('run', `global_step_${step}`, 'critic'), { role: 'critic' });
      writeFileSync(at('run', `global_step_${step}`, 'trainer.json'), '{}');
    }
    writeFileSync(at('run', 'latest_checkpointed_iteration.txt'), '10');
  });

  test('in the newest checkpoint of a run, in a step, in an engine', () => {
    const adapter = { dir: at('run/global_step_10/actor/lora_adapter'), role: 'actor', adapter: true };
    const critic = { dir: at('run/global_step_10/critic'), role: 'critic', adapter: false };
    expect(findCheckpoint(at('run'), null)).toEqual(adapter);
    expect(findCheckpoint(at('run/global_step_10'), 'actor')).toEqual(adapter);
    expect(findCheckpoint(at('run'), 'critic')).toEqual(critic);
    expect(findCheckpoint(at('run/global_step_10/critic'), null)).toEqual(critic);
    expect(findCheckpoint(at('run/global_step_3'), null)).toEqual({
      dir: at('run/global_step_3/actor'),
      role: 'actor',
      adapter: false,
    });
    expect(findCheckpoint(model('gpt2', 'critic'), null).role).toBe('critic');
    expect(findCheckpoint(model('gpt2'), null).role).toBe('actor');
  });

  test('or not there', () => {
    rmSync(at('run/global_step_10/critic'), { recursive: true });
    expect(() => findCheckpoint(at('run'), 'critic')).toThrow(/global_step_10 holds actor, but no critic/);
    expect(() => findCheckpoint(at('run/global_step_3/actor'), 'critic')).toThrow(
      /holds the actor, but --role/,
    );
    rmSync(at('run/global_step_10'), { recursive: true });
    rmSync(at('run/global_step_3'), { recursive: true });
    expect(() => findCheckpoint(at('run'), null)).toThrow(/a run that has no complete checkpoint/);
  });
});
