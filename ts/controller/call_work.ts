// How much a call of an engine asks for, as far as its time depends on that.
import type { NewRequest } from './worker_requests';

export interface CallWork {
  /** Tokens of its sequences, times the epochs over them; 0: it has none. */
  tokens: number;
  /** Tokens of the longest. */
  longest: number;
}

const NOTHING: CallWork = { tokens: 0, longest: 0 };

export function workOf(request: NewRequest): CallWork {
  if (request.type !== 'callEngine') return NOTHING;
  const offsets = request.args.map(offsetsIn).find((found) => found !== null);
  if (offsets == null || offsets.length === 0) return NOTHING;
  let longest = 0;
  for (let i = 1; i < offsets.length; i++)
    longest = Math.max(longest, (offsets[i] as number) - (offsets[i - 1] as number));
  const epochs = Math.max(1, ...request.args.map(epochsIn));
  return { tokens: (offsets.at(-1) as number) * epochs, longest };
}

/** How many times longer than a call of `before` one of `now` may take: attention grows with the square of a length. */
export const growth = (now: CallWork, before: CallWork): number =>
  Math.max(1, now.tokens / Math.max(1, before.tokens)) *
  Math.max(1, now.longest / Math.max(1, before.longest));

/** Of a batch, or of what holds one. */
function offsetsIn(arg: unknown): Int32Array | null {
  if (typeof arg !== 'object' || arg === null) return null;
  const { seqOffsets, tokens } = arg as { seqOffsets?: unknown; tokens?: unknown };
  if (seqOffsets instanceof Int32Array) return seqOffsets;
  return ArrayBuffer.isView(tokens) ? null : offsetsIn(tokens);
}

function epochsIn(arg: unknown): number {
  const epochs = typeof arg === 'object' && arg !== null ? (arg as { epochs?: unknown }).epochs : undefined;
  return typeof epochs === 'number' ? epochs : 1;
}
