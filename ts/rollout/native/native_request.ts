// A request in the form that the core takes.
import { createHash, randomBytes } from 'node:crypto';
import type { NativeRolloutRequest } from '../../native/bridge';
import type { LiveRequest } from './live_request';

export function nativeRequest({ id, promptIds, sampling: s, request }: LiveRequest): NativeRolloutRequest {
  const offsets = [0];
  for (const word of s.badWords) offsets.push((offsets.at(-1) as number) + word.length);
  return {
    id,
    prompt: promptIds,
    sampling: {
      maxNewTokens: s.maxNewTokens,
      temperature: s.temperature,
      topK: s.topK,
      topP: s.topP,
      minP: s.minP,
      repetitionPenalty: s.repetitionPenalty,
      presencePenalty: s.presencePenalty,
      frequencyPenalty: s.frequencyPenalty,
      stopTokenIds: [...s.stopTokenIds],
      badWordIds: Int32Array.from(s.badWords.flat()),
      badWordOffsets: Int32Array.from(offsets),
      biasedIds: Int32Array.from(s.logitBias.keys()),
      biases: Float32Array.from(s.logitBias.values()),
      topLogProbs: s.topLogProbs,
      promptLogProbs: s.promptLogProbs,
      constrained: s.constraint !== undefined,
    },
    seedAndSalt: BigUint64Array.of(s.seed ?? randomBytes(8).readBigUInt64LE(0), saltOf(request.cacheSalt)),
    priority: request.priority ?? 0,
  };
}

/** Equal for equal texts; 0 for none. */
function saltOf(text: string | undefined): bigint {
  return text === undefined ? 0n : createHash('sha256').update(text).digest().readBigUInt64LE(0);
}
