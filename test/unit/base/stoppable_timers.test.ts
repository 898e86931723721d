import { StoppableTimers } from '../../../ts/base/stoppable_timers';

beforeEach(() => jest.useFakeTimers());
afterEach(() => jest.useRealTimers());

test('time in which they stand still does not count', () => {
  const timers = new StoppableTimers();
  const rung: string[] = [];
  timers.after(100, () => rung.push('a'));
  const forget = timers.after(100, () => rung.push('never'));
  jest.advanceTimersByTime(60);
  timers.stop();
  timers.stop();
  timers.after(30, () => rung.push('b'));
  jest.advanceTimersByTime(1000);
  expect(rung).toEqual([]);
  forget();
  timers.go();
  timers.go();
  jest.advanceTimersByTime(29);
  expect(rung).toEqual([]);
  jest.advanceTimersByTime(1);
  expect(rung).toEqual(['b']);
  timers.stop();
  jest.advanceTimersByTime(1000);
  timers.go();
  jest.advanceTimersByTime(9);
  expect(rung).toEqual(['b']);
  jest.advanceTimersByTime(1);
  expect(rung).toEqual(['b', 'a']);
  jest.advanceTimersByTime(10_000);
  expect(rung).toEqual(['b', 'a']);
});
