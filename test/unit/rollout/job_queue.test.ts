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
