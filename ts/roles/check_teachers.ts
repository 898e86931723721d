// Whether the teachers of a distillation can take what they are to evaluate.
import { readModelShape } from '../checkpoint/model_shape';
import type { ResolvedConfig } from '../config/config';
import { teachersOf } from '../config/derived/teachers';
import { ConfigError } from '../errors';
import type { NativeModelConfig } from '../native/bridge';
import { teacherTokens } from './settings';

/**
 * Sequences that a teacher has no positions for, and more tokens than it has, would fail in a step. Reads config.json of each.
 * @param absent directories that are passed over
 * @throws ConfigError naming the key
 */
export function checkTeacherSizes(config: ResolvedConfig, absent: readonly string[] = []): void {
  for (const { section, keys } of teachersOf(config)) {
    const key = `${section}.model_path`;
    const path = keys.model_path as string;
    if (!absent.includes(path)) checkSize(config, key, path, readModelShape(path, 'lm', key).config);
  }
}

function checkSize(
  config: ResolvedConfig,
  key: string,
  path: string,
  { vocabSize, maxPositions }: NativeModelConfig,
): void {
  const { max_prompt_length: prompt, max_response_length: response } = config.data;
  if (prompt + response > maxPositions)
    throw new ConfigError(
      `${key}: data.max_prompt_length ${prompt} + data.max_response_length ${response} = ${prompt + response} tokens are more than ` +
        `the ${maxPositions} positions of the teacher in ${path}`,
      key,
    );
  const topK = teacherTokens(config);
  if (topK > vocabSize)
    throw new ConfigError(
      `distillation.distillation_loss.topk: expected at most ${vocabSize}, the vocabulary of the teacher in ${path}, got ${topK}`,
      'distillation.distillation_loss.topk',
    );
}
