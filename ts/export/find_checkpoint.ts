import { existsSync, statSync } from 'node:fs';
import path from 'node:path';
import { relativeTo } from '../base/relative_to';
import { readObject } from '../checkpoint/json_object';
import { TroupeError } from '../errors';
import { CheckpointStore } from '../run/checkpoint_store';

export type ExportedRole = 'actor' | 'critic';

/** A directory with the weights of one engine. */
export interface FoundCheckpoint {
  /** With config.json, or adapter_config.json when `adapter`. */
  dir: string;
  role: ExportedRole;
  /** Adapters in PEFT's format instead of a whole model. */
  adapter: boolean;
}

const ROLES: readonly ExportedRole[] = ['actor', 'critic'];

const invalid = (message: string): TroupeError => new TroupeError('INVALID_MODEL', `[export] ${message}`);
const has = (dir: string, name: string): boolean => existsSync(path.join(dir, name));

/**
 * What `at` leads to: a run directory (its newest checkpoint), a global_step_{N}, what saveCheckpoint, saveModel or saveAdapter wrote, or
 * any Hugging Face model or PEFT adapter. `role` chooses where there are two, the actor by default; where there is one it must agree.
 *
 * @throws TroupeError INVALID_MODEL saying what is there instead
 */
export function findCheckpoint(at: string, role: ExportedRole | null): FoundCheckpoint {
  if (!statSync(at, { throwIfNoEntry: false })?.isDirectory())
    throw invalid(
      `expected a run directory, a checkpoint or a model, but ${at}${relativeTo(at)} is not a directory`,
    );
  const store = new CheckpointStore<object>(at);
  const step = store.holdsRun() ? store.latest()?.directory : at;
  if (step === undefined)
    throw invalid(`${at} is the directory of a run that has no complete checkpoint: name a global_step_{N}`);
  const present = ROLES.filter((name) => has(step, path.join(name, 'engine.json')));
  if (present.length === 0) return engineIn(step, role);
  const chosen = role ?? 'actor';
  if (!present.includes(chosen))
    throw invalid(
      `${step} holds ${present.join(' and ')}, but no ${chosen}: choose another --role, or leave it out`,
    );
  return engineIn(path.join(step, chosen), chosen);
}

function engineIn(dir: string, role: ExportedRole | null): FoundCheckpoint {
  if (has(dir, 'engine.json')) {
    const file = path.join(dir, 'engine.json');
    const { role: saved, adapter } = readObject(file, 'export');
    const found = ROLES.find((name) => name === saved);
    if (found === undefined) throw invalid(`${file}: role: expected actor or critic, got ${String(saved)}`);
    if (role !== null && role !== found)
      throw invalid(`${dir} holds the ${found}, but --role asks for the ${role}`);
    return adapter === true
      ? { dir: path.join(dir, 'lora_adapter'), role: found, adapter: true }
      : { dir, role: found, adapter: false };
  }
  if (has(dir, 'adapter_config.json')) {
    const file = path.join(dir, 'adapter_config.json');
    const value = readObject(file, 'export').task_type === 'TOKEN_CLS';
    return { dir, role: role ?? (value ? 'critic' : 'actor'), adapter: true };
  }
  if (has(dir, 'trainer.json')) {
    throw invalid(
      `${dir} is a checkpoint without ${ROLES.map((name) => `${name}/engine.json`).join(' and ')}: a part of it is missing: copy it anew, or name ` +
        'another step',
    );
  }
  if (!has(dir, 'config.json')) {
    throw invalid(
      `${dir} holds no model: expected a run directory (with latest_checkpointed_iteration.txt), a global_step_{N}, or a directory ` +
        'with config.json or adapter_config.json',
    );
  }
  const file = path.join(dir, 'config.json');
  const { architectures } = readObject(file, 'export');
  const value =
    Array.isArray(architectures) && architectures.some((a) => /ForTokenClassification$/.test(String(a)));
  return { dir, role: role ?? (value ? 'critic' : 'actor'), adapter: false };
}
