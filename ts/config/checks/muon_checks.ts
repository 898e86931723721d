import { wrongIterations } from '../../base/optimiser_names';
import { ConfigError } from '../../errors';
import type { ConfigNote } from '../reading/resolve';
import { optimizer } from '../schema/optim_section';
import type { ResolvedConfig } from '../schema/ppo_schema';
import type { ResolvedSftConfig } from '../schema/sft_schema';

type Optim = ResolvedConfig['critic']['optim'];

/** Of what an optimiser moves. */
interface Masters {
  /** That says the dtype. */
  key: string;
  dtype: 'float32' | 'bfloat16';
  /** These alone are moved, in float32. */
  adapters: boolean;
}

/** Steps of Muon have one size, and weights in float32. `section`: where `optim` stands. */
export function checkMuon(section: string, optim: Optim, masters: Masters): void {
  if (optim.optimizer !== 'muon') return;
  if (optim.muon_match_adamw_update_rms && optim.muon_extra_scale_factor !== 1) {
    const key = `${section}.muon_extra_scale_factor`;
    throw new ConfigError(
      `${key}: ${section}.muon_match_adamw_update_rms derives it from betas, got ${optim.muon_extra_scale_factor}: leave one of them out`,
      key,
    );
  }
  const wrong = wrongIterations(optim.muon_coefficient_type, optim.muon_num_ns_steps);
  if (wrong !== null) {
    const key = `${section}.muon_num_ns_steps`;
    throw new ConfigError(`${key}: ${wrong}`, key);
  }
  if (masters.dtype === 'bfloat16' && !masters.adapters)
    throw new ConfigError(
      `${masters.key}: steps of ${section}.optimizer muon are of float32: expected float32, got bfloat16`,
      masters.key,
    );
}

const OF_MUON = Object.entries(optimizer).flatMap(([key, leaf]) =>
  key.startsWith('muon_') && leaf.kind === 'field' ? [{ key, value: leaf.value }] : [],
);

/** Keys of Muon beside another optimiser. */
export function muonNotes(config: ResolvedConfig | ResolvedSftConfig): ConfigNote[] {
  const sections: Readonly<Record<string, Partial<Optim>>> =
    'actor_rollout_ref' in config
      ? {
          'actor_rollout_ref.actor.optim': config.actor_rollout_ref.actor.optim,
          'critic.optim': config.critic.optim,
        }
      : { optim: config.optim };
  return Object.entries(sections).flatMap(([section, optim]) =>
    OF_MUON.filter(
      ({ key, value }) => optim.optimizer !== 'muon' && optim[key as keyof typeof optim] !== value,
    ).map(({ key }) => ({
      path: `${section}.${key}`,
      reason: `it belongs to optimizer muon, got ${optim.optimizer}`,
    })),
  );
}
