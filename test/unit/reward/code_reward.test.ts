import { codeReward } from '../../../ts/reward/code/code_reward';
import { parsePythonJson, pythonJson } from '../../../ts/reward/code/python_json';
import { extractCode } from '../../../ts/reward/code/python_program';
import type { CodeRunner } from '../../../ts/reward/code/runner';
import { parseTests, sameOutput, sameValue } from '../../../ts/reward/code/tests';

// What needs no Python; programs run in test/dist/code_reward.test.ts.

test.each([
  ['none', 'no code here', null],
  ['the last python block', 'a\n```python\nx\n```\nb\n```python\ny\n```\nc', '\ny\n'],
  ['an unfinished block', '```python\nprint(1)', '\nprint(1)'],
  ['a block of no language', 'see\n```\nprint(1)\n```', '\nprint(1)\n'],
  ['a block of another language name', '```py\nprint(1)\n```', 'print(1)\n'],
  ['code on the first line', '```x = 1\nprint(x)```', 'x = 1\nprint(x)'],
])('extracts %s', (_, response, code) => {
  expect(extractCode(response)).toBe(code);
});

test.each<[string, string, boolean]>([
  ['1 2\n3\n', '1 2\n3', true],
  ['  1   2 \r\n3\n\n\n', '1 2\n3', true],
  ['1\n\n2', '1\n2', true],
  ['1\n2', '1\n\n \n2', true],
  ['\n\n1\n2', '1\n2', true],
  ['1\n2', '\n1\n2', true],
  ['1\n\n2 ', '1\n \n2\n', true],
  ['1\n2\n3', '1\n2', false],
  ['1\n2', '1\n2\n3', false],
  ['1.', '1.0', true],
  ['.5', '0.50000001', true],
  ['1_0.0', '10.0', false],
  ['1 2', '1\n2', false],
  ['', '', true],
  ['', '0', false],
  ['0.3333333', '0.3333334', true],
  ['0.33', '0.34', false],
  // 1e-5 of what is expected.
  ['100000.0', '100001.000005', true],
  ['100001.000005', '100000.0', false],
  ['0.00000001', '0.0', true], // 1e-8 apart
  ['0.00000002', '0.0', false],
  ['1', '1.0', true],
  ['100000000', '100000001', false], // integers are exact
  ['1e3', '1000', true],
  ['nan', 'nan', true],
  ['YES', 'Yes', false],
])('output %j for %j: %j', (actual, expected, same) => {
  expect(sameOutput(actual, expected)).toBe(same);
});

// Quadratic time on any of these would take hours: the time-out of the test is what bounds it.
test.each([
  ['digits and a letter', `${'1'.repeat(4e6)}x`],
  ['digits and a dot', `1.${'1'.repeat(4e6)}.`],
  ['an exponent without end', `1e${'1'.repeat(4e6)}e`],
  ['line ends', `1${'\n'.repeat(16e6)}2`],
  ['spaces', `1${' '.repeat(16e6)}2`],
  ['words', '2.5 '.repeat(4e6)],
])('%s: megabytes of output are compared in linear time', (_, output) => {
  expect(sameOutput(output, '2.5')).toBe(false);
  expect(sameOutput(`2.5${' \n'.repeat(8e6)}`, '2.5')).toBe(true);
});

test.each<[unknown, unknown, boolean]>([
  [3, 3, true],
  [3, [3], true],
  [[1, 2], [1, 2], true],
  [[1, 2], [[1, 2]], true],
  [1, [1, 2], false],
  [{ a: [1] }, { a: [1] }, true],
  [{ a: 1, b: 2 }, { a: 1 }, false],
  [[], {}, false],
  // As Python has it.
  [true, 1, true],
  [[1, 0.0], [true, false], true],
  [true, 2, false],
  [true, '1', false],
  [false, null, false],
  [null, null, true],
])('value %j for %j: %j', (actual, expected, same) => {
  expect(sameValue(actual, expected)).toBe(same);
});

test('reads the ground truth of stdin problems and of functions', () => {
  expect(parseTests('{"inputs": ["1\\n", ["2", "3"]], "outputs": ["a", ["b", "c"]]}')).toEqual({
    fnName: null,
    cases: [
      { input: '1\n', output: 'a' },
      { input: '2\n3', output: 'b\nc' },
    ],
  });
  expect(parseTests({ fn_name: 'f', inputs: ['[1, 2]\n"x"\n', [[1], 2]], outputs: ['3', [4]] })).toEqual({
    fnName: 'f',
    cases: [
      { input: [[1, 2], 'x'], output: 3 },
      { input: [[1], 2], output: [4] },
    ],
  });
});

test('integers beyond 2^53 stay exact', () => {
  const truth =
    '{"fn_name": "f", "inputs": ["1000000000000000003\\n[-9007199254740993, 1.5, \\"9007199254740993\\"]", [12345678901234567890]], "outputs": ["9007199254740993", 2e16]}';
  const { cases } = parseTests(truth);
  expect(cases.map(({ input }) => pythonJson(input))).toEqual([
    '[1000000000000000003,[-9007199254740993,1.5,"9007199254740993"]]',
    '[12345678901234567890]',
  ]);
  const returns = (stdout: string, i: number): boolean =>
    sameValue(parsePythonJson(stdout), cases[i]?.output);
  expect(returns('9007199254740993', 0)).toBe(true);
  expect(returns('9007199254740992', 0)).toBe(false);
  expect(returns('9007199254740993.0', 0)).toBe(false);
  expect(returns('20000000000000000', 1)).toBe(true);
  expect(returns('20000000000000001', 1)).toBe(false);
  for (const text of [
    '"',
    '"\\"'.repeat(1e6),
    '1'.repeat(1e6),
    '[',
    `${'1'.repeat(16)}"${'\\"'.repeat(1e6)}`,
    `[${'1'.repeat(16)}, "${'x'.repeat(3e7)}"]`,
    `NaN"${'\\"'.repeat(1e6)}`,
    `NaN"${'\\'.repeat(1e6)}`,
    'NaN'.repeat(1e6),
    `["${'\\\\"'.repeat(1e6)}", 12345678901234567890, NaN]`,
  ]) {
    try {
      parsePythonJson(text);
    } catch (error) {
      expect(error).toBeInstanceOf(SyntaxError);
    }
  }
});

test('NaN and the infinities are what Python writes and reads', () => {
  const truth =
    '{"fn_name": "f", "inputs": [[[Infinity, -Infinity, 12345678901234567890]], ["NaN, \\"Infinity"]], "outputs": [{"-Infinity": -Infinity}, NaN]}';
  const { cases } = parseTests(truth);
  expect(cases[0]?.input).toEqual([[Infinity, -Infinity, 12345678901234567890n]]);
  expect(pythonJson(cases[0]?.input)).toBe('[[Infinity,-Infinity,12345678901234567890]]');
  expect(pythonJson(cases[1]?.input)).toBe('["NaN, \\"Infinity"]');
  const returns = (stdout: string, i: number): boolean =>
    sameValue(parsePythonJson(stdout), cases[i]?.output);
  expect(returns('{"-Infinity": -Infinity}', 0)).toBe(true);
  expect(returns('{"-Infinity": Infinity}', 0)).toBe(false);
  expect(returns('{"-Infinity": null}', 0)).toBe(false);
  // As in Python, where it equals nothing.
  expect(returns('NaN', 1)).toBe(false);
  for (const text of ['-NaN', '{NaN: 1}', 'xNaN', 'NaN1', '[1 NaN]', '{"a": 01.0}'])
    expect(() => parsePythonJson(text)).toThrow(SyntaxError);
});

test('a float of integral value is none of the integers, and equals one', () => {
  const truth =
    '{"fn_name": "f", "inputs": [[1.0, 1, -0.0, 2e3, [0.50], {"a": 3.0}], "2.00000\\n10"], "outputs": [1.0, [2]]}';
  const { cases } = parseTests(truth);
  expect(cases.map(({ input }) => pythonJson(input))).toEqual([
    '[1.0,1,-0.0,2e3,[0.5],{"a":3.0}]',
    '[2.00000,10]',
  ]);
  const returns = (stdout: string, i: number): boolean =>
    sameValue(parsePythonJson(stdout), cases[i]?.output);
  for (const stdout of ['1', '1.0', 'true', '1e0']) expect(returns(stdout, 0)).toBe(true);
  for (const stdout of ['1.5', '"1.0"', '[1.5]', '{}', 'null']) expect(returns(stdout, 0)).toBe(false);
  for (const stdout of ['2.0', '[2.0]', '[2]']) expect(returns(stdout, 1)).toBe(true);
  expect(parseTests('{"inputs": [1.0], "outputs": [2.0]}').cases).toEqual([{ input: '1.0', output: '2.0' }]);
});

test.each([
  ['not JSON', '{'],
  ['no object', '3'],
  ['no outputs', '{"inputs": [""]}'],
  ['another number of them', '{"inputs": ["", ""], "outputs": [""]}'],
  ['no test', '{"inputs": [], "outputs": []}'],
  ['another number of assertions', '{"inputs": [""], "outputs": [""], "assert_case": ["", ""]}'],
  ['no assertions', '{"assert_case": []}'],
  ['assertions that are no list', '{"assert_case": "assert x"}'],
  ['an argument that is no JSON', '{"fn_name": "f", "inputs": ["x"], "outputs": ["1"]}'],
])('a ground truth with %s names it', (_, groundTruth) => {
  expect(() => parseTests(groundTruth)).toThrow(
    expect.objectContaining({
      code: 'INVALID_DATA',
      message: expect.stringContaining('ground truth of a code problem'),
    }),
  );
});

test('a response without code, or with more than anyone writes, runs nothing and scores 0', async () => {
  const reward = codeReward(() => Promise.reject(new Error('asked for a sandbox')));
  const sample = {
    prompt: '',
    responseTokens: new Int32Array(0),
    groundTruth: { inputs: [''], outputs: [''] },
    dataSource: 'apps',
    extraInfo: {},
  };
  for (const response of ['nothing', '```python\n```', `\`\`\`python\n${'x'.repeat(300_000)}\`\`\``])
    await expect(reward({ ...sample, response })).resolves.toMatchObject({
      score: 0,
      acc: 0,
      verdict: 'no_code',
    });
  await expect(reward({ ...sample, response: '```python\n1\n```' })).rejects.toThrow('asked for a sandbox');
});

test('programs are what the response says, with or without a fence, and the assertion of each test', async () => {
  const ran: string[] = [];
  const runner = async (): Promise<CodeRunner> => ({
    run: async ({ code }) => {
      ran.push(code);
      return {
        status: code.includes(base64('x = 1\n\nassert x == 2')) ? 'error' : 'finished',
        stdout: 'y',
        stderr: '',
      };
    },
  });
  const base64 = (text: string): string => Buffer.from(text, 'utf8').toString('base64');
  const reward = codeReward(runner, { unfenced: true });
  const groundTruth = { assert_case: ['assert x == 1', 'assert x == 2'] };
  const sample = {
    prompt: '',
    responseTokens: new Int32Array(0),
    groundTruth,
    dataSource: 'apps',
    extraInfo: {},
  };
  expect(await reward({ ...sample, response: 'x = 1' })).toEqual({
    score: 0.5,
    acc: 0,
    tests_passed: 1,
    tests_total: 2,
    verdict: 'error',
  });
  expect(ran[0]).toContain(base64('x = 1\n\nassert x == 1'));
  expect(await reward({ ...sample, response: ' ' })).toMatchObject({ score: 0, verdict: 'no_code' });
});

test.each([
  // All of them are run, but for those behind one that times out: a response that loops would take the time of all.
  [true, ['wrong', 'slow', 'right'], { score: 0, verdict: 'wrong_answer' }, 2],
  [true, ['right', 'wrong', 'right', 'wrong'], { score: 0.5, verdict: 'wrong_answer' }, 4],
  [true, new Array(11).fill('right'), { score: 1, acc: 1, tests_total: 10 }, 10],
  // The first one that does not pass decides.
  [false, ['right', 'wrong', 'right'], { score: 0, verdict: 'wrong_answer', tests_passed: 1 }, 2],
  [false, new Array(11).fill('right'), { score: 1, tests_total: 11 }, 11],
])('continuous %j, tests %j', async (continuous, inputs: string[], expected, runs) => {
  let ran = 0;
  const runner = async (): Promise<CodeRunner> => ({
    run: async ({ stdin }) => {
      ran++;
      return { status: stdin === 'slow' ? 'timeout' : 'finished', stdout: stdin, stderr: '' };
    },
  });
  const reward = codeReward(runner, { continuous, unfenced: true });
  const groundTruth = { inputs, outputs: inputs.map(() => 'right') };
  const sample = { prompt: '', responseTokens: new Int32Array(0), dataSource: 'apps', extraInfo: {} };
  expect(await reward({ ...sample, groundTruth, response: 'x' })).toMatchObject(expected);
  expect(ran).toBe(runs);
});
