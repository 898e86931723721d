import { PassThrough, Writable } from 'node:stream';
import { formatMetrics, formatNumber } from '../../../ts/logging/console_format';
import { ConsoleLogger } from '../../../ts/logging/console_logger';
import { ConsoleTable } from '../../../ts/logging/console_table';
import { generationsTable } from '../../../ts/logging/generations_table';
import type { Metrics } from '../../../ts/logging/logger';
import { Loggers } from '../../../ts/logging/loggers';

/** Runs a logger against a clock and returns what it wrote. */
function written(isTTY: boolean, work: (logger: ConsoleLogger, clock: { now: number }) => void): string {
  const out = Object.assign(new PassThrough(), { isTTY, columns: 100 });
  const clock = { now: 100 };
  const logger = new ConsoleLogger({ firstStep: 0, totalSteps: 10 }, out, () => clock.now);
  work(logger, clock);
  logger.close();
  let text = '';
  // From Node 26 on a call gives one piece of it.
  for (let piece = out.read(); piece !== null; piece = out.read()) text += piece;
  return text;
}

test('numbers: four digits, in few characters', () => {
  const numbers = [0, 3, 0.123456, -12.3456, 0.00012345, 1234567.8, 12, NaN, -Infinity];
  expect(numbers.map(formatNumber)).toEqual([
    '0',
    '3',
    '0.1235',
    '-12.35',
    '1.23e-4',
    '1.23e+6',
    '12',
    'NaN',
    '-Infinity',
  ]);
});

describe('a line', () => {
  test('has what tells most, in a fixed order', () => {
    const metrics = {
      'perf/throughput': 1234.5,
      'timing_s/step': 2.345,
      'val-core/openai/gsm8k/acc/mean@1': 0.5,
      'val-aux/openai/gsm8k/score/mean@1': 0.25,
      'actor/lr': 1e-6,
      'actor/grad_norm': 0.987654,
      'response_length/mean': 12.5,
      'actor/entropy': 1.5,
      'actor/kl_loss': 0.001,
      'actor/pg_loss': -0.0125,
      'critic/score/mean': 0.75,
      'critic/rewards/mean': 0.75,
      'training/global_step': 3,
    };
    expect(formatMetrics(metrics)).toBe(
      'score 0.75 | pg_loss -0.0125 | kl_loss 0.001 | entropy 1.5 | grad_norm 0.9877 | lr 1.00e-6 | ' +
        'len 12.5 | val openai/gsm8k/acc/mean@1 0.5 | 2.35 s | 1235 tok/s',
    );
  });

  test('shows rewards when they differ from scores, and trouble when there was some', () => {
    const metrics = { 'critic/score/mean': 1, 'critic/rewards/mean': 0.5, 'actor/update_skipped': 0 };
    expect(formatMetrics(metrics)).toBe('score 1 | reward 0.5');
    expect(formatMetrics({ ...metrics, 'actor/update_skipped': 2 })).toMatch(/SKIPPED updates .*: 2$/);
  });

  test('is left out when there is nothing to say', () => {
    expect(formatMetrics({ 'timing_s/gen': 1, 'training/epoch': 0 })).toBeNull();
  });
});

test('without a terminal: one line per step, with the time that is left', () => {
  const text = written(false, (logger, clock) => {
    clock.now = 130; // start-up and validation are no part of the pace
    logger.log({ 'val-core/sums/acc/mean@1': 0.25 }, 0);
    clock.now = 140;
    logger.log({ 'train/loss': 2 }, 1);
    clock.now = 160;
    logger.log({ 'train/loss': 1 }, 2);
    logger.log({ 'training/epoch': 0 }, 3);
    logger.log({ 'train/loss': 0.5 }, 10);
  });
  expect(text.split('\n')).toEqual([
    'step 0/10 | val sums/acc/mean@1 0.25',
    'step 1/10 | loss 2 | 1:30 left',
    'step 2/10 | loss 1 | 2:00 left',
    'step 10/10 | loss 0.5',
    '',
  ]);
});

test('on a terminal: lines above a bar that is gone at the end', () => {
  const text = written(true, (logger, clock) => {
    clock.now = 110;
    logger.log({ 'train/loss': 2 }, 1);
    clock.now = 120;
    logger.log({ 'train/loss': 1 }, 2);
  });
  expect(text).toMatch(/ {6}training\nstep +loss\n/);
  expect(text).toContain('2/10          1\n');
  expect(text).toMatch(/ 2\/10 steps \| 0:00 elapsed \| 1:20 left/);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the bar is cleared with them
  expect(text).toMatch(/\u001b\[1G\u001b\[0J$/);
  expect(text).not.toContain('\u001b[?7l');
});

test('a run of unknown length has neither', () => {
  const out = new PassThrough();
  new ConsoleLogger(null, out).log({ 'train/loss': 2 }, 1);
  expect(String(out.read())).toBe('step 1 | loss 2\n');
});

test('an output that fails is an error of the next line, a reader that has gone is none', async () => {
  for (const code of ['ENOSPC', 'EPIPE']) {
    const lines: string[] = [];
    const out = new Writable({
      autoDestroy: false,
      write: (chunk, _, done) => {
        lines.push(String(chunk));
        done(lines.length === 1 ? Object.assign(new Error(`write ${code}`), { code }) : null);
      },
    });
    const warnings: string[] = [];
    // A second logger of the same stream, as in a second run, listens no more than the first.
    const logger = [0, 1].map(() => new ConsoleLogger(null, out))[1] as ConsoleLogger;
    expect(out.listenerCount('error')).toBe(1);
    const loggers = new Loggers([logger], (line) => warnings.push(line));
    for (let step = 1; step <= 3; step++) {
      await loggers.log({ 'train/loss': 2 }, step);
      await new Promise((resume) => setImmediate(resume));
    }
    await loggers.close();
    const full = [
      expect.stringContaining('console failed, the run goes on without what it missed: write ENOSPC'),
    ];
    expect(warnings).toEqual(code === 'ENOSPC' ? full : []);
  }
});

describe('the table of a terminal', () => {
  const metrics = {
    'critic/score/mean': 0.5,
    'critic/rewards/mean': 0.25,
    'actor/pg_loss': -1.2345e-10,
    'actor/entropy': NaN,
    'actor/grad_norm': -Infinity,
    'response_length/mean': 12.5,
    'timing_s/step': 2.345,
    'perf/throughput': 1234.5,
  };

  test('is grouped and aligned', () => {
    const table = new ConsoleTable(() => 120, 7);
    const lines = [
      ...table.lines('1/100', metrics),
      ...table.lines('2/100', { ...metrics, 'actor/entropy': 1 }),
    ];
    expect(lines).toEqual([
      '           reward              policy                      response      time',
      'step        score    reward   pg_loss   entropy grad_norm       len         s     tok/s',
      '1/100         0.5      0.25 -1.23e-10       NaN -Infinity      12.5      2.35      1235',
      '2/100         0.5      0.25 -1.23e-10         1 -Infinity      12.5      2.35      1235',
    ]);
  });

  test.each([200, 80, 40, 17, 1])('%d columns wide: what matters most stays', (width) => {
    const lines = new ConsoleTable(() => width, 7).lines('1/100', metrics);
    expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(Math.max(width, 17));
    expect(lines[1]).toContain('score');
    if (width === 40) expect(lines[1]?.split(/ +/)).toEqual(['step', 'score', 'entropy', 'len']);
  });

  test('the head comes again with a new column, another width, and every 20 rows', () => {
    let width = 100;
    const table = new ConsoleTable(() => width, 4);
    const heads: number[] = [];
    for (let step = 1; step <= 70; step++) {
      if (step === 50) width = 20;
      const critic: Metrics = step === 30 ? { 'critic/vf_loss': 1 } : {};
      if (table.lines(String(step), { ...metrics, ...critic }).length > 1) heads.push(step);
    }
    expect(heads).toEqual([1, 21, 30, 50, 70]);
  });

  test('what a step has now and then stands below its row', () => {
    const text = written(true, (logger) => {
      logger.log({ 'train/loss': 2, 'val-core/sums/acc/mean@1': 0.25 }, 1);
      logger.log({ 'timing_s/save_checkpoint': 0.5 }, 1);
    });
    expect(text).toContain('1/10          2\nstep 1/10 | val sums/acc/mean@1 0.25\n');
    expect(text).toContain('step 1/10 | checkpoint saved in 0.50 s\n');
  });
});

describe('the table of generations', () => {
  const row = { input: 'What is 1 + 1?', output: 'It is 2.\n#### 2', gts: '2', score: 1 };

  test('fits the width, also with wide characters', () => {
    const rows = [row, { ...row, output: '答'.repeat(300), gts: { a: [2n ** 54n] }, score: 0.123456 }];
    for (const width of [60, 100, 180]) {
      const [title, ...lines] = generationsTable(rows, 7, width).split('\n');
      expect(title).toBe('validation at step 7, 2 of its answers');
      for (const line of lines) expect(cells(line)).toBeLessThanOrEqual(width);
    }
    const text = generationsTable(rows, 7, 100);
    for (const part of ['score', 'What is 1 + 1?', '#### 2', '{"a":["18', '0.1235'])
      expect(text).toContain(part);
  });

  test('a long answer is cut; control characters are shown, not obeyed', () => {
    const long = generationsTable([{ ...row, output: 'y'.repeat(1e6) }], 1, 100);
    expect(long.match(/y/g)).toHaveLength(600);
    const evil = generationsTable([{ ...row, output: '\u001b[2J\r\u0007\u202e', score: NaN }], 1, 180);
    expect(evil).toContain('\\u{1b}[2J\\u{d}\\u{7}\\u{202e}');
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not be there
    expect(evil).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u202e]/);
  });

  test('is written where the steps are, terminal or not', () => {
    for (const isTTY of [true, false]) {
      expect(written(isTTY, (logger) => logger.logGenerations([row], 3))).toContain('validation at step 3');
    }
  });
});

/** Columns that a line takes: those of CJK count twice. */
function cells(line: string): number {
  return [...line].reduce((sum, character) => sum + (/\p{Script=Han}/u.test(character) ? 2 : 1), 0);
}
