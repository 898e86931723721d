// What config.json says of EXAONE 4 and of its mixtures of experts: with windows, layers that see all have no positions.
import { show } from '../base/text';
import type { NativeModelConfig } from '../native/bridge';
import { invalid, type Raw, rmsDecoder, typedWindows } from './hf_decoder';
import { deepseekExperts, typedExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

/** Norms behind attention and MLP alone. */
export function exaone4(
  family: 'exaone4' | 'exaone_moe',
  c: FamilyConfig<'exaone4'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  return { ...hybrid(family, c, raw, where), inputNorms: false, postNorms: true };
}

/** K-EXAONE: norms before them, and DeepSeek-V3's experts. */
export function exaoneMoe(c: FamilyConfig<'exaone_moe'>, raw: Raw, where: string): NativeModelConfig {
  const { num_experts: n_routed_experts, num_shared_experts: n_shared_experts } = c;
  return {
    ...hybrid('exaone_moe', c, raw, where),
    ...deepseekExperts(
      { ...c, n_routed_experts, n_shared_experts },
      typedExperts(c, c.first_k_dense_replace, where),
      where,
    ),
  };
}

function hybrid(
  family: 'exaone4' | 'exaone_moe',
  c: FamilyConfig<'exaone4'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  const windows = typedWindows(layerTypes(c, where), c.num_hidden_layers, c.sliding_window, where);
  return {
    ...rmsDecoder(family, c, raw, where),
    qkNorm: true,
    slidingWindows: windows,
    ...(c.sliding_window === null ? {} : { secondRopeLayers: windows.map((window) => window === 0) }),
  };
}

function layerTypes(c: FamilyConfig<'exaone4'>, where: string): string[] {
  if (c.layer_types !== null) return c.layer_types;
  const { sliding_window: window, sliding_window_pattern: pattern } = c;
  if (window === null) return new Array(c.num_hidden_layers).fill('full_attention');
  if (typeof pattern !== 'number' || pattern === 0)
    throw invalid(
      where,
      `layer_types is missing: expected it beside sliding_window ${window} and sliding_window_pattern ${show(pattern)}, as transformers does`,
    );
  return Array.from({ length: c.num_hidden_layers }, (_, i) =>
    (i + 1) % pattern === 0 ? 'full_attention' : 'sliding_attention',
  );
}
