// What takes a configuration is called from JavaScript, too, with whatever a program has read.
import { badOption } from '../../base/check_options';
import { show } from '../../base/text';

const LOADERS = { train: 'loadConfig', sft: 'loadSftConfig' } as const;

type Program = keyof typeof LOADERS;

/** null: not one that is loaded, with its defaults. */
function programOf(value: unknown): Program | null {
  if (typeof value !== 'object' || value === null) return null;
  const { trainer } = value as { trainer?: { default_local_dir?: unknown } | null };
  if (typeof trainer?.default_local_dir !== 'string') return null;
  return 'actor_rollout_ref' in value ? 'train' : 'sft';
}

/** @param program null: either will do @throws TroupeError INVALID_ARGUMENT */
export function requireConfig(where: string, value: unknown, program: Program | null): void {
  const given = programOf(value);
  if (given !== null && (program === null || given === program)) return;
  const expected = program === null ? Object.values(LOADERS).join(' or ') : LOADERS[program];
  const got = given === null ? show(value) : `one of ${LOADERS[given]}, which is for the other trainer`;
  throw badOption(where, `expected a configuration that ${expected} returned but got ${got}`);
}

/** @throws TroupeError INVALID_ARGUMENT */
export function requireOverrides(where: string, value: unknown): void {
  if (Array.isArray(value) && value.every((item) => typeof item === 'string')) return;
  throw badOption(
    where,
    `overrides: expected a list of texts such as ['trainer.seed=2'] but got ${show(value)}`,
  );
}
