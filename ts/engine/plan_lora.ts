import { readAdapter } from '../checkpoint/peft_adapter';
import { TroupeError } from '../errors';
import {
  type AdapterTarget,
  adapterMapping,
  adapterTargets,
  type Lora,
  type ModelShape,
  matches,
  targetNames,
  trainedHead,
} from '../model/adapter_sites';
import type { NativeTensorFile } from '../native/bridge';
import type { ResolvedLoraOptions } from './lora_options';

const DEFAULT_ALPHA = 16;
const SHOWN = 12;
/** What verl's scripts leave out of a model that reads images: its tower, which has no adapters here. */
const TOWER = '.*visual.*';

/**
 * Chooses the modules that get adapters, or reads the adapter to start from. Throws INVALID_ARGUMENT naming a module that matches
 * nothing, INVALID_MODEL for an adapter that does not fit.
 */
export function planLora(where: string, model: ModelShape, o: ResolvedLoraOptions): Lora {
  const targets = adapterTargets(model.config, model.mapping);
  if (o.adapter !== null) return loadedLora(where, model, targets, o, o.adapter);
  const excludeModules = o.excludeModules.filter((name) => model.config.vision === null || name !== TOWER);
  const chosen = chooseTargets(where, targets, { ...o, excludeModules });
  return lora(model, targets, chosen, o.rank as number, o.alpha ?? DEFAULT_ALPHA, []);
}

function loadedLora(
  where: string,
  model: ModelShape,
  targets: readonly AdapterTarget[],
  o: ResolvedLoraOptions,
  dir: string,
): Lora {
  const adapter = readAdapter(dir, model, targets);
  const differs = (name: 'rank' | 'alpha'): void => {
    if (o[name] === null || o[name] === adapter[name]) return;
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[${where}] ${name}: expected ${o[name]} but the adapter in ${dir} has ${adapter[name]}: leave it out, or start without the adapter`,
    );
  };
  differs('rank');
  differs('alpha');
  return lora(model, targets, adapter.targets, adapter.rank, adapter.alpha, adapter.files);
}

function lora(
  model: ModelShape,
  targets: readonly AdapterTarget[],
  chosen: readonly AdapterTarget[],
  rank: number,
  alpha: number,
  files: NativeTensorFile[],
): Lora {
  return {
    rank,
    alpha,
    targetModules: targetNames(model, targets, chosen),
    mapping: adapterMapping(rank, chosen, trainedHead(model)),
    native: {
      rank,
      scale: alpha / rank,
      sites: chosen.map(({ site, param, row, rows }) => ({ name: site, param, row, rows })),
    },
    files,
  };
}

function chooseTargets(
  where: string,
  targets: readonly AdapterTarget[],
  { targetModules, excludeModules }: ResolvedLoraOptions,
): AdapterTarget[] {
  const wanted = targetModules === 'all-linear' ? null : targetModules;
  for (const [option, names] of [
    ['targetModules', wanted ?? []],
    ['excludeModules', excludeModules],
  ] as const) {
    const none = names.find((name) => !targets.some(({ module }) => matches(module, name)));
    if (none !== undefined) throw noSuchModule(where, option, none, targets);
  }
  const chosen = targets.filter(
    ({ module }) =>
      (wanted === null || wanted.some((name) => matches(module, name))) &&
      !excludeModules.some((name) => matches(module, name)),
  );
  if (chosen.length === 0) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[${where}] targetModules and excludeModules leave no module to adapt`,
    );
  }
  return chosen;
}

function noSuchModule(
  where: string,
  option: string,
  name: string,
  targets: readonly AdapterTarget[],
): TroupeError {
  const leaves = [...new Set(targets.map(({ module }) => module.slice(module.lastIndexOf('.') + 1)))];
  return new TroupeError(
    'INVALID_ARGUMENT',
    `[${where}] ${option}: '${name}' matches no linear layer of the model that can have an adapter; those are ` +
      `${leaves.slice(0, SHOWN).join(', ')} (whole names: ${targets[0]?.module}, ...)`,
  );
}
