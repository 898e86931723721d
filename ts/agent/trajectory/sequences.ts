// From the calls of a trajectory to the sequences that are trained: every sampled token once, in exactly the context it was sampled in.
import { types } from 'node:util';
import { badOption } from '../../base/check_options';
import { show } from '../../base/text';
import { type PromptImage, sameImages } from '../../batch/prompt_image';
import type { ModelCall } from './model_call';

/** The response of call `call` of the trajectory lies at tokens [start, end) of the sequence. */
export interface Turn {
  call: number;
  start: number;
  end: number;
}

export interface Sequence {
  /** [L] */
  tokens: Int32Array;
  /** Tokens before the response: what siblings and other samples of the same task can share. */
  promptLength: number;
  /** In order; what is between them is context. */
  turns: Turn[];
  /** All of them stand before the response; left out: there are none. */
  images?: readonly PromptImage[];
}

/** Whether `ids` begins with `prefix`. */
function startsWith(ids: Int32Array, prefix: Int32Array): boolean {
  if (prefix.length > ids.length) return false;
  const bytes = (a: Int32Array, length: number): Buffer => Buffer.from(a.buffer, a.byteOffset, length * 4);
  return bytes(ids, prefix.length).equals(bytes(prefix, prefix.length));
}

const imagesOf = ({ images }: ModelCall): Pick<Sequence, 'images'> => (images.length > 0 ? { images } : {});

interface Chain {
  parts: Int32Array[];
  length: number;
  /** The last call: the chain's tokens are its prompt and its response. */
  last: ModelCall;
  promptLength: number;
  turns: Turn[];
}

function continues({ last, length }: Chain, { promptIds, images }: ModelCall): boolean {
  if (promptIds.length < length || !sameImages(last.images, images)) return false;
  const { promptIds: before, tokens } = last;
  return startsWith(promptIds, before) && startsWith(promptIds.subarray(before.length), tokens);
}

function checkCalls(calls: unknown): void {
  const where = 'joinCalls';
  if (!Array.isArray(calls)) throw badOption(where, `expected an array of calls but got ${show(calls)}`);
  calls.forEach((call: Partial<ModelCall> | null, i) => {
    for (const name of ['promptIds', 'tokens'] as const)
      if (!types.isInt32Array(call?.[name]))
        throw badOption(where, `calls[${i}].${name}: expected an Int32Array but got ${show(call?.[name])}`);
    if (!Array.isArray(call?.images))
      throw badOption(where, `calls[${i}].images: expected an array but got ${show(call?.images)}`);
  });
}

/**
 * A call whose prompt begins with all the ids of an earlier sequence continues it: what is new in the prompt is context, what was
 * sampled is trained. Any other call begins a sibling, in which only its own tokens are trained: a history that was rewritten, a
 * sub-agent, a template that leaves out earlier reasoning, further images, which a sequence has in its prompt alone. So each call is a turn of exactly one sequence, and the tokens before a
 * turn are the ids that the model saw, whoever sent them. Calls that made no token are turns of none, but there is always one
 * sequence, unless there was no call.
 */
export function joinCalls(calls: readonly ModelCall[]): Sequence[] {
  checkCalls(calls);
  const [root] = calls;
  if (root === undefined) return [];
  const chains: Chain[] = [];
  calls.forEach((call, index) => {
    const { promptIds, tokens } = call;
    if (tokens.length === 0) return;
    const turn = { call: index, start: promptIds.length, end: promptIds.length + tokens.length };
    // The longest that fits: with equal ones it makes no difference which.
    const chain = chains
      .filter((one) => continues(one, call))
      .reduce<Chain | null>((best, one) => (best === null || one.length > best.length ? one : best), null);
    if (chain) {
      chain.parts.push(promptIds.subarray(chain.length), tokens);
      chain.length = turn.end;
      chain.last = call;
      chain.turns.push(turn);
    } else {
      const begins = startsWith(promptIds, root.promptIds) && sameImages(call.images, root.images);
      const promptLength = begins ? root.promptIds.length : promptIds.length;
      chains.push({ parts: [promptIds, tokens], length: turn.end, last: call, promptLength, turns: [turn] });
    }
  });
  if (chains.length === 0) {
    const { promptIds } = root;
    const whole = { tokens: Int32Array.from(promptIds), promptLength: promptIds.length, turns: [] };
    return [{ ...whole, ...imagesOf(root) }];
  }
  return chains.map(({ parts, length, last, promptLength, turns }) => {
    const tokens = new Int32Array(length);
    let at = 0;
    for (const part of parts) {
      tokens.set(part, at);
      at += part.length;
    }
    return { tokens, promptLength, turns, ...imagesOf(last) };
  });
}
