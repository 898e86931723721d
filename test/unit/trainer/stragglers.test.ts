import type { EngineCall } from '../../../ts/controller/call';
import { RankTimes } from '../../../ts/trainer/metrics/stragglers';

const call = (
  phase: string | null,
  rank: number,
  ms: number,
  busyMs: number | null = null,
  pool: string | null = null,
): EngineCall => ({
  rank,
  pool,
  name: "updatePolicy of 'actor'",
  phase,
  start: 1000,
  end: 1000 + ms,
  busyMs,
});

test('the slowest rank of each phase, over the median of the ranks', () => {
  const times = new RankTimes();
  for (const [rank, ms] of [100, 120, 300, 110].entries()) times.add(call('gen of step 3', rank, ms));
  for (const rank of [0, 1, 2]) times.add(call('old_log_prob of step 3', rank, 50));
  for (let i = 0; i < 4; i++) times.add(call('old_log_prob of step 3', 1, 50));
  times.add(call(null, 0, 10_000)); // a validation, say
  times.add(call('ref of step 3', 0, 10)); // one rank alone
  expect(times.take()).toEqual({
    'straggler/gen/ratio': 300 / 115,
    'straggler/gen/rank': 2,
    'straggler/old_log_prob/ratio': 5,
    'straggler/old_log_prob/rank': 1,
  });
  expect(times.take()).toEqual({});
});

test('where all ranks end together, the one that has not waited is the slow one', () => {
  const times = new RankTimes();
  for (const [rank, busy] of [210, 200, 390, 190].entries())
    times.add(call('update_actor of step 1', rank, 400, busy));
  expect(times.take()).toEqual({
    'straggler/update_actor/ratio': 390 / 205,
    'straggler/update_actor/rank': 2,
  });
  // What only some can say compares nothing.
  times.add(call('update_actor of step 2', 0, 100, 10));
  times.add(call('update_actor of step 2', 1, 150));
  expect(times.take()['straggler/update_actor/ratio']).toBe(150 / 125);
});

test('of several pools the one whose phase it is: others go on with their own work, and nobody waits for them', () => {
  const times = new RankTimes();
  const add = (phase: string, pool: string, ...each: number[]): void => {
    for (const [rank, ms] of each.entries()) times.add(call(`${phase} of step 2`, rank, ms, null, pool));
  };
  add('gen', 'policy', 1, 5);
  add('gen', 'rollout', 100, 300);
  add('gen', 'reward', 7, 70);
  add('reward', 'policy', 1, 5);
  add('reward', 'reward', 20, 30);
  add('update_actor', 'policy', 50, 60);
  add('update_actor', 'rollout', 100, 900);
  // Without a pool that generates, the policy does.
  add('gen_max', 'policy', 10, 20);
  add('gen_max', 'reward', 7, 70);
  expect(times.take()).toEqual({
    'straggler/gen/ratio': 1.5,
    'straggler/gen/rank': 1,
    'straggler/reward/ratio': 1.2,
    'straggler/reward/rank': 1,
    'straggler/update_actor/ratio': 60 / 55,
    'straggler/update_actor/rank': 1,
    'straggler/gen_max/ratio': 20 / 15,
    'straggler/gen_max/rank': 1,
  });
  add('gen_max', 'policy', 10, 20);
  add('gen_max', 'rollout', 100, 300);
  expect(times.take()['straggler/gen_max/ratio']).toBe(1.5);
});

test('where most ranks have not been busy at all there is no ratio', () => {
  const times = new RankTimes();
  for (const [rank, busy] of [0, 0, 7].entries()) times.add(call('ref of step 1', rank, 100, busy));
  expect(times.take()).toEqual({});
});
