// Requests in the form that the core takes.
import { createHash, randomBytes } from 'node:crypto';
import type { NativeRequestSampling, NativeRolloutRequest } from '../../native/bridge';
import type { SharedSampling } from '../check_request';
import type { LiveRequest } from './live_request';

/** Requests of a batch share their sampling: a message has it once, and not a hundred thousand times. */
export class NativeRequests {
  private last: { of: SharedSampling; sampling: NativeRequestSampling } | null = null;

  /** `request` in the form that the core takes, without the numbers of its images. */
  of({ id, promptIds, sampling, request }: LiveRequest): Omit<NativeRolloutRequest, 'images'> {
    if (this.last?.of !== sampling) this.last = { of: sampling, sampling: nativeSampling(sampling) };
    return {
      id,
      prompt: promptIds,
      sampling: this.last.sampling,
      seedAndSalt: BigUint64Array.of(
        request.sampling.seed ?? randomBytes(8).readBigUInt64LE(0),
        saltOf(request.cacheSalt),
      ),
      priority: request.priority ?? 0,
    };
  }
}

export function nativeSampling(s: SharedSampling): NativeRequestSampling {
  const offsets = [0];
  for (const word of s.badWords) offsets.push((offsets.at(-1) as number) + word.length);
  return {
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
  };
}

/** Equal for equal texts; 0 for none. */
function saltOf(text: string | undefined): bigint {
  return text === undefined ? 0n : createHash('sha256').update(text).digest().readBigUInt64LE(0);
}
