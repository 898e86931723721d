import { badOption, checkOptionNames, flagOption } from '../../base/check_options';
import { show } from '../../base/text';
import { boundsItself } from '../contract/bounded';
import type { RewardFunction, RewardOutcome, RewardSample } from '../contract/types';
import { parsePythonJson, pythonJson } from './python_json';
import { callOf, extractCode, programOf } from './python_program';
import type { CodeRunner, RunResult, RunStatus } from './runner';
import { type CodeCase, type CodeTests, parseTests, sameOutput, sameValue } from './tests';

/** Data sources whose ground truth is tests, as in verl. */
export const CODE_SOURCES: readonly string[] = ['codecontests', 'apps', 'codeforces', 'taco'];

export interface CodeRewardOptions {
  /** true (verl's way): the share of the first 10 tests that pass. false: 1 when all tests pass, else 0. */
  continuous?: boolean;
  /** A response without a fence is code as a whole, as in verl without Sandbox Fusion. false: it has no code. false */
  unfenced?: boolean;
}

const FIRST_TESTS = 10;
/** A program that is longer than any solution: not run. */
const MAX_CODE = 256 * 1024;

/** How the first test that did not pass ended; accepted when all passed. */
export type Verdict = 'accepted' | 'wrong_answer' | 'no_code' | Exclude<RunStatus, 'finished'>;

/**
 * Scores responses with Python code by the tests in their ground truth, {inputs, outputs, fn_name?, assert_case?}. Besides the score: acc (1 when
 * every test that counts passed), tests_passed, tests_total, verdict. After a test that times out no other is run.
 * `runner`: asked for when the first program is to be run.
 */
export function codeReward(
  runner: () => Promise<CodeRunner>,
  options: CodeRewardOptions = {},
): RewardFunction {
  const where = 'codeReward';
  if (typeof runner !== 'function')
    throw badOption(where, `expected a function that gives a sandbox but got ${show(runner)}`);
  checkOptionNames(where, options, ['continuous', 'unfenced']);
  const continuous = flagOption(where, 'continuous', options.continuous, true);
  const unfenced = flagOption(where, 'unfenced', options.unfenced, false);
  return (sample) => boundsItself(score(runner, sample, continuous, unfenced));
}

async function score(
  runner: () => Promise<CodeRunner>,
  { response, groundTruth }: RewardSample,
  continuous: boolean,
  unfenced: boolean,
): Promise<RewardOutcome> {
  const tests = parseTests(groundTruth);
  const cases = continuous ? tests.cases.slice(0, FIRST_TESTS) : tests.cases;
  const code = extractCode(response) ?? (unfenced ? response : null);
  if (code === null || code.trim() === '' || code.length > MAX_CODE)
    return outcome('no_code', 0, cases, continuous);
  const program = ({ assertion }: CodeCase): string => {
    const source = assertion === undefined ? code : `${code}\n\n${assertion}`;
    return tests.fnName === null ? programOf(source) : callOf(source, tests.fnName);
  };
  const sandbox = await runner();
  let passed = 0;
  let verdict: Verdict = 'accepted';
  for (const test of cases) {
    const stdin = tests.fnName === null ? (test.input as string) : pythonJson(test.input);
    const result = judge(tests, test, await sandbox.run({ code: program(test), stdin }));
    if (result === 'accepted') passed++;
    else if (verdict === 'accepted') verdict = result;
    if (result === 'timeout' || (result !== 'accepted' && !continuous)) break;
  }
  return outcome(verdict, passed, cases, continuous);
}

function judge({ fnName }: CodeTests, { output }: CodeCase, { status, stdout }: RunResult): Verdict {
  if (status !== 'finished') return status;
  if (output === undefined) return 'accepted';
  if (fnName === null) return sameOutput(stdout, output as string) ? 'accepted' : 'wrong_answer';
  try {
    return sameValue(parsePythonJson(stdout), output) ? 'accepted' : 'wrong_answer';
  } catch {
    // Not JSON: the program wrote something besides.
    return 'wrong_answer';
  }
}

function outcome(
  verdict: Verdict,
  passed: number,
  { length }: { length: number },
  continuous: boolean,
): RewardOutcome {
  const acc = Number(passed === length);
  return {
    score: continuous ? passed / length : acc,
    acc,
    tests_passed: passed,
    tests_total: length,
    verdict,
  };
}
