// What an engine is told by programs in JavaScript.
import { types } from 'node:util';
import {
  badOption,
  checkOptionNames,
  choiceOption,
  countOption,
  flagOption,
  numberOption,
  requireOptions,
  requirePath,
} from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import { show } from '../base/text';
import { requireBatch } from '../batch/require_batch';
import type { BatchRequest, PauseMode, WeightSource } from './engine';

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

const BATCH_KEYS = [
  'prompts',
  'n',
  'sampling',
  'seeds',
  'maxTokens',
  'priority',
  'versions',
] as const satisfies readonly (keyof BatchRequest)[];
/** What only single requests have. */
const SINGLE = ['seed', 'stop', 'constraint', 'topLogProbs', 'promptLogProbs'];

/** But for the values in its sampling, which are those of a request. @throws TroupeError INVALID_ARGUMENT */
export function checkBatchRequest(request: unknown): asserts request is BatchRequest {
  const where = 'rollout submitBatch';
  checkOptionNames(where, request, BATCH_KEYS);
  const given = request as Partial<Record<keyof BatchRequest, unknown>>;
  const { prompts } = given;
  requireBatch(`${where}: prompts`, prompts);
  if (prompts.size === 0 || prompts.numResponseTokens > 0)
    throw badOption(
      where,
      `prompts: expected at least one sequence, none with a response, but got ${prompts.size} with ${prompts.numResponseTokens} response tokens`,
    );
  const n = countOption(where, 'n', given.n, RUN_LIMITS.samples);
  requireOptions(`${where}: sampling`, given.sampling);
  const other = SINGLE.find((name) => (given.sampling as Record<string, unknown>)[name] !== undefined);
  if (other !== undefined)
    throw badOption(where, `sampling.${other}: expected it in single requests (submit) alone`);
  const expected = prompts.size * n;
  if (!types.isBigUint64Array(given.seeds) || given.seeds.length !== expected)
    throw badOption(
      where,
      `seeds: expected a BigUint64Array of ${prompts.size} prompts x ${n} = ${expected} but got ` +
        (types.isBigUint64Array(given.seeds) ? `one of ${given.seeds.length}` : show(given.seeds)),
    );
  // Infinity is a value of its own.
  if (given.maxTokens !== Number.POSITIVE_INFINITY)
    numberOption(where, 'maxTokens', given.maxTokens, 2, { integer: true, min: 2 });
  flagOption(where, 'versions', given.versions, false);
}
