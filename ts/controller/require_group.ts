// Groups and launchers as options: a program in JavaScript may pass anything.
import { badOption, checkOptionNames, choiceOption, functionOption, isRecord } from '../base/check_options';
import { show } from '../base/text';
import type { WorkerGroup } from './worker_group';

/** @throws TroupeError INVALID_ARGUMENT for what is no group of workers */
export function requireGroup(where: string, value: unknown): asserts value is WorkerGroup {
  const { worldSize, callBinding } = (value ?? {}) as Partial<WorkerGroup>;
  if (typeof worldSize === 'number' && typeof callBinding === 'function') return;
  throw badOption(
    where,
    'group: expected a WorkerGroup (WorkerGroup.launch makes one, and pools.group(name) gives that of a pool) ' +
      `but got ${show(value)}`,
  );
}

/** @throws TroupeError INVALID_ARGUMENT for what is neither options of local processes nor a launcher */
export function checkLauncher(where: string, value: unknown): void {
  if (value === undefined) return;
  const at = `${where}.launcher`;
  if (isRecord(value) && 'start' in value && value['start'] !== undefined) {
    functionOption(at, 'start', value['start']);
    return;
  }
  checkOptionNames(at, value, ['type', 'env']);
  const { type, env } = value as { type?: unknown; env?: unknown };
  choiceOption(at, 'type', type, ['local'], 'local');
  if (env === undefined) return;
  if (!isRecord(env)) throw badOption(at, `env: expected an object of texts but got ${show(env)}`);
  for (const [name, text] of Object.entries(env))
    if (typeof text !== 'string') throw badOption(at, `env.${name}: expected a text but got ${show(text)}`);
}
