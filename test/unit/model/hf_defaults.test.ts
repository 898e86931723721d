import { readFileSync } from 'node:fs';
import path from 'node:path';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import type { NativeModelConfig } from '../../../ts/native/bridge';

// What the configuration classes of transformers 5.24 say without arguments (to_dict), but for keys that are not of the model.
const DEFAULTS: Record<string, Record<string, object>> = JSON.parse(
  readFileSync(path.join(__dirname, '../../fixtures/hf_defaults.json'), 'utf8'),
);

// Where these defaults do not fit each other: half of a head of 42 numbers, a tower that gives rows of another size, a number that is null.
const FITTING: Record<string, Record<string, unknown>> = {
  glm4_moe: { head_dim: 128 },
  dots1: { n_shared_experts: 2, num_experts_per_tok: 6, n_routed_experts: 64 },
  deepseek_v2: { num_experts_per_tok: 6 },
  lfm2_moe: { layer_types: new Array(32).fill('conv') },
  qwen2_vl: { vision_config: { hidden_size: 8192 } },
  qwen2_5_vl: { vision_config: { out_hidden_size: 8192 } },
  qwen3_vl: { vision_config: { out_hidden_size: 4096 } },
  glm4v: { text_config: { partial_rotary_factor: 0.5 } },
  glm4v_moe: { text_config: { head_dim: 128 } },
  qwen3_vl_moe: { vision_config: { out_hidden_size: 2048 } },
};

const resolve = (raw: object): NativeModelConfig => resolveModelConfig(raw, 'lm', 'config.json').native;

test.each(Object.entries(DEFAULTS))(
  '%s: a key that is missing is what transformers takes it for',
  (family, all) => {
    const fitting = FITTING[family] ?? {};
    const parts = ['text_config', 'vision_config'].filter((part) => part in all);
    const over = Object.fromEntries(
      parts.map((part) => [part, { ...all[part], ...(fitting[part] as object | undefined) }]),
    );
    const bare = Object.fromEntries(parts.map((part) => [part, fitting[part] ?? {}]));
    expect(resolve({ ...fitting, ...bare, model_type: family })).toEqual(
      resolve({ ...all, ...fitting, ...over, model_type: family }),
    );
  },
);
