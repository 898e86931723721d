// Directories of ours that are taken for a model, and where the model is.
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

/**
 * What a directory is instead of a model, and what to name in its place: the end of a sentence. null: it may be a model; '': it is none, and
 * nothing is known of it.
 */
export function insteadOfModel(dir: string): string | null {
  const has = (...names: string[]): boolean => existsSync(path.join(dir, ...names));
  const exported = (more = ''): string => `what troupe export ${dir} OUT${more} writes`;
  if (['latest_checkpointed_iteration.txt', 'metrics.jsonl'].some((name) => has(name)) && !isModel(dir)) {
    const final = has('final_model', 'config.json') ? `${path.join(dir, 'final_model')}, or ` : '';
    return `: it is the directory of a run: name ${final}${exported()}`;
  }
  if (has('config.json')) return null;
  if (has('trainer.json') && has('actor')) {
    const whole = has('actor', 'config.json') ? `${path.join(dir, 'actor')}, or ` : '';
    return `: it is a checkpoint: name ${whole}${exported()}`;
  }
  if (has('adapter_config.json'))
    return `: it holds an adapter alone: name ${exported(' --merge-lora')}, the whole model`;
  return '';
}

/** A run has a config.json, too: its configuration. Of one that cannot be read its reader says why. */
function isModel(dir: string): boolean {
  const file = path.join(dir, 'config.json');
  if (!existsSync(file)) return false;
  try {
    return 'model_type' in (JSON.parse(readFileSync(file, 'utf8')) as object);
  } catch {
    return true;
  }
}
