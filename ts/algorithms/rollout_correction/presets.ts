import { show } from '../../base/text';
import { correctionError, type RolloutCorrectionOptions, resolveCorrection } from './options';

const GEOMETRIC = { rolloutRs: 'seq_mean_k1', rolloutRsThreshold: '0.999_1.001' } as const;
const K3 = { rolloutRs: 'seq_mean_k3', rolloutRsThreshold: 0.01 } as const;
const TOKEN_TIS = { rolloutIs: 'token', rolloutIsThreshold: 2 } as const;
const SEQUENCE_TIS = { rolloutIs: 'sequence', rolloutIsThreshold: 2 } as const;
const ICEPOP = { rolloutIs: 'token', rolloutIsThreshold: '0.5_5.0' } as const;
const PPO_CLIP = { bypassMode: true, lossType: 'ppo_clip' } as const;
const REINFORCE = { bypassMode: true, lossType: 'reinforce' } as const;

/** verl's named settings. decoupled_*: three policies (rollout, old, current); bypass_*: two (rollout, current). */
const PRESETS: Readonly<Record<string, RolloutCorrectionOptions>> = {
  disabled: {},
  decoupled_token_is: TOKEN_TIS,
  decoupled_seq_is: SEQUENCE_TIS,
  decoupled_token_icepop: ICEPOP,
  decoupled_seq_is_rs: { ...SEQUENCE_TIS, rolloutRs: 'seq_sum_k1', rolloutRsThreshold: '0.5_2.0' },
  decoupled_geo_rs: GEOMETRIC,
  decoupled_geo_rs_seq_tis: { ...SEQUENCE_TIS, ...GEOMETRIC },
  decoupled_geo_rs_token_tis: { ...TOKEN_TIS, ...GEOMETRIC },
  decoupled_k3_rs: K3,
  decoupled_k3_rs_seq_tis: { ...SEQUENCE_TIS, ...K3 },
  decoupled_k3_rs_token_tis: { ...TOKEN_TIS, ...K3 },
  bypass_ppo_clip: PPO_CLIP,
  bypass_ppo_clip_geo_rs: { ...PPO_CLIP, ...GEOMETRIC },
  bypass_ppo_clip_k3_rs: { ...PPO_CLIP, ...K3 },
  bypass_pg_is: { ...REINFORCE, ...SEQUENCE_TIS },
  bypass_pg_geo_rs: { ...REINFORCE, ...GEOMETRIC },
  bypass_pg_geo_rs_seq_tis: { ...REINFORCE, ...SEQUENCE_TIS, ...GEOMETRIC },
  bypass_pg_geo_rs_token_tis: { ...REINFORCE, ...TOKEN_TIS, ...GEOMETRIC },
  bypass_pg_token_icepop: { ...REINFORCE, ...ICEPOP },
};

/** Names of {@link rolloutCorrectionPreset}. */
export const PRESET_NAMES: readonly string[] = Object.keys(PRESETS);

/**
 * verl's named settings of rollout correction (the classmethods of its RolloutCorrectionConfig), every option filled in;
 * `overrides` replace single ones. Each preset is spelled out in docs/algorithms.md.
 * @throws TroupeError INVALID_ARGUMENT for an unknown name
 */
export function rolloutCorrectionPreset(
  name: string,
  overrides: RolloutCorrectionOptions = {},
): Required<RolloutCorrectionOptions> {
  if (typeof name !== 'string' || !Object.hasOwn(PRESETS, name))
    throw correctionError(`unknown preset ${show(name)}: expected one of ${PRESET_NAMES.join(', ')}`);
  // Refuses what is no option, now and not where it is used.
  resolveCorrection(overrides);
  return {
    rolloutIs: null,
    rolloutIsThreshold: 2,
    rolloutIsBatchNormalize: false,
    rolloutRs: null,
    rolloutRsThreshold: null,
    bypassMode: false,
    lossType: 'ppo_clip',
    ...PRESETS[name],
    ...overrides,
  };
}
