import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadConfig, type ResolvedConfig } from '../../../ts/config/config';
import { ConfigError } from '../../../ts/errors';

/** The least that `troupe train` needs, with sizes that fit together. */
export const MINIMAL = `
data: { train_files: train.jsonl, train_batch_size: 64 }
actor_rollout_ref:
  model: { path: model }
  actor: { ppo_mini_batch_size: 16 }
`;

/** A file with this text in a directory of its own. */
export function writeConfig(text: string = MINIMAL): string {
  const file = join(mkdtempSync(join(tmpdir(), 'troupe-config-')), 'run.yaml');
  writeFileSync(file, text);
  return file;
}

/** The ConfigError that `work` throws. */
export function configError(work: () => unknown): ConfigError {
  try {
    work();
  } catch (error) {
    if (error instanceof ConfigError) return error;
    throw error;
  }
  throw new Error('expected a ConfigError');
}

/** What a file with this text and these overrides is read as. */
export const load = (overrides: string[] = [], text = MINIMAL): ResolvedConfig =>
  loadConfig(writeConfig(text), overrides);

/** The ConfigError that it is refused with. */
export const failure = (overrides: string[] = [], text = MINIMAL): ConfigError =>
  configError(() => load(overrides, text));

/** A reference to another key, as a configuration writes it. */
export const reference = (key: string): string => `\${${key}}`;
