import { requireText } from '../../base/check_options';
import { show } from '../../base/text';
import { TroupeError } from '../../errors';
import type { RewardSample } from '../contract/types';

const [OPEN, CLOSE] = ['<tool_call>', '</tool_call>'];

interface Call {
  name: string;
  arguments: Record<string, unknown>;
}

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** A call with exactly a name and an arguments object; null for anything else. */
function asCall(value: unknown): Call | null {
  if (!isObject(value) || Object.keys(value).length !== 2) return null;
  const { name, arguments: given } = value;
  return typeof name === 'string' && isObject(given) ? { name, arguments: given } : null;
}

/** The calls of a response in order; null when one is malformed or other text stands between or after them. */
function parseToolCalls(response: string): Call[] | null {
  const first = response.indexOf(OPEN);
  if (first < 0) return response.includes(CLOSE) ? null : [];
  if (response.slice(0, first).includes(CLOSE)) return null;
  const calls: Call[] = [];
  let position = first;
  while (position < response.length) {
    const start = response.indexOf(OPEN, position);
    const end = start < 0 ? -1 : response.indexOf(CLOSE, start);
    const gap = start < 0 ? response.slice(position) : response.slice(position, start);
    if (gap.trim() !== '') return null;
    if (start < 0) break;
    const call = end < 0 ? null : asCall(parseJson(response.slice(start + OPEN.length, end)));
    if (call === null) return null;
    calls.push(call);
    position = end + CLOSE.length;
  }
  return calls;
}

/** Equal as JSON, whatever the order of keys. Goes no deeper than the shallower of the two. `plain`: what a number, text or the like counts as. */
export function sameJson(
  a: unknown,
  b: unknown,
  plain: (value: unknown) => unknown = (value) => value,
): boolean {
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, i) => sameJson(item, b[i], plain));
  }
  if (isObject(a) && isObject(b)) {
    const keys = Object.keys(a);
    return (
      keys.length === Object.keys(b).length &&
      keys.every((key) => Object.hasOwn(b, key) && sameJson(a[key], b[key], plain))
    );
  }
  const [x, y] = [plain(a), plain(b)];
  // Data files may hold integers as BigInt.
  return typeof x === 'bigint' || typeof y === 'bigint' ? String(x) === String(y) : x === y;
}

/** Also in OpenAI's form, whose arguments are a JSON text. */
function expectedCalls(groundTruth: unknown): Call[] {
  const given = typeof groundTruth === 'string' ? parseJson(groundTruth) : groundTruth;
  return (Array.isArray(given) ? given : [given]).map((item) => {
    const text = isObject(item) && typeof item['arguments'] === 'string' ? item['arguments'] : null;
    const call = asCall(text === null ? item : { ...(item as object), arguments: parseJson(text) });
    if (call !== null) return call;
    throw new TroupeError(
      'INVALID_DATA',
      `expected a ground truth of tool calls [{ name, arguments }], or that as JSON text, got ${show(groundTruth)}`,
    );
  });
}

/**
 * Strict binary score of tool calls: 1 when the `<tool_call>` elements of the response are valid and are, in order,
 * exactly the expected calls (names and arguments equal, order of keys aside), else 0. Text before the first call is
 * free; after it only white space is. No expected calls: 1 for a response without one.
 * @throws TroupeError INVALID_DATA when the ground truth is no list of calls
 */
export function scoreFunctionCalling(response: string, groundTruth: unknown): number {
  requireText('scoreFunctionCalling', 'response', response);
  const expected = expectedCalls(groundTruth);
  const calls = parseToolCalls(response);
  if (calls === null || calls.length !== expected.length) return 0;
  return calls.every((call, i) => sameJson(call, expected[i])) ? 1 : 0;
}

/** {@link scoreFunctionCalling}. */
export const functionCalling = ({ response, groundTruth }: RewardSample): number =>
  scoreFunctionCalling(response, groundTruth);
