import { HeartbeatMonitor } from '../../../ts/worker/heartbeat';

describe('HeartbeatMonitor', () => {
  beforeEach(() => {
    jest.useFakeTimers();
  });
  afterEach(() => {
    jest.useRealTimers();
  });

  test('reports a silent rank once, and leaves the others alone', () => {
    const silent: number[] = [];
    const monitor = new HeartbeatMonitor(1000, (rank) => silent.push(rank));
    monitor.watch(0);
    monitor.watch(1);
    for (let t = 0; t < 3000; t += 100) {
      monitor.heard(0);
      jest.advanceTimersByTime(100);
      if (t < 900) expect(silent).toEqual([]);
    }
    expect(silent).toEqual([1]);
    monitor.stop();
  });

  test.each([0, 1, 50, 99])(
    'silence is counted in full, also of a rank last heard %i ms after a tick',
    (offset) => {
      const silent: number[] = [];
      const monitor = new HeartbeatMonitor(1000, (rank) => silent.push(rank));
      monitor.watch(0);
      jest.advanceTimersByTime(200 + offset);
      monitor.heard(0);
      jest.advanceTimersByTime(999);
      expect(silent).toEqual([]);
      jest.advanceTimersByTime(101);
      expect(silent).toEqual([0]);
      monitor.stop();
    },
  );

  test('a rank that is not watched may be silent', () => {
    const silent: number[] = [];
    const monitor = new HeartbeatMonitor(1000, (rank) => silent.push(rank));
    monitor.heard(0);
    monitor.watch(1);
    monitor.unwatch(1);
    jest.advanceTimersByTime(5000);
    expect(silent).toEqual([]);
    monitor.stop();
  });
});
