// The token ids of a prompt that came as text.
import { ApiError } from './api_error';
import type { ServedModel } from './served_model';

/**
 * A text that cannot fit is refused before its tokens are looked for, which takes the time of everybody else's streams. `specialTokens`: with
 * those of the tokenizer around it.
 * @throws ApiError 400 naming `field`
 */
export function textIds(
  { engine: { maxTokens }, tokenizer, bytes }: ServedModel,
  text: string,
  field: string,
  specialTokens = false,
): Int32Array {
  // A character has at least a byte.
  if (text.length > maxTokens && text.length > maxTokens * bytes.longest) {
    throw new ApiError(
      400,
      `this model's maximum context length is ${maxTokens} tokens, none of more than ${bytes.longest} bytes: the prompt has ${text.length} characters`,
      field,
      'context_length_exceeded',
    );
  }
  return tokenizer.encode(text, specialTokens);
}
