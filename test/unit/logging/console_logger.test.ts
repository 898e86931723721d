import { PassThrough } from 'node:stream';
import { ConsoleLogger, formatMetrics, formatNumber } from '../../../ts/logging/console_logger';

/** Runs a logger against a clock and returns what it wrote. */
function written(isTTY: boolean, work: (logger: ConsoleLogger, clock: { now: number }) => void): string {
  const out = Object.assign(new PassThrough(), { isTTY, columns: 100 });
  const clock = { now: 100 };
  const logger = new ConsoleLogger({ firstStep: 0, totalSteps: 10 }, out, () => clock.now);
  work(logger, clock);
  logger.close();
  return String(out.read() ?? '');
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
      'score 0.75 | pg_loss -0.0125 | kl_loss 0.001 | entropy 1.5 | len 12.5 | grad_norm 0.9877 | lr 1.00e-6 | ' +
        'val openai/gsm8k/acc/mean@1 0.5 | 2.35 s | 1235 tok/s',
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
  expect(text).toContain('step 2/10 | loss 1\n');
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
