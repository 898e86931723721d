// One call of the model: the ids it saw, the ids it made, and what is known of them.
import type { PromptImage } from '../../batch/prompt_image';
import type { FinishReason, RolloutResult } from '../../rollout/request';

export interface ModelCall {
  /** [P] all that the model saw. */
  promptIds: Int32Array;
  /** In the order of their tokens in it. */
  images: readonly PromptImage[];
  /** [R] what it made. */
  tokens: Int32Array;
  /** [R] at the sampling temperature. */
  logProbs: Float32Array;
  /** Tokens [start, end) were made by this version of the weights; without gaps. */
  versions: readonly { version: number; start: number; end: number }[];
  finishReason: FinishReason;
  /** Seconds from the request to its last token. */
  seconds: number;
}

export const modelCall = (
  promptIds: ArrayLike<number>,
  { tokens, logProbs, versions, finishReason }: RolloutResult,
  seconds: number,
  images: readonly PromptImage[] = [],
): ModelCall => ({
  promptIds: Int32Array.from(promptIds),
  images,
  tokens: Int32Array.from(tokens),
  logProbs: Float32Array.from(logProbs),
  versions,
  finishReason,
  seconds,
});

/** [R] the version of each token. */
export function tokenVersions({ tokens, versions }: ModelCall): Int32Array {
  const out = new Int32Array(tokens.length);
  for (const { version, start, end } of versions) out.fill(version, start, end);
  return out;
}
