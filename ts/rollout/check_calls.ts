// What an engine is told by programs in JavaScript.
import { badOption, choiceOption, numberOption, requirePath } from '../base/check_options';
import { show } from '../base/text';
import type { PauseMode, WeightSource } from './engine';

const MODES = ['keep', 'preempt', 'abort', 'wait'] as const satisfies readonly PauseMode[];
const KINDS = ['in-place', 'directory', 'buckets'] as const satisfies readonly WeightSource['kind'][];

/** @throws TroupeError INVALID_ARGUMENT */
export function checkPause(mode: unknown): void {
  if (mode === undefined) throw badOption('rollout', `pause: expected one of ${MODES.join(', ')}`);
  choiceOption('rollout', 'pause', mode, MODES, 'keep');
}

/** @throws TroupeError INVALID_ARGUMENT */
export function checkWeights(source: unknown, version: unknown): void {
  const where = 'rollout updateWeights';
  const { kind, path } = (source ?? {}) as Record<string, unknown>;
  if (!KINDS.some((known) => known === kind))
    throw badOption(where, `expected weights of the kind ${KINDS.join(', ')} but got ${show(source)}`);
  if (kind === 'directory') requirePath(where, 'a model directory', path);
  if (version === undefined) throw badOption(where, 'version: expected an integer >= 0, but it is not given');
  numberOption(where, 'version', version, 0, { integer: true, min: 0 });
}
