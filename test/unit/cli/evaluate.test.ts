import { existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type EvaluateOptions, evaluate } from '../../../ts/cli/evaluate';

const directory = mkdtempSync(path.join(tmpdir(), 'troupe-evaluate-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

let files = 0;
function fileOf(rows: readonly object[]): string {
  const file = path.join(directory, `answers${files++}.jsonl`);
  writeFileSync(file, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  return file;
}

const row = (data_source: string, ground_truth: string, responses: unknown, more: object = {}) => ({
  data_source,
  prompt: [
    { role: 'system', content: 'Think.' },
    { role: 'user', content: 'How many?' },
  ],
  reward_model: { style: 'rule', ground_truth },
  responses,
  ...more,
});

async function run(file: string, given: Partial<EvaluateOptions> = {}): Promise<string> {
  let text = '';
  const options = { config: null, overrides: [], responseKey: 'responses', scoreKey: 'scores' };
  const code = await evaluate({ ...options, output: null, json: false, file, ...given }, (more) => {
    text += more;
  });
  expect(code).toBe(0);
  return text;
}

const metricsOf = async (file: string, given: Partial<EvaluateOptions> = {}) =>
  JSON.parse(await run(file, { ...given, json: true })) as Record<string, number>;

const SUMS = [
  row('openai/gsm8k', '5', ['#### 5', '#### 6'], { extra_info: { index: 1 } }),
  row('openai/gsm8k', '7', ['#### 7', '#### 7']),
  row('DigitalLearningGmbH/MATH-lighteval', '3', '\\boxed{3}'),
];

test('each data source is scored as in a run, and has the metrics of a validation', async () => {
  const file = fileOf(SUMS);
  const metrics = await metricsOf(file);
  expect(metrics).toMatchObject({
    'val-core/openai/gsm8k/acc/mean@2': 0.75,
    'val-aux/openai/gsm8k/reward/std@2': 0.25,
    'val-core/DigitalLearningGmbH/MATH-lighteval/acc/mean@1': 1,
  });
  // Of resamples of two of [1, 0] three quarters have the 1, and all of the other prompt's.
  expect(metrics['val-core/openai/gsm8k/acc/best@2/mean']).toBeCloseTo(0.875, 1);
  const text = await run(file);
  expect(text).toContain(`${file}: 5 responses to 3 prompts\n`);
  expect(text).toMatch(/^val-core\/openai\/gsm8k\/acc\/mean@2 +0\.75$/m);
  expect(text).not.toContain('val-aux');
});

test('the rows are written with their scores', async () => {
  const output = path.join(directory, 'scored.jsonl');
  await run(fileOf(SUMS), { output, scoreKey: 'score' });
  const lines = readFileSync(output, 'utf8').trim().split('\n');
  expect(lines.map((line) => JSON.parse(line) as object)).toEqual(
    [[1, 0], [1, 1], [1]].map((score, i) => ({ ...SUMS[i], score })),
  );
});

test('a function of a module is given what a row says, and what it returns beside the score is a metric', async () => {
  const module = path.join(directory, 'reward.cjs');
  writeFileSync(
    module,
    `exports.compute_score = ({ prompt, response, groundTruth, dataSource, extraInfo }, { factor }) => ({
       score: factor * response.length,
       acc: prompt === 'Think.\\nHow many?' && groundTruth === 'g' && dataSource === 's' && extraInfo.index === 2,
       pred: response,
     });`,
  );
  const file = fileOf([row('s', 'g', ['abc', 'abc', 'd'], { extra_info: { index: 2 } })]);
  const overrides = [
    `reward.custom_reward_function.path=${module}`,
    '+reward.custom_reward_function.reward_kwargs.factor=2',
  ];
  const metrics = await metricsOf(file, { overrides });
  expect(metrics).toMatchObject({ 'val-core/s/acc/mean@3': 1, 'val-aux/s/reward/mean@3': 14 / 3 });
  expect(metrics['val-aux/s/score/maj@3/mean']).toBeGreaterThan(4);
  // More rows than are scored at a time, and a name that is the score's.
  writeFileSync(module, 'exports.compute_score = ({ response }) => ({ score: response.length, reward: 9 });');
  const many = fileOf(Array.from({ length: 1500 }, (_, i) => row('s', 'g', ['a'.repeat(i % 3), 'ab'])));
  expect(await metricsOf(many, { overrides: overrides.slice(0, 1) })).toMatchObject({
    'val-core/s/reward/mean@2': 1.5,
    'val-aux/s/score/mean@2': 1.5,
  });
  const config = path.join(directory, 'run.yaml');
  writeFileSync(
    config,
    `data: { train_files: a.jsonl, reward_fn_key: from }
actor_rollout_ref: { model: { path: model } }
reward: { custom_reward_function: { path: ${module} } }`,
  );
  const renamed = fileOf([{ ...row('other', 'g', 'abcd'), from: 's' }]);
  expect(await metricsOf(renamed, { config })).toMatchObject({ 'val-core/s/reward/mean@1': 4 });
});

test.each([
  [[row('openai/gsm8k', '5', [])], {}, /answers\d+\.jsonl:1: expected responses to be a text or a list/],
  [[row('openai/gsm8k', '5', [1])], {}, /expected responses to be a text or a list of texts, got \[1\]/],
  [
    [{ data_source: 'a', reward_model: { ground_truth: '' } }],
    {},
    /no column 'responses'; the columns are .*: --response-key says which one it is$/,
  ],
  [[row('nobody', '5', 'x')], {}, /no reward function is registered as 'nobody'/],
  [[], {}, /there are no rows/],
  [[row('openai/gsm8k', '5', 'x')], { scoreKey: 'prompt' }, /a column 'prompt' already: .* --score-key/],
  [
    [row('openai/gsm8k', '5', 'x')],
    { overrides: ['reward.reward_model.enable=true', 'reward.reward_model.model_path=m'] },
    /reward\.reward_model\.enable: .* trainer\.val_only=true of troupe train/,
  ],
  [
    [row('openai/gsm8k', '5', 'x')],
    { overrides: ['reward.reward_kwargs.overlong_buffer_cfg.enable=true'] },
    /overlong_buffer_cfg\.enable: counts tokens of responses/,
  ],
  [[row('openai/gsm8k', '5', 'x')], { overrides: ['reward.mamager=a'] }, /unknown key reward\.mamager/],
])('%j with %j is refused, and nothing is written', async (rows, given, message) => {
  const output = path.join(directory, 'never.jsonl');
  await expect(run(fileOf(rows), { output, ...given })).rejects.toThrow(message);
  expect(existsSync(output)).toBe(false);
});

test('names that every object has, or that a terminal would obey, are names like others', async () => {
  const module = path.join(directory, 'named.cjs');
  writeFileSync(module, "exports.compute_score = () => ({ score: 1, ['__proto__']: 2, constructor: 3 });\n");
  const overrides = [`reward.custom_reward_function.path=${module}`];
  const named = fileOf([row('__proto__', '', 'x'), row('red\u001b[31m', '', 'x')]);
  const metrics = await metricsOf(named, { overrides });
  expect(Object.keys(metrics).filter((name) => name.includes('mean@1'))).toEqual(
    ['__proto__', 'red\u001b[31m'].flatMap((source) => [
      `val-core/${source}/reward/mean@1`,
      `val-aux/${source}/score/mean@1`,
      `val-aux/${source}/__proto__/mean@1`,
      `val-aux/${source}/constructor/mean@1`,
    ]),
  );
  expect(await run(named, { overrides })).toMatch(/^val-core\/red\\x1b\[31m\/reward\/mean@1 +1$/m);
  expect({}).not.toHaveProperty('0');
});

test('a link that leads to itself is told with its name', async () => {
  const loop = path.join(directory, 'loop.jsonl');
  symlinkSync(loop, loop);
  await expect(run(loop)).rejects.toMatchObject({ code: 'IO', message: expect.stringContaining(loop) });
});

test.each([
  [
    'a link that leads nowhere',
    'link.jsonl',
    /link\.jsonl is there already: move it away, or name a new file/,
  ],
  ['a name that is too long', `${'a'.repeat(300)}.jsonl`, /cannot write .*a\.jsonl: ENAMETOOLONG/],
  ['a place where nothing can be written', '/proc/x.jsonl', /cannot write \/proc\/x\.jsonl: ENOENT/],
])('an output that cannot be is told before any work: %s', async (_, name, message) => {
  if (name === 'link.jsonl') symlinkSync('nowhere', path.join(directory, name));
  const marks = path.join(directory, 'marks');
  const module = path.join(directory, 'marking.cjs');
  writeFileSync(
    module,
    `exports.compute_score = () => require('node:fs').writeFileSync(${JSON.stringify(marks)}, '');\n`,
  );
  const overrides = [`reward.custom_reward_function.path=${module}`];
  await expect(run(fileOf(SUMS), { overrides, output: path.resolve(directory, name) })).rejects.toThrow(
    message,
  );
  expect(existsSync(marks)).toBe(false);
});

test('what is written again is what was read, or is refused', async () => {
  const output = path.join(directory, 'again.jsonl');
  const file = path.join(directory, 'digits.jsonl');
  const text = JSON.stringify(row('openai/gsm8k', '5', ['#### 5'])).slice(0, -1);
  writeFileSync(file, `${text},"id":9007199254740993}\n`);
  await run(file, { output });
  expect(readFileSync(output, 'utf8')).toBe(`${text},"id":9007199254740993,"scores":[1]}\n`);
  rmSync(output);
  writeFileSync(file, `${text}}\n${text},"more":{"logp":[0,-1e400]}}\n`);
  await expect(run(file, { output })).rejects.toThrow(
    `[data] ${file}:2: more.logp[1] is -Infinity, which a .jsonl file cannot hold: expected finite numbers`,
  );
  expect(existsSync(output)).toBe(false);
  // Nothing is written of it otherwise.
  expect(await run(file)).toContain('2 responses to 2 prompts');
});
