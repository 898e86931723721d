// What config.json says of OLMo Hybrid: layers of the gated delta rule with input norms, and of attention as OLMo 3 has it.
import type { NativeModelConfig } from '../native/bridge';
import { isObject, type Raw } from './hf_decoder';
import { deltaHeads, linearLayersOf } from './hf_gated_delta';
import { olmo } from './hf_olmo';
import type { FamilyConfig } from './hf_schema';

/** Of the gated norm, whatever rms_norm_eps says: that of the kernels that the models were trained with. */
const GATED_NORM_EPS = 1e-5;

/** As OlmoHybridForCausalLM of transformers. */
export function olmoHybrid(c: FamilyConfig<'olmo_hybrid'>, raw: Raw, where: string): NativeModelConfig {
  const heads = c.linear_num_key_heads ?? c.num_attention_heads;
  const keyDim = c.linear_key_head_dim ?? Math.trunc((0.75 * c.hidden_size) / heads);
  const linear = {
    ...deltaHeads(
      {
        linear_conv_kernel_dim: c.linear_conv_kernel_dim,
        linear_num_key_heads: heads,
        linear_num_value_heads: c.linear_num_value_heads ?? c.num_attention_heads,
        linear_key_head_dim: keyDim,
        linear_value_head_dim: c.linear_value_head_dim ?? 2 * keyDim,
        hidden_act: c.hidden_act,
      },
      where,
    ),
    matrices: 'apart' as const,
    betaScale: c.linear_allow_neg_eigval ? 2 : 1,
    normEps: GATED_NORM_EPS,
  };
  const turns = hasRotation(raw);
  return {
    ...olmo('olmo_hybrid', c, turns ? raw : {}, where),
    ...(turns ? {} : { positions: 'none', ropeInvFreq: new Float64Array(0) }),
    linear,
    linearLayers: layersOf(c, where),
  };
}

/** Of few layers the last one has attention. */
function layersOf(c: FamilyConfig<'olmo_hybrid'>, where: string): boolean[] {
  const layers = linearLayersOf({ ...c, full_attention_interval: 4 }, where);
  if (c.layer_types === null && layers.every(Boolean)) layers[layers.length - 1] = false;
  return layers;
}

/** A rope_theta that is null says that nothing turns, as in the published files; none means the default. */
function hasRotation(raw: Raw): boolean {
  const given = isObject(raw['rope_parameters']) ? raw['rope_parameters'] : {};
  return (Object.hasOwn(given, 'rope_theta') ? given['rope_theta'] : raw['rope_theta']) !== null;
}
