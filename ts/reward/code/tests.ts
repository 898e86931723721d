import { show } from '../../base/text';
import { TroupeError } from '../../errors';
import { PythonFloat, parsePythonJson } from './python_json';

/** Tests of one problem. */
export interface CodeTests {
  /** What is called with each input; null: programs read stdin and write stdout. */
  fnName: string | null;
  cases: CodeCase[];
}

/** With a function name: its arguments and its value. Else: stdin and stdout, text. */
export interface CodeCase {
  input: unknown;
  /** undefined: whatever it is. */
  output: unknown;
  /** Code that runs after the response's, such as an assertion. */
  assertion?: string;
}

const invalid = (what: string): TroupeError =>
  new TroupeError(
    'INVALID_DATA',
    `[reward] ground truth of a code problem: ${what}; expected JSON {"inputs": [...], "outputs": [...], "fn_name"?: "...", ` +
      '"assert_case"?: [...]} with as many outputs as inputs, at least one, or with assert_case alone',
  );

/** Text as it is; a list of lines, as some data sets have it, joined. */
const text = (value: unknown): string =>
  Array.isArray(value) ? value.map(String).join('\n') : typeof value === 'string' ? value : String(value);

/** APPS and its relatives have arguments as a list, or as text with one JSON value per line. */
function callArguments(input: unknown): unknown {
  if (typeof input !== 'string') return Array.isArray(input) ? input : [input];
  return input
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => json(line, 'input'));
}

function json(source: string, what: string): unknown {
  try {
    return parsePythonJson(source);
  } catch {
    throw invalid(`${what} ${show(source)} is not JSON`);
  }
}

/** @throws TroupeError INVALID_DATA saying what is wrong with the row */
export function parseTests(groundTruth: unknown): CodeTests {
  const parsed = typeof groundTruth === 'string' ? json(groundTruth, 'text') : groundTruth;
  if (typeof parsed !== 'object' || parsed === null) throw invalid(`got ${show(parsed)}`);
  const { fn_name: name, assert_case: given, ...others } = parsed as Record<string, unknown>;
  const assertions: unknown[] | null = Array.isArray(given) ? given : null;
  const { inputs = assertions?.map(() => ''), outputs = assertions?.map(() => null) } = others;
  if (
    !Array.isArray(inputs) ||
    !Array.isArray(outputs) ||
    inputs.length !== outputs.length ||
    inputs.length !== (assertions ?? inputs).length ||
    inputs.length === 0
  )
    throw invalid(`got ${show(parsed)}`);
  const fnName = typeof name === 'string' && name !== '' ? name : null;
  const cases = inputs.map((input, i): CodeCase => {
    const output: unknown = outputs[i];
    const added = assertions === null ? {} : { assertion: text(assertions[i]) };
    const any = assertions !== null && output === null;
    if (fnName === null) return { input: text(input), output: any ? undefined : text(output), ...added };
    return {
      input: callArguments(input),
      output: any ? undefined : typeof output === 'string' ? json(output, 'output') : output,
      ...added,
    };
  });
  return { fnName, cases };
}

/** No two parts of it can match the same digits, of which a program may print megabytes. */
const DECIMAL = /^[-+]?(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?$/i;

/** Whether two words are numbers, one of them with a fraction, within numpy's allclose (1e-5 relative, 1e-8 absolute). */
function sameNumber(a: string, b: string): boolean {
  if (!DECIMAL.test(a) || !DECIMAL.test(b) || !/[.e]/i.test(a + b)) return false;
  return Math.abs(Number(a) - Number(b)) <= 1e-8 + 1e-5 * Math.abs(Number(b));
}

/** The words of an output and what ends its lines, one by one: it may be megabytes of either. Empty lines are none. */
function* tokens(output: string): Generator<string> {
  for (const [token] of output.trim().matchAll(/\n\s*|\S+/g)) yield token.startsWith('\n') ? '\n' : token;
}

/** Whether a program printed what was expected. */
export function sameOutput(actual: string, expected: string): boolean {
  const others = tokens(expected);
  for (const token of tokens(actual)) {
    const other: string | undefined = others.next().value;
    if (other === undefined || (token !== other && !sameNumber(token, other))) return false;
  }
  return others.next().done === true;
}

/** Equal values of JSON as Python has them: 1 equals 1.0, and true. */
function sameJson(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (a instanceof PythonFloat) return sameJson(a.value, b);
  if (b instanceof PythonFloat) return sameJson(a, b.value);
  if (typeof a === 'boolean') return typeof b === 'number' && Number(a) === b;
  if (typeof b === 'boolean') return sameJson(b, a);
  if (typeof a === 'bigint') return typeof b === 'number' && Number.isInteger(b) && BigInt(b) === a;
  if (typeof b === 'bigint') return sameJson(b, a);
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const keys = Object.keys(a);
  const [left, right] = [a as Record<string, unknown>, b as Record<string, unknown>];
  return (
    keys.length === Object.keys(b).length &&
    keys.every((key) => Object.hasOwn(right, key) && sameJson(left[key], right[key]))
  );
}

/** Whether a function returned what was expected. APPS wraps the value in a list of one. */
export function sameValue(actual: unknown, expected: unknown): boolean {
  if (sameJson(actual, expected)) return true;
  return Array.isArray(expected) && expected.length === 1 && sameJson(actual, expected[0]);
}
