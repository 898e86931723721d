// Counts of tokens, and errors, as the OpenAI API writes them.
import type { ServerEvent } from '../call/answer';
import type { ApiError } from '../call/api_error';
import type { CallRecord } from '../call/model_call';

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
}

/** Each prompt counts once, whatever the number of its choices. */
export function usageOf(prompts: readonly ArrayLike<number>[], records: readonly CallRecord[]): Usage {
  const sum = (counts: number[]): number => counts.reduce((total, count) => total + count, 0);
  const promptTokens = sum(prompts.map(({ length }) => length));
  const completion = sum(records.map(({ tokens }) => tokens.length));
  const cached = sum(
    prompts.map((prompt) => {
      const own = records.filter(({ promptIds }) => promptIds === prompt);
      return Math.min(prompt.length, Math.max(0, ...own.map(({ cachedTokens }) => cachedTokens)));
    }),
  );
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completion,
    total_tokens: promptTokens + completion,
    prompt_tokens_details: { cached_tokens: cached },
  };
}

export const errorBody = ({ message, type, param, code }: ApiError): unknown => ({
  error: { message, type, param, code },
});

/** In the middle of a stream: its status has been sent. */
export const errorEvent = (error: ApiError): ServerEvent => ({ data: JSON.stringify(errorBody(error)) });
