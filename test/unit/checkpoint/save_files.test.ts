import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { writeModelFiles } from '../../../ts/checkpoint/save_files';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { CONFORMANCE } from '../../helpers/conformance';
import { rewardTensors, writeModel, writeSafetensors } from '../../helpers/e2e_workspace';
import { readSafetensors } from '../../helpers/safetensors';
import { tokenizerDirectory } from '../data/fake_tokenizer';

const source = join(CONFORMANCE, 'models', 'llama_gqa', 'actor');
const plan = { files: [], index: null } as unknown as Parameters<typeof writeModelFiles>[2];

function written(tokenizer?: Parameters<typeof writeModelFiles>[4], dir = source): string {
  const out = mkdtempSync(join(tmpdir(), 'troupe-save-files-'));
  writeModelFiles({ ...loadModelDirectory(source, 'lm'), dir }, out, plan, null, tokenizer);
  return out;
}

const rendered = (directory: string): string =>
  Tokenizer.load(directory).renderChat([{ role: 'user', content: 'x' }], true);

test('without a tokenizer of its own a model is saved with that of its directory, templates beside it included', () => {
  const directory = tokenizerDirectory({ chat_template: 'inside' });
  expect(rendered(written(undefined, directory))).toBe('inside');
  writeFileSync(join(directory, 'chat_template.jinja'), 'beside');
  const more = join(directory, 'additional_chat_templates');
  mkdirSync(more);
  writeFileSync(join(more, 'tool_use.jinja'), 'tools');
  const out = written(undefined, directory);
  expect(rendered(out)).toBe('beside');
  expect(readFileSync(join(out, 'additional_chat_templates', 'tool_use.jinja'), 'utf8')).toBe('tools');
});

test('a tokenizer of another directory is saved in place of the model’s', () => {
  const [own, other] = [
    tokenizerDirectory({ chat_template: 'own' }),
    tokenizerDirectory({ chat_template: 'other' }),
  ];
  writeFileSync(join(own, 'chat_template.jinja'), 'own');
  writeFileSync(join(own, 'generation_config.json'), '{}');
  const out = written({ directory: other, chatTemplate: null }, own);
  expect(rendered(out)).toBe('other');
  expect(existsSync(join(out, 'generation_config.json'))).toBe(true);
});

test('a chat template of one’s own wins over every other of the tokenizer', () => {
  const directory = tokenizerDirectory({ chat_template: 'inside' });
  writeFileSync(join(directory, 'chat_template.jinja'), 'beside');
  const more = join(directory, 'additional_chat_templates');
  mkdirSync(more);
  writeFileSync(join(more, 'tool_use.jinja'), 'tools');
  const out = written({ directory, chatTemplate: 'mine' });
  expect(rendered(out)).toBe('mine');
  expect(readFileSync(join(out, 'chat_template.jinja'), 'utf8')).toBe('mine');
  expect(existsSync(join(out, 'additional_chat_templates'))).toBe(false);
});

test('a value head without a bias is saved as one, and begins as one where config.json says so', async () => {
  const out = mkdtempSync(join(tmpdir(), 'troupe-save-files-'));
  const savedConfig = (from: string): Record<string, unknown> => {
    writeModelFiles(loadModelDirectory(from, 'value'), out, plan, null);
    return JSON.parse(readFileSync(join(out, 'config.json'), 'utf8'));
  };
  const bias = { name: 'score.bias', shape: [1], data: new Float32Array(1) };
  const without = await writeModel(join(out, 'without'), { tensors: rewardTensors() });
  const having = await writeModel(join(out, 'with'), { tensors: [...rewardTensors(), bias] });
  expect(savedConfig(without)['token_classification_bias']).toBe(false);
  expect(savedConfig(having)).not.toHaveProperty('token_classification_bias');

  const config = { token_classification_bias: false };
  const fresh = loadModelDirectory(await writeModel(join(out, 'fresh'), { config }), 'value');
  expect([fresh.freshHead, fresh.config.valueBias]).toEqual([true, false]);
  const surplus = await writeModel(join(out, 'surplus'), { config, tensors: [...rewardTensors(), bias] });
  expect(() => loadModelDirectory(surplus, 'value')).toThrow(/not expected in this model:\n {4}score.bias/);
});

test('MiMo is saved with as many heads that predict further tokens as it has, and with the code of its class', () => {
  const [from, out] = [0, 1].map(() => mkdtempSync(join(tmpdir(), 'troupe-save-files-'))) as [string, string];
  const mimo = join(CONFORMANCE, 'models', 'mimo', 'actor');
  const config = JSON.parse(readFileSync(join(mimo, 'config.json'), 'utf8'));
  const body = Object.entries(readSafetensors(join(mimo, 'model.safetensors')));
  writeSafetensors(join(from, 'model.safetensors'), [
    ...body.map(([name, { shape, data }]) => ({ name, shape, data: data as Float32Array })),
    { name: 'model.mtp_layers.0.input_proj.weight', shape: [2, 4], data: new Float32Array(8) },
    { name: 'model.mtp_layers.0.self_attn.q_proj.bias', shape: [2], data: new Float32Array(2) },
  ]);
  const auto_map = {
    AutoConfig: 'configuration_mimo.MiMoConfig',
    AutoModelForCausalLM: 'modeling_mimo.MiMoForCausalLM',
    AutoModel: 'someone/repository--modeling_other.Other',
    AutoTokenizer: ['../above.Tokenizer', null],
  };
  writeFileSync(
    join(from, 'config.json'),
    JSON.stringify({ ...config, auto_map, num_nextn_predict_layers: 1 }),
  );
  for (const name of ['configuration_mimo', 'modeling_mimo', 'unnamed'])
    writeFileSync(join(from, `${name}.py`), name);
  const model = loadModelDirectory(from, 'lm');
  expect([...model.stored.keys()].sort()).toEqual(body.map(([name]) => name).sort());
  expect([...model.predictionLayers.keys()].sort()).toEqual([
    'model.mtp_layers.0.input_proj.weight',
    'model.mtp_layers.0.self_attn.q_proj.bias',
  ]);
  const savedConfig = (): unknown => JSON.parse(readFileSync(join(out, 'config.json'), 'utf8'));
  writeModelFiles(model, out, plan, null);
  expect(savedConfig()).toEqual({ ...config, auto_map, num_nextn_predict_layers: 1 });
  writeModelFiles({ ...model, predictionLayers: new Map() }, out, plan, null);
  expect(savedConfig()).toEqual({ ...config, auto_map, num_nextn_predict_layers: 0 });
  expect(
    readdirSync(out)
      .filter((name) => name.endsWith('.py'))
      .sort(),
  ).toEqual(['configuration_mimo.py', 'modeling_mimo.py']);
});
