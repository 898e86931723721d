// The token ids of a prompt that came as text.
import { ApiError } from './api_error';
import type { ServedModel } from './served_model';

/** Characters of a text that is tokenized in place: that takes some milliseconds. */
const SHORT = 16_384;

/**
 * A text that cannot fit is refused before its tokens are looked for, and a long one is given to a thread: everybody else's streams go on.
 * `specialTokens`: with those of the tokenizer around it.
 * @throws ApiError 400 naming `field`; the signal's reason
 */
export async function textIds(
  { engine: { maxTokens }, tokenizer, bytes, texts }: ServedModel,
  text: string,
  field: string,
  signal: AbortSignal,
  specialTokens = false,
): Promise<Int32Array> {
  // A character has at least a byte.
  if (text.length > maxTokens && text.length > maxTokens * bytes.longest) {
    throw new ApiError(
      400,
      `this model's maximum context length is ${maxTokens} tokens, none of more than ${bytes.longest} bytes: the prompt has ${text.length} characters`,
      field,
      'context_length_exceeded',
    );
  }
  return text.length <= SHORT
    ? tokenizer.encode(text, specialTokens)
    : await texts.encode(text, specialTokens, signal);
}
