// Fields that completions and chat completions share: the OpenAI API's, and those that vLLM and SGLang add.
import { z } from 'zod';
import { sizeProblem } from '../../base/json_shape';
import { MAX_TEMPERATURE, MIN_TEMPERATURE } from '../../base/limits';
import { nearestName } from '../../base/nearest_name';
import { isWellFormed } from '../../base/text';
import type { SamplingParams } from '../../rollout/request';
import { ApiError, badField } from '../call/api_error';
import { defined } from '../call/defined';
import type { ServedModel } from '../call/served_model';
import { list } from './lists';
import { logitBias } from './logit_bias';
import { tokenIds } from './prompts';

const MOST_CHOICES = 128;
const MOST_STOPS = 16;
/** A conversation of ten thousand messages, a third of them calls of tools, has less than half of them. */
const MOST_KEYS = 100_000;

/** Absent and null are the same in these APIs. */
export const optional = <T extends z.ZodType>(type: T) =>
  type.nullish().transform((value) => value ?? undefined);

/** Its keys are nobody's here: a schema for each takes seconds where there are many. */
export const anyObject = z.custom<Record<string, unknown>>(
  (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
  'expected an object',
);

/** Half a character would be found within others, and leave their other half behind. */
export const stopText = z
  .string()
  .min(1)
  .refine(isWellFormed, 'expected whole characters, got half a surrogate pair');

export const samplingFields = {
  temperature: optional(
    z
      .number()
      .min(0)
      .max(MAX_TEMPERATURE)
      .refine((value) => value === 0 || value >= MIN_TEMPERATURE, {
        error: `expected 0 (greedy), or a number from ${MIN_TEMPERATURE} to ${MAX_TEMPERATURE}`,
      }),
  ),
  top_p: optional(z.number().gt(0).max(1)),
  top_k: optional(z.int().min(-1)),
  min_p: optional(z.number().min(0).max(1)),
  // Logits divided by less would overflow.
  repetition_penalty: optional(z.number().min(1e-6).max(100)),
  presence_penalty: optional(z.number().min(-2).max(2)),
  frequency_penalty: optional(z.number().min(-2).max(2)),
  logit_bias: optional(logitBias),
  seed: optional(z.int()),
  n: optional(z.int().min(1).max(MOST_CHOICES)),
  stop: optional(
    z
      .union([stopText, list(stopText, { max: MOST_STOPS })], {
        error: `expected a text, or at most ${MOST_STOPS} texts, none of them empty`,
      })
      .transform((s) => [s].flat()),
  ),
  stop_token_ids: optional(tokenIds.transform((ids) => [...new Set(ids)])),
  ignore_eos: optional(z.boolean()),
  skip_special_tokens: optional(z.boolean()),
  return_token_ids: optional(z.boolean()),
  priority: optional(z.int()),
  cache_salt: optional(z.string().min(1).max(256)),
};

export const streamFields = {
  model: optional(z.string()),
  stream: optional(z.boolean()),
  stream_options: optional(
    z.strictObject({ include_usage: optional(z.boolean()), include_obfuscation: optional(z.boolean()) }),
  ),
};

/** Of the OpenAI API: who asks, and what its servers do with it. Nothing here depends on them. */
export const harmlessFields = Object.fromEntries(
  [
    'user',
    'metadata',
    'store',
    'service_tier',
    'safety_identifier',
    'prompt_cache_key',
    'prompt_cache_retention',
    'prediction',
  ].map((name) => [name, z.unknown().optional()]),
);

export type SamplingFields = z.infer<z.ZodObject<typeof samplingFields>>;

/** Values of a body by its schema. @throws ApiError 400 naming the field */
export function parseBody<T>(schema: z.ZodType<T>, body: unknown, known: readonly string[]): T {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const issue = deepest(result.error.issues);
  if (issue.code === 'unrecognized_keys') {
    const field = [...issue.path, (issue as { keys: string[] }).keys[0] as string].map(String).join('.');
    throw badField(field.slice(0, 200), `there is no such field${nearest(field, known)}`);
  }
  const path = issue.path.map(String).join('.');
  throw path === ''
    ? new ApiError(400, `expected a JSON object as body: ${issue.message}`)
    : badField(path, issue.message);
}

/** Of a union, what is wrong with the alternative that came farthest. */
function deepest(issues: readonly z.core.$ZodIssue[]): z.core.$ZodIssue {
  const [first] = issues as [z.core.$ZodIssue];
  if (first.code !== 'invalid_union') return first;
  const inner = (first.errors as z.core.$ZodIssue[][])
    .filter((alternative) => alternative.length > 0)
    .map((alternative) => deepest(alternative))
    .sort((a, b) => b.path.length - a.path.length)[0];
  if (inner === undefined || inner.path.length === 0) return first;
  return { ...inner, path: [...first.path, ...inner.path] } as z.core.$ZodIssue;
}

function nearest(field: string, known: readonly string[]): string {
  const near = nearestName(known, field);
  return near === null ? '' : `: did you mean ${near}?`;
}

/** The parsed text of a body. @throws ApiError 400 */
export function parseJson(text: string): unknown {
  // Templates and schemas walk it by recursion, and everybody else's streams stand still while it is parsed.
  const problem = sizeProblem(text, MOST_KEYS);
  if (problem === 'deep') throw new ApiError(400, 'the body is nested too deeply');
  if (problem === 'keys')
    throw new ApiError(400, `expected a body of at most ${MOST_KEYS} keys in all its objects`);
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(400, `expected JSON as body: ${(error as Error).message}`);
  }
}

/** @throws ApiError 400 naming `field` where one of these is no id of the model */
export function checkIds(
  field: string,
  ids: Iterable<number>,
  { vocabSize }: Pick<ServedModel, 'vocabSize'>,
): void {
  for (const id of ids) {
    if (id >= vocabSize)
      throw badField(
        field,
        `expected token ids from 0 to ${vocabSize - 1}, the model's vocabulary, got ${id}`,
      );
  }
}

/** Sampling of one choice, but for its length. @throws ApiError 400 */
export function samplingOf(f: SamplingFields, model: ServedModel): Omit<SamplingParams, 'maxNewTokens'> {
  checkIds('logit_bias', f.logit_bias?.keys() ?? [], model);
  checkIds('stop_token_ids', f.stop_token_ids ?? [], model);
  const stopTokenIds = f.ignore_eos
    ? (f.stop_token_ids ?? [])
    : f.stop_token_ids && [...model.eosTokenIds, ...f.stop_token_ids];
  return defined({
    temperature: f.temperature,
    topP: f.top_p,
    topK: f.top_k,
    minP: f.min_p,
    repetitionPenalty: f.repetition_penalty,
    presencePenalty: f.presence_penalty,
    frequencyPenalty: f.frequency_penalty,
    logitBias: f.logit_bias,
    stopTokenIds,
  });
}
