import { requireText } from '../../base/check_options';
import { parseExactJson } from '../../base/exact_json';
import { show } from '../../base/text';
import { TroupeError } from '../../errors';
import type { RewardSample } from '../contract/types';
import { isObject, sameJson } from './function_calling';
import { strip } from './python_text';

const [CALL, CALL_END] = ['<tool_call>', '</tool_call>'];
const [SAID, SAID_END] = ['<response>', '</response>'];
/** Least and most for the calls. */
const [WORST, BEST] = [-3, 3];

/** `score`: the sum of the other two. */
export interface RllaScore extends Record<string, unknown> {
  score: number;
  /** 1 when the response has the parts that the ground truth has, in their order; else 0. */
  format_reward: number;
  /** From -3 to 3: how much of the expected calls is there; 0 where none is expected. */
  accuracy_reward: number;
}

interface Call {
  name: unknown;
  parameters: Record<string, unknown>;
}

/** By what the ground truth has: the parts of a response after one another, and the tags that it has exactly once. */
const FORMS: readonly { calls: boolean; says: boolean; form: RegExp; once: readonly string[] }[] = [
  { calls: false, says: false, form: /^<think>.*?<\/think>$/s, once: [] },
  {
    calls: false,
    says: true,
    form: /^<think>.*?<\/think>\n<response>.*?<\/response>$/s,
    once: [SAID, SAID_END],
  },
  {
    calls: true,
    says: false,
    form: /^<think>.*?<\/think>\n<tool_call>\n.*?\n<\/tool_call>$/s,
    once: [CALL, CALL_END],
  },
  {
    calls: true,
    says: true,
    form: /^<think>.*?<\/think>\n<tool_call>\n.*?\n<\/tool_call>\n<response>.*?<\/response>$/s,
    once: [CALL, CALL_END, SAID, SAID_END],
  },
];

function hasForm(response: string, truth: string): boolean {
  const [calls, says] = [truth.includes(CALL), truth.includes(SAID)];
  const expected = FORMS.find((one) => one.calls === calls && one.says === says);
  // The counts first: with them a form is found in linear time.
  return (
    expected?.once.every((tag) => response.split(tag).length === 2) !== false &&
    expected?.form.test(response) === true
  );
}

/** What the first call element holds, one JSON value per line. Throws when a line is none. */
const callLines = (text: string): unknown[] =>
  strip((text.split(CALL, 2)[1] as string).split(CALL_END, 1)[0] as string)
    .split('\n')
    .map((line) => parseExactJson(line));

/** verl compares as Python does, where True is 1 and False is 0. */
const plain = (value: unknown): unknown => (typeof value === 'boolean' ? Number(value) : value);

function expectedCalls(truth: string): Call[] {
  try {
    return callLines(truth).map(asCall);
  } catch {
    throw new TroupeError(
      'INVALID_DATA',
      `expected a ground truth whose <tool_call> has lines of {"name": ..., "parameters": {...}}, got ${show(truth)}`,
    );
  }
}

function asCall(value: unknown): Call {
  if (!isObject(value) || !('name' in value) || !isObject(value['parameters'])) throw new Error('no call');
  return { name: value['name'], parameters: value['parameters'] };
}

/** What two lists have in common, as a share of all that is in either; how often something is in them counts, order does not. */
function overlap(first: readonly unknown[], second: readonly unknown[]): number {
  const left = [...second];
  const common = first.filter((item) => {
    const at = left.indexOf(item);
    if (at >= 0) left.splice(at, 1);
    return at >= 0;
  }).length;
  const all = first.length + second.length - common;
  return all === 0 ? 1 : common / all;
}

/** Points, of `most`, for the names of the calls, and of each expected call for the names and values of its parameters in the best call of that name. */
function pointsOfCalls(
  expected: readonly Call[],
  given: readonly unknown[],
): { points: number; most: number } {
  const names = given.map((call) => {
    if (!isObject(call) || !('name' in call) || Array.isArray(call['name']) || isObject(call['name']))
      throw new Error('no name');
    return plain(call['name']);
  });
  let points = overlap(
    expected.map(({ name }) => plain(name)),
    names,
  );
  let most = 1;
  const used = new Set<number>();
  for (const { name, parameters } of expected) {
    const keys = Object.keys(parameters);
    most += 1 + keys.length;
    let [best, chosen] = [0, -1];
    given.forEach((call, i) => {
      if (used.has(i) || names[i] !== plain(name)) return;
      const theirs = asCall(call).parameters;
      const right = keys.filter(
        (key) => Object.hasOwn(theirs, key) && sameJson(parameters[key], theirs[key], plain),
      );
      const total = overlap(keys, Object.keys(theirs)) + right.length;
      if (total > best) [best, chosen] = [total, i];
    });
    points += best;
    used.add(chosen);
  }
  return { points, most };
}

function accuracy(response: string, truth: string): number {
  if (!truth.includes(CALL)) return 0;
  const expected = expectedCalls(truth);
  if (!response.includes(CALL) || !response.includes(CALL_END)) return WORST;
  try {
    const given = callLines(response);
    if (sameJson(given, callLines(truth), plain)) return BEST;
    const { points, most } = pointsOfCalls(expected, given);
    // In verl's order, which decides the last bit.
    return ((BEST - WORST) * points) / most + WORST;
  } catch {
    return WORST;
  }
}

/**
 * The two rewards of ToolRL (Qian et al. 2025, arXiv 2504.13958) as GDPO (arXiv 2601.05242) uses them: whether thoughts, calls and
 * answer are where the ground truth has them, and how much of its calls is right, call by call and parameter by parameter.
 * @throws TroupeError INVALID_DATA when the ground truth has a `<tool_call>` that is no list of calls
 */
export function scoreRlla(response: string, groundTruth: string): RllaScore {
  requireText('scoreRlla', 'response', response);
  requireText('scoreRlla', 'groundTruth', groundTruth);
  const text = strip(response);
  const format = hasForm(text, groundTruth) ? 1 : 0;
  const calls = accuracy(text, groundTruth);
  return { score: format + calls, format_reward: format, accuracy_reward: calls };
}

/** {@link scoreRlla}. */
export const rlla = ({ response, groundTruth }: RewardSample): RllaScore =>
  scoreRlla(response, String(groundTruth));
