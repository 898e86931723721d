import { formatDuration, RemainingTime } from '../../../ts/logging/remaining_time';

test('durations', () => {
  expect([0, 5.4, 65, 3600, 45296].map(formatDuration)).toEqual([
    '0:00',
    '0:05',
    '1:05',
    '1:00:00',
    '12:34:56',
  ]);
});

describe('remaining time', () => {
  test('is unknown before a step has ended', () => {
    const remaining = new RemainingTime(10);
    expect(remaining.seconds(0)).toBeNull();
    remaining.stepEnded(4, 7);
    expect(remaining.seconds(8)).toBeNull();
  });

  test('follows the pace of this session and runs down between steps, never below zero', () => {
    const remaining = new RemainingTime(10);
    remaining.stepEnded(4, 7);
    remaining.stepEnded(5, 9);
    expect(remaining.seconds(9)).toBe(10);
    expect(remaining.seconds(10)).toBe(9);
    expect(remaining.seconds(99)).toBe(0);
  });

  test('looks at the last twenty steps, and ignores a step that is logged again', () => {
    const remaining = new RemainingTime(100);
    for (let step = 0; step <= 20; step++) remaining.stepEnded(step, step * 100);
    for (let step = 21; step <= 40; step++) remaining.stepEnded(step, 2000 + step - 20);
    remaining.stepEnded(40, 5000);
    expect(remaining.seconds(2020)).toBe(60);
  });
});
