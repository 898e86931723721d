import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { writeAdapterFiles } from '../../../ts/checkpoint/peft_adapter';
import { resolveLoraOptions } from '../../../ts/engine/lora_options';
import { planLora } from '../../../ts/engine/plan_lora';
import type { Lora } from '../../../ts/model/adapter_sites';
import { CONFORMANCE } from '../../helpers/conformance';
import { writeSafetensors } from '../../helpers/e2e_workspace';
import { readSafetensors } from '../../helpers/safetensors';
import { visionModel } from '../../helpers/vision_model';

// Which modules get adapters, and what an adapter on disk must be.
const modelOf = (name: string, role: 'actor' | 'critic' = 'actor') =>
  loadModelDirectory(path.join(CONFORMANCE, 'models', name, role), role === 'actor' ? 'lm' : 'value');
const plan = (name: string, o: object, role: 'actor' | 'critic' = 'actor'): Lora =>
  planLora('actor options.lora', modelOf(name, role), resolveLoraOptions('actor options.lora', o));
const modulesOf = (lora: Lora): string[] =>
  lora.mapping
    .filter(({ hf }) => hf.endsWith('.lora_A.weight'))
    .map(({ hf }) => hf.replace('base_model.model.', '').replace('.lora_A.weight', ''));

describe('modules', () => {
  const leaves = (lora: Lora) =>
    [...new Set(modulesOf(lora).map((module) => module.slice(module.lastIndexOf('.') + 1)))].sort();

  test.each<[string, string[]]>([
    ['llama_gqa', ['down_proj', 'gate_proj', 'k_proj', 'o_proj', 'q_proj', 'up_proj', 'v_proj']],
    ['gpt2', ['c_attn', 'c_fc', 'c_proj']],
    // Experts and routers are no linear layers under transformers 5.
    ['mixtral', ['k_proj', 'o_proj', 'q_proj', 'v_proj']],
    [
      'qwen2_moe',
      ['down_proj', 'gate_proj', 'k_proj', 'o_proj', 'q_proj', 'shared_expert_gate', 'up_proj', 'v_proj'],
    ],
    ['qwen3_moe', ['k_proj', 'o_proj', 'q_proj', 'v_proj']],
  ])('all-linear of %s', (name, expected) => {
    const lora = plan(name, { rank: 4 });
    expect(leaves(lora)).toEqual(expected);
    expect(lora.native).toMatchObject({ rank: 4, scale: 4 });
    expect(modulesOf(lora).some((module) => module.includes('lm_head'))).toBe(false);
  });

  test('lists are names or their ends; what is excluded is left out', () => {
    const lora = plan('llama_gqa', {
      rank: 4,
      alpha: 2,
      targetModules: ['q_proj', 'mlp.down_proj', 'model.layers.0.self_attn.v_proj'],
      excludeModules: ['layers.1.mlp.down_proj'],
    });
    expect(modulesOf(lora).sort()).toEqual([
      'model.layers.0.mlp.down_proj',
      'model.layers.0.self_attn.q_proj',
      'model.layers.0.self_attn.v_proj',
      'model.layers.1.self_attn.q_proj',
    ]);
    expect(lora.native.scale).toBe(0.5);
    // A name that PEFT would take for more than the chosen is written in full.
    expect(lora.targetModules).toEqual([
      'model.layers.0.mlp.down_proj',
      'model.layers.0.self_attn.v_proj',
      'q_proj',
    ]);
    const sites = lora.native.sites.map(({ name, param, row, rows }) => [name, param, row, rows]);
    expect(sites).toContainEqual(['layers.0.attn.qkv.v_proj', 'layers.0.attn.qkv.weight', 96, 32]);
  });

  test("verl's pattern for a tower leaves out nothing but a tower, which has no adapters", () => {
    const asked = { rank: 4, excludeModules: ['.*visual.*'] };
    const { model } = visionModel('qwen2_5_vl').options;
    const planned = (o: object) =>
      planLora('lora', loadModelDirectory(model, 'lm'), resolveLoraOptions('lora', o));
    expect(modulesOf(planned(asked))).toEqual(modulesOf(planned({ rank: 4 })));
    expect(() => plan('llama_gqa', asked)).toThrow(
      /excludeModules: '\.\*visual\.\*' matches no linear layer/,
    );
  });

  test('a critic saves its head beside the adapters', () => {
    const names = plan('llama_gqa', { rank: 2 }, 'critic').mapping.map(({ hf }) => hf);
    expect(names).toEqual(
      expect.arrayContaining(['base_model.model.score.weight', 'base_model.model.score.bias']),
    );
  });

  test.each<[object, RegExp]>([
    [
      { rank: 4, targetModules: ['q_proj', 'qproj'] },
      /targetModules: 'qproj' matches no linear layer .* q_proj, k_proj/,
    ],
    [{ rank: 4, targetModules: ['lm_head'] }, /'lm_head' matches no linear layer/],
    [{ rank: 4, excludeModules: ['experts'] }, /excludeModules: 'experts' matches no/],
    [
      { rank: 4, targetModules: ['q_proj'], excludeModules: ['self_attn.q_proj'] },
      /leave no module to adapt/,
    ],
    [{ rank: 4, targetModules: 'q_proj' }, /expected 'all-linear' or a list of module names .* got "q_proj"/],
    [{ rank: 0 }, /rank: expected an integer from 1 to 65536 but got 0/],
    [{ alpha: 4 }, /rank: expected an integer >= 1/],
    [{ rank: 4, alpha: 0 }, /alpha/],
    [{ rank: 4, modules: [] }, /unknown option 'modules'/],
    [{ adapter: '/x', targetModules: 'all-linear' }, /the adapter says which modules/],
  ])('refuses %j', (o, message) => {
    expect(() => plan('llama_gqa', o)).toThrow(message);
  });
});

describe('an adapter on disk', () => {
  const source = path.join(CONFORMANCE, 'lora', 'lora_llama_r8', 'adapter');
  let scratch: string;
  let count = 0;
  beforeAll(() => {
    scratch = mkdtempSync(path.join(tmpdir(), 'troupe-adapter-'));
  });
  afterAll(() => rmSync(scratch, { recursive: true, force: true }));

  type Tensors = ReturnType<typeof readSafetensors>;
  function adapter(config: object, tensors: (all: Tensors) => void = () => {}): string {
    const dir = path.join(scratch, String(count++));
    cpSync(source, dir, { recursive: true });
    const file = path.join(dir, 'adapter_config.json');
    writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), ...config }));
    const all = readSafetensors(path.join(dir, 'adapter_model.safetensors'));
    tensors(all);
    const named = Object.entries(all).map(([name, { shape, data }]) => ({
      name,
      shape,
      data: data as Float32Array,
    }));
    writeSafetensors(path.join(dir, 'adapter_model.safetensors'), named);
    return dir;
  }
  const first = 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight';

  test('says rank, alpha and modules', () => {
    const lora = plan('llama_gqa', { adapter: source });
    expect(lora).toMatchObject({ rank: 8, alpha: 32, native: { rank: 8, scale: 4 } });
    expect(modulesOf(lora)).toHaveLength(14);
    expect(lora.files).toHaveLength(1);
    expect(plan('llama_gqa', { adapter: source, rank: 8, alpha: 32 }).rank).toBe(8);
  });

  test('target_modules may be a pattern: the tensors decide', () => {
    const dir = adapter({ target_modules: '.*_proj' }, (all) => {
      for (const key of Object.keys(all)) if (!key.includes('q_proj')) delete all[key];
    });
    expect(modulesOf(plan('llama_gqa', { adapter: dir }))).toHaveLength(2);
  });

  test.each<[string, object, ((all: Tensors) => void) | undefined, RegExp]>([
    ['use_dora', { use_dora: true }, undefined, /use_dora: true is not supported/],
    ['use_rslora', { use_rslora: true }, undefined, /use_rslora: true is not supported/],
    ['bias', { bias: 'all' }, undefined, /bias: "all" is not supported/],
    ['rank_pattern', { rank_pattern: { q_proj: 4 } }, undefined, /rank_pattern: .* is not supported/],
    ['an unknown variant', { use_magic: 1 }, undefined, /use_magic: 1 is not supported/],
    ['another method', { peft_type: 'IA3' }, undefined, /peft_type: "IA3" is not supported/],
    ['a start that changes weights', { init_lora_weights: 'pissa' }, undefined, /init_lora_weights: "pissa"/],
    [
      'saved modules',
      { modules_to_save: ['lm_head'] },
      undefined,
      /modules_to_save: "lm_head" is not supported/,
    ],
    [
      'a missing tensor',
      {},
      (all) => delete all[first],
      /1 missing:\s+base_model.*layers\.0\.self_attn\.q_proj\.lora_A\.weight \[8, 64\]/,
    ],
    [
      'another rank',
      { r: 4 },
      undefined,
      /28 of the wrong shape:\s+.*expected \[4, 64\] but the file has \[8, 64\]/,
    ],
    [
      'a module of another model',
      {},
      (all) => {
        all['base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight'] = all[first] as never;
      },
      /1 not expected in this model:\s+base_model\.model\.model\.layers\.9/,
    ],
  ])('%s is refused', (_, config, tensors, message) => {
    const dir = adapter(config, tensors);
    expect(() => plan('llama_gqa', { adapter: dir })).toThrow(message);
    expect(() => plan('llama_gqa', { adapter: dir })).toThrow(dir);
  });

  test('another rank or alpha than asked for is refused', () => {
    expect(() => plan('llama_gqa', { adapter: source, rank: 4 })).toThrow(
      /rank: expected 4 but the adapter in .* has 8/,
    );
    expect(() => plan('llama_gqa', { adapter: source, alpha: 16 })).toThrow(/alpha: expected 16 .* has 32/);
    expect(() => plan('qwen2_tied', { adapter: source })).toThrow(
      /do not fit its adapter_config.json and the model/,
    );
    expect(() => plan('llama_gqa', { adapter: scratch })).toThrow(/has no adapter_config.json/);
  });

  test('is written with what PEFT asks for', () => {
    const dir = path.join(scratch, 'written');
    mkdirSync(dir);
    const model = modelOf('gpt2', 'critic');
    writeAdapterFiles(plan('gpt2', { rank: 4, alpha: 8 }, 'critic'), model, dir);
    expect(JSON.parse(readFileSync(path.join(dir, 'adapter_config.json'), 'utf8'))).toMatchObject({
      peft_type: 'LORA',
      task_type: 'TOKEN_CLS',
      r: 4,
      lora_alpha: 8,
      target_modules: ['c_attn', 'c_fc', 'c_proj'],
      modules_to_save: ['classifier'],
      fan_in_fan_out: true,
      bias: 'none',
    });
  });
});
