import type { Job } from '../../../ts/rollout/remote/job';
import { JobQueue } from '../../../ts/rollout/remote/job_queue';

test('higher priorities go first, equal ones as they came', () => {
  const queue = new JobQueue();
  for (const [failures, priority] of [0, 2, 0, 1, 2, -1].entries()) queue.push({ priority, failures } as Job);
  expect(queue.drain().map(({ failures }) => failures)).toEqual([1, 4, 3, 0, 2, 5]);
});

test('what goes next is the first one, and those behind it stay', () => {
  const queue = new JobQueue();
  const jobs = [0, 1, 2].map((failures) => ({ priority: 0, failures }) as Job);
  for (const job of jobs) queue.push(job);
  queue.shift();
  expect(queue.first).toBe(jobs[1]);
  expect(queue.drain()).toEqual(jobs.slice(1));
});

test('a request does not look at all that came before it', () => {
  const queue = new JobQueue();
  let looked = 0;
  const job = {
    get priority(): number {
      looked++;
      return 0;
    },
  } as Job;
  for (let i = 0; i < 1000; i++) queue.push(job);
  expect(looked).toBeLessThan(5000);
});

const jobs = (...priorities: number[]): Job[] =>
  priorities.map((priority) => ({ priority, handle: { ended: false } }) as Job);

test('what was interrupted goes before all others, whatever their priority', () => {
  const queue = new JobQueue();
  const [urgent, interrupted] = jobs(5, 0) as [Job, Job];
  queue.push(urgent);
  queue.putBack(interrupted);
  expect(queue.drain()).toEqual([interrupted, urgent]);
});

test('what came in a pause waits for its end, and is drained with the rest', () => {
  const queue = new JobQueue();
  const [first, later, urgent] = jobs(0, 0, 1) as [Job, Job, Job];
  queue.push(first);
  queue.hold(later);
  queue.hold(urgent);
  expect([queue.size, queue.first]).toEqual([3, first]);
  queue.shift();
  expect([queue.empty, queue.size]).toEqual([true, 2]);
  queue.release();
  expect(queue.drain()).toEqual([urgent, later]);
  queue.hold(later);
  expect(queue.drain()).toEqual([later]);
  expect(queue.size).toBe(0);
});

test('requests that have ended are nothing that may go', () => {
  const queue = new JobQueue();
  const [ended] = jobs(0) as [Job];
  queue.push({ ...ended, handle: { ended: true } } as Job);
  expect([queue.empty, queue.size]).toEqual([true, 0]);
});
