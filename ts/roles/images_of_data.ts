// Whether the model of a run is read with its tower for images, where its directory has both that and a language model of its own.
import { existsSync } from 'node:fs';
import path from 'node:path';
import { readObject } from '../checkpoint/json_object';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { withKey } from '../config/written_config';
import { haveImages } from '../data/image_column';
import { ConfigError } from '../errors';
import { resolveModelConfig } from '../model/hf_config';
import { hasOwnTower } from '../model/text_part';

/**
 * The configuration with `read_images` true or false where it was null and the model can be read either way: true where the data have images. Reads
 * config.json of the model, and of the data what says which columns there are.
 * @param say what was decided, for people
 * @throws ConfigError where the key asks for what the model cannot do; TroupeError as the data or the model are opened
 */
export async function decideImages<C extends ResolvedConfig | ResolvedSftConfig>(
  config: C,
  say: (line: string) => void = () => undefined,
): Promise<C> {
  const [section, model] =
    'actor_rollout_ref' in config
      ? (['actor_rollout_ref.model', config.actor_rollout_ref.model] as const)
      : (['model', config.model] as const);
  const key = `${section}.read_images`;
  const file = path.join(model.path, 'config.json');
  // What is wrong with the directory is said where it is loaded.
  if (!existsSync(file)) return config;
  const raw = readObject(file, 'model');
  if (!hasOwnTower(raw)) {
    if (model.read_images !== null)
      checkAsked(key, model, resolveModelConfig(raw, 'lm', file).native.vision !== null);
    return config;
  }
  if (model.read_images !== null) return config;
  const { train_files: train, val_files: validation, image_key: column } = config.data;
  // What a class makes of its files is known when it has run.
  const made = 'actor_rollout_ref' in config && config.data.custom_cls.path !== null;
  const files = made ? [] : [...train, ...(validation ?? [])];
  const decided = await haveImages(files, column);
  const why = files.some((name) => existsSync(name))
    ? `the data have ${decided ? '' : 'no '}images (data.image_key ${column})`
    : made
      ? 'the rows of data.custom_cls are not there yet'
      : 'no data are there to look at';
  say(
    `${key}: ${decided}, as ${why}: of ${model.path} ${decided ? 'the tower is read, too' : 'the language model alone is read'}`,
  );
  return withKey(config, key, decided);
}

function checkAsked(
  key: string,
  { path: dir, read_images: asked }: { readonly path: string; readonly read_images: boolean | null },
  reads: boolean,
): void {
  if (asked === reads) return;
  const what = reads ? 'is read with its tower always' : 'reads text alone';
  throw new ConfigError(`${key}: the model in ${dir} ${what}: expected ${reads} or null, got ${asked}`, key);
}
