import { z } from 'zod';
import { MODEL_LIMITS } from '../base/limits';
import { show } from '../base/text';
import { TroupeError } from '../errors';
import { firstIssue } from './issue';

/** Rotary embedding, resolved: angle = position * invFreq, cos and sin times attentionFactor. */
export interface Rope {
  invFreq: Float64Array; // half of the part of a head that turns
  attentionFactor: number;
  /** Of the scale of attention, where a model has it there (mscale_all_dim, in the models with latent attention). */
  scoreFactor: number;
  /** How far positions reach beyond max_position_embeddings, which some scalings leave at its original value. */
  maxPositions: number;
}

export interface RopeInput {
  /** The whole config.json. */
  raw: Record<string, unknown>;
  headDim: number;
  maxPositions: number;
  /** Where the config does not say; default 10000. */
  defaultTheta?: number;
  /** The share of a head that turns where the config does not say; default: all of it, and nothing else is supported. */
  partialFactor?: number;
  /** What a family has, under its names; default: all under theirs. */
  types?: Readonly<Record<string, RopeType>>;
  where: string;
}

type RopeType = 'default' | 'linear' | 'dynamic' | 'llama3' | 'yarn' | 'longrope' | 'proportional';

/** Under the names of transformers. */
export const ROPE_TYPES: Readonly<Record<string, RopeType>> = {
  default: 'default',
  linear: 'linear',
  dynamic: 'dynamic',
  llama3: 'llama3',
  yarn: 'yarn',
  longrope: 'longrope',
};

const positive = z.number().positive();
const optional = positive.nullish();
const factors = z.array(positive).nullish();

const schema = z.object({
  rope_theta: optional,
  factor: optional,
  original_max_position_embeddings: optional,
  low_freq_factor: optional,
  high_freq_factor: optional,
  beta_fast: optional,
  beta_slow: optional,
  attention_factor: optional,
  mscale: z.number().nullish(),
  mscale_all_dim: z.number().nullish(),
  truncate: z.boolean().nullish(),
  partial_rotary_factor: optional,
  short_factor: factors,
  long_factor: factors,
});
type Parameters = z.infer<typeof schema>;

/**
 * Reads RoPE in both spellings: `rope_parameters` (transformers 5) and `rope_theta` + `rope_scaling` (the hub), and computes the
 * frequencies in double precision. Formulas: RoPE (Su et al., 2021), linear (Chen et al., 2023), dynamic NTK (within the length of pretraining: unscaled), YaRN (Peng et al., 2023),
 * LongRoPE (Ding et al., 2024), llama3 (Llama 3.1 release), as in transformers' modeling_rope_utils.
 */
export function resolveRope(input: RopeInput): Rope {
  const { turning, ...rope } = { scoreFactor: 1, ...rotary(input) };
  const usable = (value: number): boolean => Number.isFinite(value) && value > 0;
  if (
    !rope.invFreq.subarray(0, turning).every(usable) ||
    !usable(rope.attentionFactor) ||
    !usable(rope.scoreFactor)
  ) {
    throw invalid(input.where, 'the RoPE parameters give frequencies that are not finite numbers > 0');
  }
  if (rope.maxPositions > MODEL_LIMITS.positions) {
    throw invalid(
      input.where,
      `max_position_embeddings and the RoPE factor give ${rope.maxPositions} positions: expected at most ${MODEL_LIMITS.positions}`,
    );
  }
  return rope;
}

/** What config.json says of RoPE, and under which key; nothing: {}. */
export function givenRope(raw: Record<string, unknown>): { key: string; given: Record<string, unknown> } {
  const key = isFilled(raw.rope_scaling) ? 'rope_scaling' : 'rope_parameters';
  return { key, given: isFilled(raw[key]) ? (raw[key] as Record<string, unknown>) : {} };
}

/** turning: of the frequencies, the first that are not 0; not given: all. */
function rotary(input: RopeInput): Omit<Rope, 'scoreFactor'> & Partial<Rope> & { turning?: number } {
  const { raw, where } = input;
  const { key, given } = givenRope(raw);
  const { types = ROPE_TYPES, defaultTheta = 10000 } = input;
  const name = given.rope_type ?? given.type ?? 'default';
  if (Object.values(given).some((v) => typeof v === 'object' && v !== null && !Array.isArray(v))) {
    throw invalid(where, `${key} per layer type is not supported: one set of parameters for all layers is`);
  }
  const type = typeof name === 'string' && Object.hasOwn(types, name) ? types[name] : undefined;
  if (type === undefined) {
    throw invalid(
      where,
      `${key}.rope_type ${show(name)} is not supported; supported: ${Object.keys(types).join(', ')}`,
    );
  }
  const values = { ...pick(raw), ...given, ...originalLength(raw) };
  const parsed = schema.safeParse(values);
  if (!parsed.success) {
    throw invalid(where, `${key}.${firstIssue(parsed.error, values)}`);
  }
  const p = parsed.data;
  const turning = type === 'proportional' ? input.headDim : rotaryDim(p.partial_rotary_factor, input);
  const theta = p.rope_theta ?? defaultTheta;
  const base = Float64Array.from({ length: turning / 2 }, (_, i) => theta ** ((2 * i) / turning));
  const original = p.original_max_position_embeddings ?? input.maxPositions;
  const need = <K extends 'factor' | 'low_freq_factor' | 'high_freq_factor' | 'short_factor' | 'long_factor'>(
    parameter: K,
  ): NonNullable<Parameters[K]> => {
    const value = p[parameter];
    if (value === undefined || value === null)
      throw invalid(where, `${key}.${parameter} is missing, rope type '${name}' needs it`);
    return value;
  };
  const unscaled = { invFreq: base.map((f) => 1 / f), attentionFactor: 1, maxPositions: input.maxPositions };
  switch (type) {
    case 'linear': {
      const factor = need('factor');
      return {
        invFreq: base.map((f) => 1 / f / factor),
        attentionFactor: 1,
        maxPositions: Math.floor(input.maxPositions * Math.max(factor, 1)),
      };
    }
    case 'llama3':
      return {
        invFreq: llama3(base, need('factor'), need('low_freq_factor'), need('high_freq_factor'), original),
        attentionFactor: 1,
        maxPositions: input.maxPositions,
      };
    case 'yarn': {
      const factor = p.factor ?? input.maxPositions / original;
      return {
        invFreq: yarn(base, turning, theta, factor, original, p),
        attentionFactor: p.attention_factor ?? yarnAttentionFactor(factor, p.mscale, p.mscale_all_dim),
        scoreFactor: p.mscale_all_dim ? yarnScale(factor, p.mscale_all_dim) ** 2 : 1,
        maxPositions: Math.max(input.maxPositions, Math.floor(original * factor)),
      };
    }
    case 'longrope': {
      const [short, long] = (['short_factor', 'long_factor'] as const).map((parameter) => {
        const list = need(parameter);
        if (list.length !== base.length)
          throw invalid(where, `${key}.${parameter}: expected ${base.length} factors, got ${list.length}`);
        return list;
      }) as [number[], number[]];
      // transformers turns all of a batch by the other factors when one sequence of it is longer, and what a cache holds stays as
      // it was: no function of a sequence. Up to that length it is one.
      const alike = short.every((value, i) => value === long[i]);
      return {
        invFreq: base.map((f, i) => 1 / (f * (short[i] as number))),
        attentionFactor:
          p.attention_factor ?? longAttentionFactor(p.factor ?? input.maxPositions / original, original),
        maxPositions: alike ? input.maxPositions : Math.min(input.maxPositions, original),
      };
    }
    case 'proportional': {
      // All of a head turns, but behind the first share of its pairs by nothing.
      const share = p.partial_rotary_factor ?? 1;
      if (share > 1)
        throw invalid(where, `${key}.partial_rotary_factor ${share}: expected a share of at most 1`);
      const angles = Math.floor((share * turning) / 2);
      const invFreq = base.map((f, i) => (i < angles ? 1 / f / (p.factor ?? 1) : 0));
      return { invFreq, turning: angles, attentionFactor: 1, maxPositions: input.maxPositions };
    }
    case 'dynamic':
      // Beyond max_position_embeddings transformers turns all of a batch by the length of its longest sequence (see longrope).
      need('factor');
      return unscaled;
    default:
      return unscaled;
  }
}

/** How many numbers of a head turn. */
function rotaryDim(given: number | null | undefined, { headDim, partialFactor, where }: RopeInput): number {
  if (partialFactor === undefined) {
    if ((given ?? 1) !== 1)
      throw invalid(
        where,
        `partial_rotary_factor ${given} is not supported for this model_type; supported: 1 (all of the head)`,
      );
    return headDim;
  }
  const factor = given === undefined ? partialFactor : (given ?? 1); // null: all of it, in transformers
  const dim = Math.trunc(headDim * factor);
  if (factor > 1 || dim < 2 || dim % 2 !== 0) {
    throw invalid(
      where,
      `partial_rotary_factor ${factor} of head_dim ${headDim}: expected a share of at most 1 that is an even number >= 2, got ${dim}`,
    );
  }
  return dim;
}

const invalid = (where: string, message: string): TroupeError =>
  new TroupeError('INVALID_MODEL', `[model] ${where}: ${message}`);

const isFilled = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && Object.keys(value).length > 0;

/** Parameters that hub configs keep beside rope_scaling. */
function pick(raw: Record<string, unknown>): Record<string, unknown> {
  const { rope_theta, partial_rotary_factor } = raw;
  return { rope_theta, partial_rotary_factor };
}

/** Where a config has the pretraining length beside the RoPE parameters, that one counts. */
function originalLength(raw: Record<string, unknown>): Record<string, unknown> {
  const value = raw.original_max_position_embeddings;
  return value === undefined || value === null ? {} : { original_max_position_embeddings: value };
}

function llama3(
  base: Float64Array,
  factor: number,
  low: number,
  high: number,
  original: number,
): Float64Array {
  return base.map((f) => {
    const wavelength = 2 * Math.PI * f;
    if (wavelength < original / high) return 1 / f;
    if (wavelength > original / low) return 1 / f / factor;
    const smooth = (original / wavelength - low) / (high - low);
    return ((1 - smooth) / factor + smooth) / f;
  });
}

function yarn(
  base: Float64Array,
  dim: number,
  theta: number,
  factor: number,
  original: number,
  p: Parameters,
): Float64Array {
  // The dimension whose wavelength fits `rotations` times into the original context.
  const correction = (rotations: number): number =>
    (dim * Math.log(original / (rotations * 2 * Math.PI))) / (2 * Math.log(theta));
  let low = correction(p.beta_fast ?? 32);
  let high = correction(p.beta_slow ?? 1);
  if (p.truncate === undefined || p.truncate) {
    low = Math.floor(low);
    high = Math.ceil(high);
  }
  low = Math.max(low, 0);
  high = Math.min(high, dim - 1);
  if (low === high) high += 0.001; // the ramp must have a slope
  return base.map((f, i) => {
    const interpolate = Math.min(Math.max((i - low) / (high - low), 0), 1);
    return (interpolate / factor + (1 - interpolate)) / f;
  });
}

const yarnScale = (factor: number, m: number): number => (factor <= 1 ? 1 : 0.1 * m * Math.log(factor) + 1);

const yarnAttentionFactor = (factor: number, mscale?: number | null, mscaleAllDim?: number | null): number =>
  mscale && mscaleAllDim ? yarnScale(factor, mscale) / yarnScale(factor, mscaleAllDim) : yarnScale(factor, 1);

const longAttentionFactor = (factor: number, original: number): number =>
  factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(original));
