// How long the sequences of a run may become.
import { roomFor } from '../../base/response_room';
import type { ResolvedConfig } from '../schema/ppo_schema';

export const MOST_TOKENS = 'actor_rollout_ref.rollout.max_model_len';

/** The most tokens of each. No sequence need have a prompt and a response that are both as long. */
export interface SequenceBounds {
  prompt: number;
  response: number;
  /** Prompt and response together. */
  sequence: number;
}

/** A response is as long as `rollout.max_model_len` leaves beside its prompt, and a prompt leaves one token. */
export function sequenceBounds({ data, actor_rollout_ref: { rollout } }: ResolvedConfig): SequenceBounds {
  const { max_prompt_length: prompt, max_response_length: response } = data;
  const maxTokens = rollout.max_model_len ?? Number.POSITIVE_INFINITY;
  return {
    prompt: Math.min(prompt, maxTokens - 1),
    response: roomFor(1, { maxNewTokens: response, maxTokens }),
    sequence: Math.min(prompt + response, maxTokens),
  };
}

/** What says how long a sequence may become, and how long that is, for messages. */
export function longestText(config: ResolvedConfig): string {
  const { max_prompt_length: prompt, max_response_length: response } = config.data;
  const { sequence } = sequenceBounds(config);
  return sequence < prompt + response
    ? `${MOST_TOKENS} ${sequence}`
    : `data.max_prompt_length ${prompt} + data.max_response_length ${response} = ${sequence}`;
}
