import { resolveModelConfig } from '../../../ts/model/hf_config';
import { moduleName, tensorMapping } from '../../../ts/model/tensor_names';

const resolve = (raw: object) => resolveModelConfig(raw, 'lm', 'config.json').native;
/** As the first files say it. */
const exaone = {
  model_type: 'exaone',
  vocab_size: 102400,
  hidden_size: 2560,
  intermediate_size: 7168,
  num_layers: 2,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  head_dim: 80,
  activation_function: 'silu',
  layer_norm_epsilon: 1e-6,
  max_position_embeddings: 32768,
  tie_word_embeddings: true,
  rope_theta: 1000000,
};

test('EXAONE 3 is Llama under other keys', () => {
  const llama = resolve({
    ...exaone,
    model_type: 'llama',
    num_hidden_layers: 2,
    rms_norm_eps: 1e-6,
  });
  expect(resolve(exaone)).toEqual({ ...llama, family: 'exaone' });
  expect(() => resolve({ ...exaone, num_hidden_layers: 3 })).toThrow(/num_layers 2 and num_hidden_layers 3/);
});

test('tensors have the names of its files, and modules those of the classes of transformers', () => {
  const c = resolve(exaone);
  const names = tensorMapping(c).map(({ hf }) => hf);
  const llama = tensorMapping({ ...c, family: 'llama' }).map(({ hf }) => hf);
  expect(names.slice(0, 10)).toEqual([
    'transformer.wte.weight',
    'transformer.h.0.ln_1.weight',
    'transformer.h.0.attn.attention.q_proj.weight',
    'transformer.h.0.attn.attention.k_proj.weight',
    'transformer.h.0.attn.attention.v_proj.weight',
    'transformer.h.0.attn.attention.out_proj.weight',
    'transformer.h.0.ln_2.weight',
    'transformer.h.0.mlp.c_fc_0.weight',
    'transformer.h.0.mlp.c_fc_1.weight',
    'transformer.h.0.mlp.c_proj.weight',
  ]);
  expect(names.map((name) => moduleName(c, name))).toEqual(llama);
});
