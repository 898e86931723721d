import { BYPASS_MODE, registeredPolicyLoss } from '../algorithms/policy_losses/registry';
import {
  badOption,
  checkOptionNames,
  numberOption,
  requireNumbers,
  requireOptions,
} from '../base/check_options';
import { toMask } from '../batch/columns';
import { requireGroup } from '../controller/require_group';
import { WorkerGroup } from '../controller/worker_group';
import type { NativeMetrics, NativePolicyLossInputs, NativePolicyLossOptions } from '../native/bridge';
import { bypassLoss, givenLoss } from './given_loss';
import type { PolicyLossOptions, ValueLossOptions } from './update_options';
import { resolvePolicyLoss, resolveValueLoss } from './update_options';

// The core's losses on given per-token arrays, for study and tests. Each call starts one worker process (about a second)
// unless it is given a group.

interface LossLayout {
  /** [b+1] over response tokens; default: one sequence. */
  offsets?: ArrayLike<number>;
  /** [ΣR] 0/1; default: all ones. */
  responseMask?: ArrayLike<number>;
  /** Divisor of token-mean: mask sum of the whole mini-batch; default: of these inputs. */
  globalTokens?: number;
  /**
   * Divisor of seq-mean-* and geo_mean: sequences of the whole mini-batch; default: those of these inputs that the mask leaves a token, with
   * geo_mean all of them.
   */
  globalSequences?: number;
}

/** All arrays [ΣR]. */
export interface PolicyLossInputs extends LossLayout {
  logProbs: ArrayLike<number>;
  /** bypass_mode takes rolloutLogProbs, and these only without them; every other mode needs them. */
  oldLogProbs?: ArrayLike<number>;
  advantages: ArrayLike<number>;
  entropy?: ArrayLike<number>;
  refLogProbs?: ArrayLike<number>;
  rolloutIsWeights?: ArrayLike<number>;
  rolloutLogProbs?: ArrayLike<number>;
  /** With `distillation`, but not with forward_kl_topk, which needs an engine. */
  teacherLogProbs?: ArrayLike<number>;
}

/** All arrays [ΣR]. */
export interface ValueLossInputs extends LossLayout {
  predictions: ArrayLike<number>;
  values: ArrayLike<number>;
  returns: ArrayLike<number>;
}

export interface PolicyLossResult {
  loss: number;
  /** [ΣR] d loss / d log-prob */
  gradLogProbs: Float32Array;
  /** [ΣR] d loss / d entropy; null when the entropy is not part of the loss */
  gradEntropy: Float32Array | null;
  metrics: NativeMetrics;
}

export interface ValueLossResult {
  loss: number;
  /** [ΣR] d loss / d prediction */
  gradValues: Float32Array;
  metrics: NativeMetrics;
}

const LAYOUT_KEYS = ['offsets', 'responseMask', 'globalTokens', 'globalSequences'];
const POLICY_KEYS = [
  'logProbs',
  'oldLogProbs',
  'advantages',
  'entropy',
  'refLogProbs',
  'rolloutIsWeights',
  'rolloutLogProbs',
  'teacherLogProbs',
];

/**
 * A policy loss by mode (vanilla, gspo, ..., bypass_mode, or a registered one), its gradient and its metrics. In bypass_mode
 * globalTokens and globalSequences count, by default, what is not rejected. Formulas and sources: docs/algorithms.md.
 * @throws TroupeError INVALID_ARGUMENT naming the option or array
 */
export async function policyLoss(
  mode: string,
  inputs: PolicyLossInputs,
  options: PolicyLossOptions = {},
  group?: WorkerGroup,
): Promise<PolicyLossResult> {
  const where = 'policyLoss';
  checkOptionNames(where, inputs, [...LAYOUT_KEYS, ...POLICY_KEYS]);
  checkProbe(where, options, group);
  requireNumbers(where, 'logProbs', inputs.logProbs);
  const length = inputs.logProbs.length;
  const counted =
    mode === 'geo_mean' ? { ...inputs, globalSequences: inputs.globalSequences ?? rowsOf(inputs) } : inputs;
  const layout = resolveLayout(where, counted, length);
  const floats = (name: keyof PolicyLossInputs): Float32Array | null =>
    column(where, name, inputs[name], length);
  const loss = resolvePolicyLoss(where, { ...options, mode }, longestOf(layout.offsets));
  const rolloutLogProbs = floats('rolloutLogProbs');
  const old = floats('oldLogProbs');
  const native: NativePolicyLossInputs = {
    ...layout,
    logProbs: Float32Array.from(inputs.logProbs),
    entropy: floats('entropy') ?? (loss.entropyCoeff === 0 ? null : missing(where, 'entropy')),
    oldLogProbs: (mode === BYPASS_MODE ? rolloutLogProbs : null) ?? old ?? missing(where, 'oldLogProbs'),
    advantages: floats('advantages') ?? missing(where, 'advantages'),
    refLogProbs: floats('refLogProbs') ?? (loss.useKlLoss ? missing(where, 'refLogProbs') : null),
    rolloutIsWeights: floats('rolloutIsWeights'),
    givenLoss: null,
    teacherLogProbs: floats('teacherLogProbs') ?? taught(where, loss),
    studentTop: null,
  };
  const prepared = prepare(native, rolloutLogProbs, loss, options, inputs);
  const result = await withGroup(group, (workers) =>
    workers.callBinding('policyLoss', [prepared.inputs, prepared.loss]),
  );
  return { ...result, metrics: { ...prepared.metrics, ...result.metrics } };
}

/** What a distillation needs of the inputs and lacks. */
function taught(where: string, { distillation }: NativePolicyLossOptions): null {
  if (distillation === null) return null;
  if (distillation.topK === 0) return missing(where, 'teacherLogProbs');
  throw badOption(where, 'distillation: forward_kl_topk needs the log-probs of an engine: use updatePolicy');
}

/** A loss that TypeScript computes or corrects, as the core takes it; the core's own as they are. */
function prepare(
  inputs: NativePolicyLossInputs,
  rolloutLogProbs: Float32Array | null,
  loss: NativePolicyLossOptions,
  { rolloutCorrection = {}, kwargs = {} }: PolicyLossOptions,
  given: LossLayout,
): { inputs: NativePolicyLossInputs; loss: NativePolicyLossOptions; metrics: NativeMetrics } {
  if (loss.mode === BYPASS_MODE) {
    const { mode, responseMask, rolloutIsWeights, metrics } = bypassLoss(
      { ...inputs, rolloutLogProbs: inputs.oldLogProbs },
      rolloutCorrection,
    );
    return {
      inputs: { ...inputs, responseMask, rolloutIsWeights, ...divisors(given, inputs.offsets, responseMask) },
      loss: { ...loss, mode },
      metrics,
    };
  }
  const fn = registeredPolicyLoss(loss.mode);
  if (fn === null) return { inputs, loss, metrics: {} };
  const {
    refLogProbs,
    rolloutIsWeights,
    entropy,
    givenLoss: _,
    teacherLogProbs: _t,
    studentTop: _s,
    ...columns
  } = inputs;
  const { given: known, metrics } = givenLoss(
    loss.mode,
    fn,
    {
      ...columns,
      entropy: entropy ?? missing('policyLoss', `entropy, which '${loss.mode}' may use,`),
      ...(refLogProbs === null ? {} : { refLogProbs }),
      ...(rolloutIsWeights === null ? {} : { rolloutIsWeights }),
      ...(rolloutLogProbs === null ? {} : { rolloutLogProbs }),
    },
    loss,
    kwargs,
  );
  return {
    inputs: { ...inputs, rolloutIsWeights: null, givenLoss: known },
    loss: { ...loss, mode: 'linear' },
    metrics,
  };
}

/** The clipped value loss ½ max((v - R)², (clip(v, V ± clipRangeValue) - R)²), its gradient and its metrics. */
export async function valueLoss(
  inputs: ValueLossInputs,
  options: ValueLossOptions = {},
  group?: WorkerGroup,
): Promise<ValueLossResult> {
  const where = 'valueLoss';
  checkOptionNames(where, inputs, [...LAYOUT_KEYS, 'predictions', 'values', 'returns']);
  checkOptionNames(where, options, ['clipRangeValue', 'aggregation', 'scaleFactor']);
  checkProbe(where, options, group);
  requireNumbers(where, 'predictions', inputs.predictions);
  const length = inputs.predictions.length;
  const layout = resolveLayout(where, inputs, length);
  const native = {
    ...layout,
    predictions: Float32Array.from(inputs.predictions),
    values: column(where, 'values', inputs.values, length) ?? missing(where, 'values'),
    returns: column(where, 'returns', inputs.returns, length) ?? missing(where, 'returns'),
  };
  const loss = resolveValueLoss(where, options, longestOf(layout.offsets));
  const result = await withGroup(group, (workers) => workers.callBinding('valueLoss', [native, loss]));
  return { loss: result.loss, gradValues: result.gradPredictions, metrics: result.metrics };
}

function resolveLayout(
  where: string,
  inputs: LossLayout,
  length: number,
): { offsets: Int32Array; responseMask: Uint8Array; globalTokens: number; globalSequences: number } {
  const given = inputs.offsets ?? [0, length];
  requireNumbers(where, 'offsets', given);
  const offsets = Int32Array.from(given);
  const rising = offsets.every((at, i) => i === 0 || at >= (offsets[i - 1] as number));
  if (offsets.length < 1 || offsets[0] !== 0 || offsets[offsets.length - 1] !== length || !rising) {
    throw badOption(
      where,
      `offsets: expected [b+1] rising from 0 to ${length} but got [${[...offsets].slice(0, 8).join(', ')}]`,
    );
  }
  for (const name of ['globalTokens', 'globalSequences'] as const)
    numberOption(where, name, inputs[name], 1, { above: 0 });
  const responseMask =
    inputs.responseMask === undefined
      ? new Uint8Array(length).fill(1)
      : toMask(`${where}: responseMask`, maskOf(where, inputs.responseMask));
  if (responseMask.length !== length) {
    throw badOption(
      where,
      `responseMask: expected ${length} entries, as the other arrays, but got ${responseMask.length}`,
    );
  }
  return { offsets, responseMask, ...divisors(inputs, offsets, responseMask) };
}

function maskOf(where: string, value: unknown): ArrayLike<number> {
  requireNumbers(where, 'responseMask', value);
  return value;
}

function checkProbe(where: string, options: unknown, group: unknown): void {
  requireOptions(`${where} options`, options);
  if (group !== undefined) requireGroup(where, group);
}

/** With a token or without. */
const rowsOf = ({ offsets }: LossLayout): number => (offsets === undefined ? 1 : offsets.length - 1);

/** Those that are given, else counted: tokens of the mask, and sequences with one. */
function divisors(
  given: LossLayout,
  offsets: Int32Array,
  mask: Uint8Array,
): { globalTokens: number; globalSequences: number } {
  const rows = [...offsets.subarray(1)].map((end, i) => mask.subarray(offsets[i], end));
  return {
    globalTokens: given.globalTokens ?? mask.reduce((n, bit) => n + bit, 0),
    globalSequences: given.globalSequences ?? rows.filter((row) => row.includes(1)).length,
  };
}

function column(where: string, name: string, value: unknown, length: number): Float32Array | null {
  if (value === undefined) return null;
  requireNumbers(where, name, value, length);
  return Float32Array.from(value);
}

function missing(where: string, name: string): never {
  throw badOption(where, `${name} is missing`);
}

const longestOf = (offsets: Int32Array): number =>
  offsets.reduce((longest, at, i) => (i === 0 ? 0 : Math.max(longest, at - (offsets[i - 1] as number))), 0);

async function withGroup<T>(
  group: WorkerGroup | undefined,
  work: (group: WorkerGroup) => Promise<T>,
): Promise<T> {
  if (group !== undefined) return work(group);
  const own = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
  try {
    return await work(own);
  } finally {
    await own.close();
  }
}
