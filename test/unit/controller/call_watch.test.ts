import { CallWatch, type Overdue } from '../../../ts/controller/call_watch';
import type { AnsweredCall, PendingCall } from '../../../ts/controller/worker_requests';

const UPDATE = "updatePolicy of 'actor'";
const work = { tokens: 1, longest: 1 };

/** Two ranks whose calls may take a second, and a clock that may go on without this process. */
class Watched {
  now = 0;
  readonly calls: (PendingCall | null)[] = [null, null];
  readonly overdue: Overdue[] = [];
  readonly watch: CallWatch;

  constructor(fixedMs: number | null = 1_000) {
    jest.useFakeTimers({ doNotFake: ['performance'] });
    jest.spyOn(performance, 'now').mockImplementation(() => this.now);
    const { calls } = this;
    const members = [0, 1].map((rank) => ({
      rank,
      client: {
        get oldest() {
          return calls[rank] ?? null;
        },
      },
    }));
    this.watch = new CallWatch({ fixedMs, factor: 10, floorMs: 0 }, members, (one) => this.overdue.push(one));
  }

  begin(rank: number): void {
    this.calls[rank] = { what: UPDATE, work, asked: this.now, begun: this.now };
  }

  /** Nothing of this process ran for so long, where it was not there; then its timers do. */
  pass(milliseconds: number, away = 0): void {
    this.now += away;
    for (let left = milliseconds; left > 0; left -= 250) {
      this.now += 250;
      jest.advanceTimersByTime(250);
    }
  }
}
afterEach(() => {
  jest.restoreAllMocks();
  jest.useRealTimers();
});

test('a call that takes too long is told once, with all ranks that are at it', () => {
  const watched = new Watched();
  watched.begin(0);
  watched.begin(1);
  watched.pass(1_000);
  expect(watched.overdue).toEqual([]);
  watched.pass(1_000);
  expect(watched.overdue).toHaveLength(1);
  expect(watched.overdue[0]).toMatchObject({
    ranks: [0, 1],
    what: UPDATE,
    ms: 1_250,
    why: 'trainer.worker_timeouts.call',
  });
});

test('the time for which this process was stopped is none of the call', () => {
  const watched = new Watched();
  watched.begin(0);
  watched.pass(500, 0);
  watched.pass(250, 100_000);
  expect(watched.overdue).toEqual([]);
  watched.pass(1_000);
  expect(watched.overdue).toHaveLength(1);
});

test('one that was stopped before a call gives it no time', () => {
  const watched = new Watched();
  watched.pass(250, 100_000);
  watched.begin(1);
  watched.pass(1_000);
  expect(watched.overdue).toEqual([]);
  watched.pass(500);
  expect(watched.overdue).toMatchObject([{ ranks: [1] }]);
});

test('limits follow from how long answered calls have taken', () => {
  const watched = new Watched(null);
  watched.begin(0);
  watched.pass(100_000);
  expect(watched.overdue).toEqual([]);
  const [call] = watched.calls as [PendingCall];
  for (const begun of [0, 0]) watched.watch.answered({ ...call, begun, end: begun + 100 } as AnsweredCall);
  watched.begin(0);
  watched.pass(1_000);
  expect(watched.overdue).toEqual([]);
  watched.pass(250);
  expect(watched.overdue).toHaveLength(1);
});
