import {
  badOption,
  checkOptionNames,
  requireNamed,
  requireNumbers,
  requireOptions,
} from '../base/check_options';
import { unknownName } from '../base/nearest_name';
import { printable } from '../base/printable';
import { show } from '../base/text';
import type { Batch } from '../batch/batch';
import { requireBatch } from '../batch/require_batch';
import { TroupeError } from '../errors';
import { checkAdvantageConfig } from './advantage_options';
import type {
  AdvantageConfig,
  AdvantageEstimator,
  AdvantageInputs,
  EstimatorOptions,
  TokenEstimator,
} from './advantage_types';
import type { SequenceEstimator } from './group_estimators';
import * as group from './group_estimators';
import { runRegisteredEstimator } from './registered_estimator';
import { tokenlessScores } from './response_totals';
import { optimalTokenBaseline, tirOptimalTokenBaseline } from './token_baselines';
import { gae, reinforcePlusPlus, remax } from './token_estimators';

const sequenceEstimators = new Map<string, SequenceEstimator>([
  ['grpo', group.grpo],
  ['grpo_vectorized', group.grpo],
  ['grpo_passk', group.grpoPassk],
  ['gdpo', group.gdpo],
  ['egpo', group.egpo],
  ['rloo', group.rloo],
  ['rloo_vectorized', group.rlooVectorized],
  ['opo', group.opo],
  ['gpg', group.gpg],
  ['reinforce_plus_plus_baseline', group.reinforcePlusPlusBaseline],
]);

const tokenEstimators = new Map<string, TokenEstimator>([
  ['gae', gae],
  ['reinforce_plus_plus', reinforcePlusPlus],
  ['remax', remax],
  ['optimal_token_baseline', optimalTokenBaseline],
  ['tir_optimal_token_baseline', tirOptimalTokenBaseline],
]);

const registeredEstimators = new Map<string, AdvantageEstimator>();
const needsOf = new Map<string, readonly string[]>();

/** The function registered as `name` is the user's. */
export const isRegisteredEstimator = (name: string): boolean => registeredEstimators.has(name);

/** Whether an estimator needs a column of the batch, as far as it was said when it was registered. */
export const estimatorNeeds = (name: string, column: string): boolean =>
  needsOf.get(name)?.includes(column) ?? false;

/** Whether an estimator gives returns in an array of their own; those of whole sequences give one array as both. */
export const estimatesReturns = (name: string): boolean => !sequenceEstimators.has(name);

/** Names accepted by {@link computeAdvantages}, the user's included. */
export function advantageEstimatorNames(): string[] {
  return [tokenEstimators, sequenceEstimators, registeredEstimators].flatMap((names) => [...names.keys()]);
}

/** What to say about a name that does not exist. */
export const unknownEstimator = (name: string): string =>
  unknownName(advantageEstimatorNames(), name, 'registerAdvantageEstimator(name, fn)');

/**
 * Makes `name` usable as `algorithm.adv_estimator`.
 * @throws TroupeError INVALID_ARGUMENT when another function already has the name, or this is none.
 */
export function registerAdvantageEstimator(
  name: string,
  estimator: AdvantageEstimator,
  options: EstimatorOptions = {},
): void {
  const where = 'registerAdvantageEstimator';
  requireNamed(where, name, estimator);
  checkOptionNames(where, options, ['needs']);
  const { needs = [] } = options;
  if (!Array.isArray(needs) || !needs.every((column) => typeof column === 'string'))
    throw badOption(where, `needs: expected a list of columns but got ${show(needs)}`);
  const taken = sequenceEstimators.has(name) || tokenEstimators.has(name);
  if (taken || (registeredEstimators.get(name) ?? estimator) !== estimator) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[advantages] another estimator is already registered as '${name}': choose another name`,
    );
  }
  registeredEstimators.set(name, estimator);
  needsOf.set(name, [...needs]);
}

/** `scores` [B] on every policy token, 0 on masked tokens; [ΣR]. */
function broadcast<T extends Float32Array | Float64Array>(
  scores: Float64Array,
  inputs: AdvantageInputs,
  out: T,
): T {
  const { offsets, responseMask } = inputs;
  for (let i = 0; i < scores.length; i++) {
    const score = scores[i] as number;
    const end = offsets[i + 1] as number;
    for (let t = offsets[i] as number; t < end; t++) if (responseMask[t]) out[t] = score;
  }
  return out;
}

function checkShapes(inputs: AdvantageInputs): number {
  const rows = inputs.offsets.length - 1;
  const tokens = inputs.offsets[rows] as number;
  const perToken = {
    responseMask: inputs.responseMask,
    tokenRewards: inputs.tokenRewards,
    values: inputs.values,
  };
  for (const [name, column] of Object.entries(perToken)) {
    if (column && column.length !== tokens) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[advantages] expected ${tokens} entries in '${name}', one per response token, but got ${column.length}`,
      );
    }
  }
  return tokens;
}

function estimate<T extends Float32Array | Float64Array>(
  name: string,
  inputs: AdvantageInputs,
  config: AdvantageConfig,
  allocate: (length: number) => T,
): { advantages: T; returns: T } {
  const tokens = checkShapes(inputs);
  if (registeredEstimators.has(name)) requireOptions('advantages', config);
  else checkAdvantageConfig(config);
  const sequence = sequenceEstimators.get(name);
  if (sequence) {
    const advantages = broadcast(sequence(inputs, config), inputs, allocate(tokens));
    return { advantages, returns: advantages };
  }
  const perToken = tokenEstimators.get(name);
  if (perToken) {
    const out = { advantages: allocate(tokens), returns: allocate(tokens) };
    perToken(inputs, config, out);
    return out;
  }
  const registered = registeredEstimators.get(name);
  if (registered) return runRegisteredEstimator(name, registered, inputs, config, allocate);
  throw new TroupeError(
    'INVALID_ARGUMENT',
    `[advantages] unknown advantage estimator ${typeof name === 'string' ? `'${printable(name)}'` : show(name)}: expected one of ${advantageEstimatorNames().join(', ')}`,
  );
}

/** {@link computeAdvantages} on plain arrays, in double precision throughout. */
export function computeAdvantagesDouble(
  name: string,
  inputs: AdvantageInputs,
  config: AdvantageConfig = {},
): { advantages: Float64Array; returns: Float64Array } {
  return estimate(name, inputs, config, (length) => new Float64Array(length));
}

const OPTIONAL_COLUMNS = [
  'values',
  'oldLogProbs',
  'sumPiSquared',
  'rolloutIsWeights',
  'entropy',
  'rewardBaselines',
] as const;

function componentsOf(rows: ArrayLike<unknown>): Record<string, number[]> {
  const where = 'advantages';
  const names = new Set<string>();
  for (let i = 0; i < rows.length; i++) {
    const row = rows[i];
    if (typeof row !== 'object' || row === null)
      throw badOption(where, `rewardComponents[${i}]: expected an object of numbers but got ${show(row)}`);
    for (const [name, value] of Object.entries(row)) {
      if (typeof value !== 'number')
        throw badOption(
          where,
          `rewardComponents[${i}].${printable(name)}: expected a number but got ${show(value)}`,
        );
      names.add(name);
    }
  }
  const list = Array.from(rows) as Record<string, number>[];
  return Object.fromEntries(
    [...names].map((name) => [
      name,
      list.map((row) => (Object.hasOwn(row, name) ? (row[name] as number) : Number.NaN)),
    ]),
  );
}

/** The estimator inputs a batch holds. `rewardComponents` [B] of objects becomes one column per reward name. */
function inputsOf(batch: Batch): AdvantageInputs {
  const inputs: AdvantageInputs = {
    offsets: batch.responseOffsets,
    responseMask: batch.get('responseMask'),
    tokenRewards: batch.get('tokenRewards'),
    uid: batch.get('uid'),
  };
  const score = tokenlessScores(batch);
  if (score !== undefined) inputs.score = score;
  for (const name of OPTIONAL_COLUMNS)
    if (batch.has(name)) Object.assign(inputs, { [name]: batch.get(name) });
  if (inputs.rewardBaselines !== undefined)
    requireNumbers('advantages', 'rewardBaselines', inputs.rewardBaselines, batch.size);
  if (batch.has('rewardComponents')) {
    inputs.rewardComponents = componentsOf(batch.get('rewardComponents'));
  }
  return inputs;
}

/**
 * Advantages and returns of a batch by verl's estimator names; sums in double, results float32 [ΣR].
 * Reads responseMask, tokenRewards and uid, score of responses without any token where it is there, and what the estimator needs besides
 * (values for gae, ...).
 * Group estimators return one array as both. Formulas and sources: docs/algorithms.md.
 * @throws TroupeError INVALID_ARGUMENT for an unknown name, option or column; NON_FINITE for rewards or values that are NaN or infinite,
 * naming the sequence where there is one
 */
export function computeAdvantages(
  name: string,
  batch: Batch,
  config: AdvantageConfig = {},
): { advantages: Float32Array; returns: Float32Array } {
  requireBatch('computeAdvantages', batch);
  const inputs = inputsOf(batch);
  if (registeredEstimators.has(name)) {
    inputs.batch = batch;
    for (const column of needsOf.get(name) ?? []) {
      if (batch.has(column)) continue;
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[advantages] estimator '${name}' was registered with needs ${column}, which the batch does not have`,
      );
    }
  }
  return estimate(name, inputs, config, (length) => new Float32Array(length));
}
