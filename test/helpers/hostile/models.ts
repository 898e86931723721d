// config.json and safetensors of a model directory.
import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { MODEL_CONFIG, modelTensors, writeSafetensors } from '../e2e_workspace';
import type { Cases, HostileCase } from './case';

/** Changes of a config.json that is right, and what the message names. */
const CONFIGS: readonly [Record<string, unknown>, ...string[]][] = [
  ...[
    'num_hidden_layers',
    'hidden_size',
    'intermediate_size',
    'num_attention_heads',
    'vocab_size',
    'head_dim',
  ].flatMap((key): [Record<string, unknown>, string][] =>
    [1e9, 2 ** 40, 1e300, -1, 0, 2.5, '8', [], {}].map((value) => [{ [key]: value }, key]),
  ),
  [{ max_position_embeddings: 1e18 }, 'max_position_embeddings'],
  [{ rms_norm_eps: -1 }, 'rms_norm_eps'],
  [{ num_key_value_heads: 1e9 }, 'num_key_value_heads'],
  [{ model_type: 'x'.repeat(1_000_000) }, 'model_type'],
  [{ model_type: '\u001b[31m' }, 'model_type', '\\u001b'],
  [{ model_type: null }, 'model_type'],
  [{ model_type: '__proto__' }, 'model_type'],
  [{ hidden_act: '\u0007'.repeat(1000) }, 'hidden_act'],
  [{ hidden_act: 'constructor' }, 'hidden_act'],
  [{ rope_theta: -1 }, 'rope_theta'],
  [{ rope_scaling: { rope_type: 'x'.repeat(100_000), factor: 2 } }, 'rope_type'],
  [{ rope_scaling: { rope_type: 'linear', factor: 1e300 } }, 'RoPE factor'],
  [{ rope_scaling: { rope_type: 'llama3', factor: '2' } }, 'rope_scaling.factor'],
  [{ tie_word_embeddings: 'yes' }, 'tie_word_embeddings'],
  [{ eos_token_id: 'end' }, 'eos_token_id'],
  [{ quantization_config: { bits: 4 } }, 'quantization_config'],
  [
    { model_type: 'mixtral', num_hidden_layers: 4096, num_local_experts: 1e6 },
    '4096 layers of 1000000 experts',
  ],
  [{ model_type: 'qwen3_moe', num_experts: 1e15 }, 'num_experts'],
  [{ model_type: 'qwen3_moe', decoder_sparse_step: 0 }, 'decoder_sparse_step'],
  [{ model_type: 'qwen3', layer_types: ['\u001b[0m', 'x'] }, 'layer_types[0]'],
  [{ model_type: 'qwen3', layer_types: [] }, 'layer_types has 0 entries'],
];

/** Texts of config.json that are wrong as texts. */
const TEXTS: readonly [string, string | Buffer, ...string[]][] = [
  ['no JSON', '{"a": \u001b[31m}', 'config.json', 'JSON'],
  ['a list', '[]', 'config.json', 'JSON object'],
  ['null', 'null', 'config.json', 'JSON object'],
  ['nothing', '', 'config.json', 'JSON'],
  ['100 000 brackets', `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`, 'config.json', 'levels deep'],
  [
    'a key twice',
    '{"hidden_size": 8,\n "hidden_size": 16}',
    'config.json',
    'line 2',
    "'hidden_size' appears twice",
  ],
  ['no UTF-8', Buffer.from([0x7b, 0xff, 0x7d]), 'config.json:1', 'UTF-8'],
];

interface Entry {
  dtype?: unknown;
  shape?: unknown;
  data_offsets?: unknown;
}

/** A safetensors file with any header. */
function tensorFile(header: string | Buffer | Record<string, Entry>, data = 0, length?: bigint): Buffer {
  const isText = typeof header === 'string' || Buffer.isBuffer(header);
  const json = Buffer.from(isText ? header : JSON.stringify(header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(length ?? BigInt(json.length));
  return Buffer.concat([size, json, Buffer.alloc(data)]);
}

const f32 = (shape: unknown, from: unknown, to: unknown): Entry => ({
  dtype: 'F32',
  shape,
  data_offsets: [from, to],
});

const tensorFiles = (): [string, Buffer, ...string[]][] => [
  ['nothing', Buffer.alloc(0), 'too short'],
  ['four bytes', Buffer.alloc(4), 'too short'],
  ['a header of 2^63 bytes', tensorFile('{}', 0, 2n ** 63n), 'claims 9223372036854775808'],
  ['a header of one byte more', tensorFile('{}', 0, 3n), 'claims 3'],
  ['a header that is no JSON', tensorFile('{{{\u001b[31m'), 'the header', 'JSON'],
  ['a header that is a list', tensorFile('[]'), 'the header'],
  ['a header that is no UTF-8', tensorFile(Buffer.from([0x7b, 0xff, 0x7d])), 'header is not valid UTF-8'],
  ['a header without end', tensorFile(`{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`), 'levels deep'],
  ['a tensor twice', tensorFile('{"a":1,"a":2}'), "'a' appears twice"],
  [
    'a name of 5 MB',
    tensorFile({ ['n'.repeat(5_000_000)]: f32([2], 0, 4) }, 4),
    "tensor 'nnn",
    '5000000 characters',
  ],
  [
    'a name with control characters',
    tensorFile({ '\u001b[2J\u0007': f32([2], 0, 4) }, 4),
    "tensor '\\x1b[2J\\x07'",
  ],
  ['a name that runs backwards', tensorFile({ 'a\u202eb': f32([2], 0, 4) }, 4), "tensor 'a\\u202eb'"],
  ['a tensor that is a number', tensorFile('{"a": 1}'), "tensor 'a'"],
  ['a tensor that is null', tensorFile('{"a": null}'), "tensor 'a'"],
  ['no dtype', tensorFile({ a: { shape: [1], data_offsets: [0, 4] } }, 4), "tensor 'a'", 'dtype'],
  [
    'a dtype that is not known',
    tensorFile({ a: { ...f32([1], 0, 4), dtype: 'F'.repeat(100_000) } }, 4),
    'not expected in this model',
  ],
  ['a shape that is no list', tensorFile({ a: f32(4, 0, 4) }, 4), "tensor 'a'", 'shape'],
  ['a negative shape', tensorFile({ a: f32([-1], 0, 4) }, 4), "tensor 'a'", 'shape'],
  ['a shape of fractions', tensorFile({ a: f32([0.5, 2], 0, 4) }, 4), "tensor 'a'", 'shape'],
  ['a shape that overflows', tensorFile({ a: f32([2 ** 40, 2 ** 40], 0, 4) }, 4), "tensor 'a'", 'takes'],
  [
    'a shape of 100 000 sizes',
    tensorFile({ a: f32(new Array(100_000).fill(1), 0, 8) }, 8),
    "tensor 'a'",
    'takes',
  ],
  ['offsets that run backwards', tensorFile({ a: f32([1], 4, 0) }, 4), "tensor 'a'", 'backwards'],
  ['offsets beyond the file', tensorFile({ a: f32([2 ** 30], 0, 2 ** 32) }, 4), "tensor 'a'", 'truncated'],
  ['offsets of words', tensorFile({ a: f32([1], '0', '4') }, 4), "tensor 'a'", 'data_offsets'],
  [
    'three offsets',
    tensorFile({ a: { dtype: 'F32', shape: [1], data_offsets: [0, 2, 4] } }, 4),
    'data_offsets',
  ],
  [
    'tensors that overlap',
    tensorFile({ a: f32([2], 0, 8), b: f32([2], 4, 12) }, 12),
    "tensor 'b' overlaps 'a'",
  ],
  ['a hole', tensorFile({ a: f32([1], 0, 4), b: f32([1], 8, 12) }, 12), "before tensor 'b'"],
  ['bytes behind the last', tensorFile({ a: f32([1], 0, 4) }, 400), 'after the last tensor'],
  ['other tensors', tensorFile({ '\u001b[31m': f32([1], 0, 4) }, 4), 'missing', 'model.embed_tokens.weight'],
  [
    '100 000 other tensors',
    tensorFile(Object.fromEntries(Array.from({ length: 100_000 }, (_, i) => [`t${i}`, f32([0], 0, 0)]))),
    'not expected in this model',
  ],
];

const INDICES: readonly [string, unknown, ...string[]][] = [
  ['no weight_map', {}, 'weight_map'],
  ['a list as weight_map', { weight_map: ['a'] }, 'weight_map'],
  ['a path out of the directory', { weight_map: { a: '../../etc/passwd' } }, '../../etc/passwd', 'leads out'],
  ['a file that is not there', { weight_map: { a: 'none.safetensors' } }, 'none.safetensors'],
  ['a file name with control characters', { weight_map: { a: '\u001b[31m' } }, '\\x1b[31m'],
  [
    'a tensor that is not there',
    { weight_map: { ['\u0007'.repeat(1000)]: 'other.safetensors' } },
    'does not hold it',
  ],
];

export const modelCases: Cases = (directory) => {
  let count = 0;
  const cases: HostileCase[] = [];
  const good = JSON.stringify(MODEL_CONFIG);
  const add = (name: string, place: readonly string[], prepare: (path: string) => void): void => {
    const path = join(directory, `model_${count++}`);
    mkdirSync(path);
    writeFileSync(join(path, 'config.json'), good);
    prepare(path);
    cases.push({ name, place, run: () => loadModelDirectory(path, 'lm') });
  };
  for (const [changes, ...place] of CONFIGS) {
    const text = JSON.stringify({ ...MODEL_CONFIG, ...changes });
    const shown = JSON.stringify(changes).slice(0, 60);
    add(`config.json with ${shown}`, ['config.json', ...place], (path) =>
      writeFileSync(join(path, 'config.json'), text),
    );
  }
  for (const [name, text, ...place] of TEXTS)
    add(`config.json: ${name}`, place, (path) => writeFileSync(join(path, 'config.json'), text));
  for (const [name, bytes, ...place] of tensorFiles())
    add(`safetensors: ${name}`, place, (path) => writeFileSync(join(path, 'model.safetensors'), bytes));
  for (const [name, index, ...place] of INDICES) {
    add(`an index with ${name}`, ['model.safetensors.index.json', ...place], (path) => {
      writeFileSync(join(path, 'model.safetensors.index.json'), JSON.stringify(index));
      writeSafetensors(join(path, 'other.safetensors'), modelTensors());
    });
  }
  const fifo = (name: string) => (path: string) => {
    execFileSync('rm', ['-f', join(path, name)]);
    execFileSync('mkfifo', [join(path, name)]);
  };
  add('a FIFO as model.safetensors', ['model.safetensors', 'a FIFO'], fifo('model.safetensors'));
  add('a FIFO as config.json', ['config.json', 'a FIFO'], fifo('config.json'));
  add('a FIFO as the index', ['index.json', 'a FIFO'], fifo('model.safetensors.index.json'));
  add('a directory as model.safetensors', ['model.safetensors', 'a directory'], (path) =>
    mkdirSync(join(path, 'model.safetensors')),
  );
  add('a device as model.safetensors', ['model.safetensors', 'a device'], (path) =>
    symlinkSync('/dev/zero', join(path, 'model.safetensors')),
  );
  add('no weights', ['model.safetensors'], () => undefined);
  for (const [name, path] of [
    ['a device', '/dev/null'],
    ['a file', join(directory, 'model_0', 'config.json')],
    ['nothing', join(directory, 'nothing')],
  ] as const)
    cases.push({
      name: `${name} as a model directory`,
      place: [path],
      run: () => loadModelDirectory(path, 'lm'),
    });
  return cases;
};
