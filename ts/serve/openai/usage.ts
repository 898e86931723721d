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

/** The prompt counts once, whatever the number of choices. */
export function usageOf(promptTokens: number, records: readonly CallRecord[]): Usage {
  const completion = records.reduce((sum, { tokens }) => sum + tokens.length, 0);
  const cached = Math.max(0, ...records.map(({ cachedTokens }) => cachedTokens));
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completion,
    total_tokens: promptTokens + completion,
    prompt_tokens_details: { cached_tokens: Math.min(cached, promptTokens) },
  };
}

export const errorBody = ({ message, type, param, code }: ApiError): unknown => ({
  error: { message, type, param, code },
});

/** In the middle of a stream: its status has been sent. */
export const errorEvent = (error: ApiError): ServerEvent => ({ data: JSON.stringify(errorBody(error)) });
