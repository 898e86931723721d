import childProcess, { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { loadConfig, type ResolvedConfig } from '../../ts/config/config';
import type { RewardManager, RewardManagerOptions, RewardSample } from '../../ts/reward/contract/types';
import { scorePrimeMath } from '../../ts/reward/graders/prime_math';
import { createRewardManager } from '../../ts/reward/manager';
import { ScorerPool } from '../../ts/reward/scorers/scorer_pool';
import { codeRunner } from '../../ts/trainer/code_runner';
import { type ConfiguredReward, configuredReward } from '../../ts/trainer/configured_reward';
import { allGone } from '../helpers/e2e_process';
import { writeConfig } from '../unit/config/write_config';

const path = join(mkdtempSync(join(tmpdir(), 'scorer-')), 'reward.cjs');
writeFileSync(
  path,
  `
exports.compute_score = ({ response, responseTokens, groundTruth }, kwargs) => {
  if (response === 'loop') for (;;);
  if (response === 'backtrack') return /^(a+)+$/.test('a'.repeat(60) + 'b') ? 1 : 0;
  if (response === 'never') return new Promise(() => {});
  if (response === 'memory') { const all = []; for (;;) all.push(new Array(1e6).fill(all.length)); }
  if (response === 'exit') process.exit(3);
  if (response === 'throw') throw new Error('boom');
  if (response === 'function') return { score: 1, f: () => 1 };
  if (response === 'nan') return NaN;
  return Promise.resolve({ score: kwargs.bonus + responseTokens.length, truth: groundTruth, pid: process.pid });
};
`,
);

const rewardOf = (config: ResolvedConfig): ConfiguredReward => configuredReward(config, codeRunner(config));

/** Processes of this one that score. */
const scorers = (): number[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        const parent = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ')[1];
        const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
        return Number(parent) === process.pid && command.includes('scorer_main');
      } catch {
        return false; // it has ended meanwhile
      }
    });

const sample = (response: string): RewardSample => ({
  prompt: '',
  response,
  responseTokens: Int32Array.of(1, 2),
  groundTruth: 5n,
  dataSource: 'openai/gsm8k',
  extraInfo: {},
});

test('a process that cannot be started takes no place from the next', async () => {
  const pool = new ScorerPool(1, { kind: 'symbolic' });
  const { fork } = childProcess;
  const missing = (file: string, args: readonly string[], options: childProcess.ForkOptions) =>
    fork(file, args, { ...options, execPath: '/nowhere/node' });
  const forking = jest.spyOn(childProcess, 'fork').mockImplementationOnce(missing as typeof fork);
  await expect(pool.run({ answer: '1', truth: '1' }, 20_000)).rejects.toThrow();
  forking.mockRestore();
  expect(pool.size).toBe(0);
  expect(await pool.run({ answer: 'x+x', truth: '2x' }, 20_000)).toBe(true);
  pool.close();
});

describe('prime', () => {
  const managers: RewardManager[] = [];
  const prime = (options: RewardManagerOptions = {}): RewardManager => {
    const manager = createRewardManager('prime', () => 0, {
      module: { path, name: 'compute_score' },
      kwargs: { bonus: 0.5 },
      numWorkers: 2,
      timeoutMs: 20_000,
      ...options,
    });
    managers.push(manager);
    return manager;
  };
  afterEach(() => Promise.all(managers.splice(0).map((manager) => manager.close?.())));

  test('scores in other processes, in order, and keeps them', async () => {
    const manager = prime();
    const rewards = await manager.score(['a', 'b', 'c', 'd'].map(sample));
    expect([...rewards.scores]).toEqual([2.5, 2.5, 2.5, 2.5]);
    expect(rewards.extras['truth']).toEqual([5n, 5n, 5n, 5n]);
    const first = new Set(rewards.extras['pid']);
    expect(first.size).toBeLessThanOrEqual(2);
    expect(first.has(process.pid)).toBe(false);
    const again = await manager.score([sample('e')]);
    expect(first.has(again.extras['pid']?.[0])).toBe(true);
  });

  test('kills what hangs, survives what dies, and goes on', async () => {
    const bad = ['loop', 'backtrack', 'never', 'exit', 'throw', 'function', 'nan'];
    const manager = prime({ timeoutMs: 1000 });
    const rewards = await manager.score([...bad, 'fine'].map(sample));
    expect([...rewards.scores]).toEqual([...bad.map(() => 0), 2.5]);
    expect(rewards.failures).toBe(bad.length);
    expect([...(await manager.score([sample('x')])).scores]).toEqual([2.5]);
    expect([...(await prime({ timeoutMs: 1e12 }).score([sample('x')])).scores]).toEqual([2.5]);
  });

  test.each([
    ['loop', /no answer within 1 s.* for response 1 /],
    ['exit', /its process ended with exit code 3.* for response 1 /],
    ['throw', /\(boom, at .*reward\.cjs:\d+\) for response 1 /],
    ['nan', /got NaN for response 1 /],
  ])('%s ends the run with on_error fail', async (response, message) => {
    const run = prime({ timeoutMs: 1000, onError: 'fail' }).score([sample('a'), sample(response)]);
    await expect(run).rejects.toMatchObject({
      code: 'REWARD_FAILED',
      message: expect.stringMatching(message),
    });
  });

  test('a module or function that is not there ends the run in any case', async () => {
    const run = prime({ module: { path, name: 'other' } }).score([sample('a')]);
    await expect(run).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      message: expect.stringMatching(/exports no function 'other'/),
    });
  });

  test('without a module it routes by data source', async () => {
    const manager = prime({ module: null });
    const samples = [
      sample('#### 5'),
      { ...sample('\\boxed{x+x}'), dataSource: 'numina_x', groundTruth: '2x' },
    ];
    expect([...(await manager.score(samples)).scores]).toEqual([1, 1]);
    const run = manager.score([{ ...sample('x'), dataSource: 'nowhere' }]);
    await expect(run).rejects.toThrow(/no reward function is registered as 'nowhere'/);
  });

  test('libraries register functions in its processes, too', async () => {
    const library = join(mkdtempSync(join(tmpdir(), 'library-')), 'register.cjs');
    const index = JSON.stringify(join(__dirname, '../../dist/index.js'));
    writeFileSync(library, `require(${index}).registerRewardFunction('nowhere', () => 7);`);
    const manager = prime({ module: null, libraries: [library] });
    expect([...(await manager.score([{ ...sample('x'), dataSource: 'nowhere' }])).scores]).toEqual([7]);
  });
});

test('a process that runs out of memory takes nothing with it', async () => {
  const pool = new ScorerPool(
    1,
    { kind: 'function', module: { path, name: 'compute_score' }, libraries: [], kwargs: { bonus: 1 } },
    64,
  );
  await expect(pool.run(sample('memory'), 60_000)).rejects.toThrow(/its process ended with SIGABRT/);
  await expect(pool.run(sample('fine'), 20_000)).resolves.toMatchObject({ score: 3 });
  const late = pool.run(sample('never'), 20_000);
  pool.close();
  await expect(late).rejects.toThrow(/the scorer pool was closed/);
});

test('processes without work end, and start again for more', async () => {
  const pool = new ScorerPool(2, { kind: 'symbolic' }, 512, 300);
  const job = { answer: 'x+x', truth: '2x' };
  expect(await Promise.all([pool.run(job, 20_000), pool.run(job, 20_000)])).toEqual([true, true]);
  while (pool.size > 0) await sleep(50);
  expect(await pool.run(job, 20_000)).toBe(true);
  expect(pool.size).toBe(1);
  pool.close();
});

test('a process in a loop ends when its parent is shot', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'orphan-'));
  const [program, pidFile] = [join(directory, 'parent.cjs'), join(directory, 'pid')];
  writeFileSync(
    join(directory, 'loop.cjs'),
    `exports.loop = () => { require('node:fs').writeFileSync(${JSON.stringify(pidFile)}, String(process.pid)); for (;;); };`,
  );
  writeFileSync(
    program,
    `const { ScorerPool } = require(${JSON.stringify(join(__dirname, '../../dist/reward/scorers/scorer_pool.js'))});
     const loop = { path: ${JSON.stringify(join(directory, 'loop.cjs'))}, name: 'loop' };
     new ScorerPool(1, { kind: 'function', module: loop, libraries: [], kwargs: {} }).run({}, 600_000);`,
  );
  const parent = spawn(process.execPath, [program], { stdio: 'inherit' });
  const exited = once(parent, 'exit');
  while (!existsSync(pidFile) || readFileSync(pidFile, 'utf8') === '') {
    expect(parent.exitCode).toBeNull();
    await sleep(20);
  }
  const pid = Number(readFileSync(pidFile, 'utf8'));
  expect(process.kill(pid, 0)).toBe(true);
  parent.kill('SIGKILL');
  await exited;
  const running = (): boolean => {
    try {
      // A zombie that its new parent has not collected is not running.
      return !/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
    } catch {
      return false;
    }
  };
  for (let i = 0; i < 200 && running(); i++) await sleep(50);
  expect(running()).toBe(false);
});

test.each(['naive', 'prime'])('the scores of reward.qa_em reach the manager %s', async (name) => {
  const { reward } = rewardOf(
    loadConfig(writeConfig(), [
      `reward.reward_manager.name=${name}`,
      'reward.num_workers=1',
      'reward_model.structure_format_score=0.2',
      'reward.qa_em.final_format_score=0.1',
      'reward.custom_reward_function.reward_kwargs={final_format_score: 0.3}',
    ]),
  );
  const answered = (response: string) => ({
    ...sample(response),
    prompt: '<answer> Beijing </answer><|im_start|>assistant',
    groundTruth: { target: ['Rome'] },
    dataSource: 'nq',
  });
  const valid = answered('<think> t </think><answer> Paris </answer>');
  try {
    const { scores } = await reward.score([valid, answered('<answer> Paris </answer>')]);
    expect([...scores]).toEqual([0.2, 0.3]);
  } finally {
    await reward.close?.();
  }
});

test.each([
  ['throws', /but it threw: no table, at .*manager\.cjs:1$/],
  ['Manager', /but it threw: Class constructor Manager cannot be invoked without 'new'/],
  ['nothing', /but it returned undefined$/],
])('a reward manager that cannot be had says why: %s', (name, message) => {
  const file = join(mkdtempSync(join(tmpdir(), 'manager-')), 'manager.cjs');
  writeFileSync(
    file,
    "exports.throws = () => { throw new Error('no table'); };\nexports.Manager = class Manager {};\nexports.nothing = () => undefined;\n",
  );
  const config = loadConfig(writeConfig(), [
    'reward.reward_manager.source=importlib',
    `reward.reward_manager.name=${name}`,
    `reward.reward_manager.module.path=${file}`,
    `reward.reward_manager.module.name=${name}`,
  ]);
  expect(() => rewardOf(config)).toThrow(
    expect.objectContaining({
      code: 'INVALID_CONFIG',
      path: 'reward.reward_manager.module',
      message: expect.stringMatching(message),
    }),
  );
});

describe('prime_math', () => {
  test.each([
    ['2\\sqrt{3}', '\\sqrt{12}', 1],
    ['(x+1)^2', 'x^2+2x+1', 1],
    ['\\frac{\\sin x}{\\cos x}', '\\tan x', 1],
    ['0.75\\pi', '\\frac{3}{4}\\pi', 1],
    ['1,000', '1000', 1],
    ['(1, 0.5]', '(1,\\frac12]', 1],
    ['\\{2,1\\}', '\\{1,2\\}', 1],
    ['y=2x+1', '2x-y+1=0', 1],
    ['(-\\infty,2)\\cup(3,\\infty)', '(-\\infty, 2) \\cup (3, \\infty)', 1],
    ['1.4142', '\\sqrt{2}', 1],
    ['50\\%', '50', 1],
    ['10001', '10000', 0],
    ['10000000001', '10000000000', 0],
    ['12345678901234567890', '12345678901234567891', 0],
    ['+007', '7', 1],
    ['2^{35}', '34359738368', 1],
    ['2^{35}', '34359738369', 0],
    ['\\text{Evelyn}', 'Evelyn', 1],
    ['\\text{Yes}', '\\text{No}', 0],
    ['5\\text{ cm}', '5', 1],
    ['90\\degree', '90', 1],
    ['−3', '-3', 1],
    ['3\\frac{1}{2}', '3.5', 1],
    ['0.\\overline{3}', '\\frac13', 1],
    ['1{,}000', '1000', 1],
    ['x<3', 'x>3', 0],
    ['\\sqrt{x^2}', 'x', 0],
    ['\\{1,1\\}', '\\{1,2\\}', 0],
    ['\\{1,2,2\\}', '\\{2,1,2\\}', 1],
    ['\\{1,1,2\\}', '\\{1,2,2\\}', 0],
    ['(1,2)', '[1,2]', 0],
    ['(1,2)', '(2,1)', 0],
    ['x', 'y', 0],
    ['east', 'seat', 0],
    ['x+', 'x', 0],
    ['\\frac{}{}', '0', 0],
    ['', '0', 0],
    ['5 hours', '5', 1],
    ['7 3/4', '7.75', 1],
    ['-7 3/4', '-7.75', 1],
    ['7 3/4', '25/4', 0],
    ['5 million', '5*10^6', 1],
    ['5 million', '5*10^7', 0],
    ['1010_2', '1010', 1],
    ['1010_2', '1010_3', 0],
    ['753_16', '753_{16}', 1],
    ['1010_{\\text{2}}', '1010_{2}', 1],
    ['753_16', '753_{8}', 0],
    ['754_16', '753_{16}', 0],
    ['x=3\\text{ or }x=9', 'x=3\\text{ or }x=10', 0],
    ['x=3\\text{ or }x=9', 'x=3\\text{ or } x=9', 1],
    ['7\\text{ and }4', '7\\text{ and }5', 0],
    ['7\\text{ and }4', '7, 4', 1],
    ['∅', '\\emptyset', 1],
    ['\\varnothing', '\\emptyset', 1],
    ['(-∞, 1)∪(6, ∞)', '(-\\infty,1)\\cup(6,\\infty)', 1],
    ['5°', '5^\\circ', 1],
    ['(9,3)', '9, 3', 1],
    ['9, 3', '[9,3]', 1],
    ['(9,3)', '3,9', 0],
    ['\\{9,3\\}', '9,3', 0],
    ['4.7\\overline 9', '4.7\\overline{9}', 1],
    ['Monday', 'monday', 1],
    ['f(x)=x^2', 'x^2', 1],
    ['f(x)=x^2', 'f(x)=x^2', 1],
    ['x^2+y^2=1', 'x^2+y^2=1', 1],
    ['6.28', '2\\pi', 0],
  ])('%s and %s: %d', async (answer, truth, score) => {
    expect(await scorePrimeMath(`\\boxed{${answer}}`, truth)).toBe(score);
  });

  test('the processes of a run end with its manager', async () => {
    const before = new Set(scorers());
    const { reward } = rewardOf(loadConfig(writeConfig(), ['algorithm.adv_estimator=grpo']));
    const one = { ...sample('\\boxed{x+x}'), groundTruth: '2x', dataSource: 'numina_aops' };
    expect([...(await reward.score([one])).scores]).toEqual([1]);
    const own = scorers().filter((pid) => !before.has(pid));
    expect(own).toHaveLength(1);
    await reward.close?.();
    expect(await allGone(own, 5_000)).toBe(true);
  });

  test.each([
    ['So the result is 42', '42', 1],
    ['x = 5', '5', 1],
    ['42', '42', 1],
    ['\\boxed 9', '9', 1],
    ['final answer: \\(12\\)', '12', 1],
    ['hence\n\\[x = 7\\]', '7', 1],
    ['The answer is 42. Bye.', '42', 1],
    ['The answer is 42.\nBye', '42', 1],
    ['The answer is 41.\n\\boxed{42}', '42', 1],
    ['We add 40 and 2', '42', 0],
    ['So the roots are 2 and 3', '2, 3', 1],
    ['So the roots are (2 , 3)', '(2,3)', 1],
    ['', '', 0],
  ])('the response %j against %s: %d', async (response, truth, score) => {
    expect(await scorePrimeMath(response, truth)).toBe(score);
  });

  // In bounded time and memory; the test's time-out is that of several comparisons.
  test('hopeless expressions count as not equal', async () => {
    const hopeless = [
      '10^{10^{10}}',
      '9^{9^{9^{9}}}',
      `${'9'.repeat(300)}!`,
      '(x+y+z)^{99999}',
      '\\sum_{n=1}^{10^{12}} n^{-n}',
      `${'\\sqrt{'.repeat(80)}2${'}'.repeat(80)}`,
      `${'{'.repeat(200)}1${'}'.repeat(200)}+`,
      `\\frac${'1'.repeat(495)}`,
      '\0\x1b\u2028\ud800',
    ];
    const scores = await Promise.all(hopeless.map((text) => scorePrimeMath(`\\boxed{${text}}`, '1')));
    expect(scores).toEqual(hopeless.map(() => 0));
    expect(await scorePrimeMath(`\\boxed{${'x+'.repeat(300)}x}`, '301x')).toBe(0);
    expect(await scorePrimeMath('\\boxed{x+x}', '2x')).toBe(1);
  });
});
