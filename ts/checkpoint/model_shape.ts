import { existsSync } from 'node:fs';
import path from 'node:path';
import { relativeTo } from '../base/relative_to';
import { ConfigError } from '../errors';
import { type Head, resolveModelConfig } from '../model/hf_config';
import { withPredictions } from '../model/prediction_layers';
import { textPart } from '../model/text_part';
import type { NativeModelConfig } from '../native/bridge';
import { readObject } from './json_object';
import { loadModelDirectory, type ModelReading, withPositions } from './model_dir';
import { insteadOfModel } from './no_model';
import type { StoredTensor } from './safetensors';

/** A model as far as its directory says without its weights. */
export interface ModelShape {
  config: NativeModelConfig;
  /** What of the files is read, by Hugging Face name; null: there are none. */
  stored: ReadonlyMap<string, StoredTensor> | null;
  /** As a {@link LoadedModel} has them. */
  unusedScales: readonly string[];
}

/**
 * The shape of the model that an engine would load from `dir`. Reads config.json, and the headers of safetensors files where
 * there are any; config.json alone is enough.
 * @throws ConfigError naming `key` when there is no config.json; TroupeError INVALID_MODEL for a model that cannot be loaded
 */
export function readModelShape(dir: string, head: Head, key: string, reading: ModelReading = {}): ModelShape {
  const file = path.join(dir, 'config.json');
  const instead = insteadOfModel(dir);
  if (instead !== null) {
    throw new ConfigError(
      `${key}: expected a Hugging Face model directory with config.json, got ${dir}${relativeTo(dir)}, where there is none${instead}`,
      key,
    );
  }
  const weights = ['model.safetensors', 'model.safetensors.index.json'];
  if (weights.some((name) => existsSync(path.join(dir, name)))) {
    const { config, stored, unusedScales } = loadModelDirectory(dir, head, reading);
    return { config, stored, unusedScales };
  }
  const { maxPositionEmbeddings = null, readsImages = false, predictions = null } = reading;
  const part = textPart(readObject(file, 'model'), readsImages);
  const raw = withPositions(part, maxPositionEmbeddings, file);
  const { native } = resolveModelConfig(raw, head, file, readsImages);
  const config = predictions === null ? native : withPredictions(native, raw, file, predictions);
  return { config, stored: null, unusedScales: [] };
}
