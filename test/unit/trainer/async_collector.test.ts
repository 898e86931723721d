import type { AgentTask } from '../../../ts/agent/define';
import { TroupeError } from '../../../ts/errors';
import type { AgentRollout } from '../../../ts/trainer/agent_rollout';
import type { Metrics } from '../../../ts/trainer/metrics/metrics';
import { collectorOf, phase, settle, taken } from './told_rollout';

test('a step takes the oldest that are done; what is done too late is left out, and others take its place', async () => {
  const { collector, rollout } = collectorOf({});
  const first = taken(collector, 1);
  await settle();
  expect(rollout.asked).toEqual([1, 2, 3, 4]);
  rollout.answer(2, 4);
  expect((await first).ids).toEqual([2, 4]);
  rollout.version = 1;
  const second = taken(collector, 2);
  await settle();
  expect(rollout.asked).toEqual([1, 2, 3, 4, 5, 6]);
  rollout.answer(5, 6);
  expect((await second).ids).toEqual([5, 6]);
  rollout.version = 2;
  // Of prompts 1 and 3, of step 1, nothing may be learnt in step 3 any more.
  const third = taken(collector, 3);
  await settle();
  rollout.answer(1, 7);
  await settle();
  rollout.answer(3, 9);
  const { ids, metrics } = await third;
  expect(ids).toEqual([7, 9]);
  expect(rollout.asked).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
  expect(metrics).toMatchObject({
    'training/off_policy/evicted_samples': 2,
    'training/off_policy/evicted_samples_staleness/mean': 3,
    'training/off_policy/trajectory_staleness_worst/max': 0,
  });
  // Only 8 and 10 are left, as the rest of what was read.
  expect(collector.position()).toEqual({
    loader: { at: 6 },
    queue: { batch: 4, read: [{ epoch: 0, prompts: 4, left: [1, 3] }] },
  });
  await collector.close();
  // The older ones were given up when step 3 began.
  expect(new Set(rollout.aborted)).toEqual(new Set([1, 3, 8, 10]));
});

test('drop: prompts that come to no end take no place of others, in the last step, too', async () => {
  const { collector, rollout } = collectorOf({ ahead: 1, totalSteps: 3 });
  const learn = async (step: number, ...done: number[]) => {
    const took = taken(collector, step);
    await settle();
    rollout.answer(...done);
    return (await took).ids;
  };
  // 1 hangs.
  expect(await learn(1, 2, 3)).toEqual([2, 3]);
  expect(await learn(2, 4, 5)).toEqual([4, 5]);
  expect(await learn(3, 6, 7)).toEqual([6, 7]);
  expect(rollout.aborted).toEqual([1, 1, 1, 1]);
  expect(collector.position().queue?.read).toEqual([{ epoch: 0, prompts: 2, left: [1] }]);
});

test('wait: a step begins when those at their limit are done', async () => {
  const { collector, rollout } = collectorOf({ strategy: 'wait' });
  const first = taken(collector, 1);
  await settle();
  rollout.answer(3, 4);
  expect((await first).ids).toEqual([3, 4]);
  const second = taken(collector, 2);
  await settle();
  rollout.answer(5, 6);
  await settle();
  rollout.version = 1;
  rollout.answer(1);
  await settle();
  rollout.answer(2);
  expect((await second).ids).toEqual([1, 2]);
});

test('staleness counts updates: steps that leave the policy alone are none', async () => {
  const { collector, rollout } = collectorOf({ maxSpan: 9 }, [
    'algorithm.adv_estimator=gae',
    'trainer.critic_warmup=5',
  ]);
  const off = (metrics: Metrics) =>
    ['staleness', 'staleness_worst', 'spans'].map(
      (name) => metrics[`training/off_policy/trajectory_${name}/max`],
    );
  const first = taken(collector, 4);
  await settle();
  rollout.answer(1, 2, 3, 4);
  expect(off((await first).metrics)).toEqual([0, 0, 1]);
  // Step 5 is the first that changes the policy.
  rollout.version = 5;
  expect(off((await taken(collector, 6)).metrics)).toEqual([1, 1, 1]);
});

test('an engine that fails while the policy learns ends the step that comes next, with its error', async () => {
  const { collector, rollout } = collectorOf({});
  const first = taken(collector, 1);
  await settle();
  rollout.answer(1, 2);
  await first;
  rollout.fail(3, new TroupeError('COMM', 'the cable is out'));
  await settle();
  await expect(taken(collector, 2)).rejects.toThrow('the cable is out');
  // The other samples of the prompt were given up with it.
  expect(rollout.aborted).toContain(3);
});

test('what is cut short when the run ends is not scored, and who waits is told', async () => {
  const scored: string[] = [];
  const { collector, rollout } = collectorOf({}, [], (prompt) => scored.push(prompt));
  const first = taken(collector, 1);
  await settle();
  rollout.answer(1, 2);
  await first;
  const second = taken(collector, 2);
  const ended = expect(second).rejects.toThrow('the run has ended');
  await settle();
  await collector.close();
  await ended;
  await collector.settled();
  expect(new Set(rollout.aborted)).toEqual(new Set([3, 4, 5, 6]));
  expect(new Set(scored)).toEqual(new Set(['1', '2']));
  await expect(taken(collector, 3)).rejects.toThrow('the run has ended');
  expect(rollout.asked).toEqual([1, 2, 3, 4, 5, 6]);
});

test('an engine that leaves batches where they are when it is closed holds nobody up', async () => {
  const { collector, rollout } = collectorOf({});
  Object.assign(rollout.engine, { submitBatch: () => new Promise(() => undefined) });
  const ended = expect(taken(collector, 1)).rejects.toThrow('the run has ended');
  await settle();
  await collector.close();
  await ended;
  await collector.settled();
});

test('a step that is to be given up does not wait for what it would take', async () => {
  const { collector } = collectorOf({});
  let stopped = false;
  const step = collector.take(1, phase, () => {
    if (stopped) throw new Error('given up');
  });
  const ended = expect(step).rejects.toThrow('given up');
  await settle();
  stopped = true;
  collector.nudge();
  await ended;
  expect(collector.position().queue?.read).toEqual([{ epoch: 0, prompts: 4, left: [0, 1, 2, 3] }]);
});

/** Trajectories that call no model. */
const agentsOf = (run: (task: AgentTask) => Promise<number>): AgentRollout => ({
  agent: { run },
  tokenizer: { encode: () => new Int32Array(), decode: () => '' },
  chat: null,
  tools: [],
  options: {
    toolOptions: { timeout: 1, maxResponseLength: 256, truncateSide: 'left' as const },
    timeout: 10,
    retries: 0,
    concurrency: 64,
    onError: 'zero' as const,
  },
  close: async () => undefined,
});

test('the time of a trajectory does not run while its engine stands still', async () => {
  jest.useFakeTimers({ doNotFake: ['setImmediate', 'nextTick', 'queueMicrotask'] });
  const waiting: (() => void)[] = [];
  const agents = agentsOf(async ({ promptIds: [id] }) => {
    if (id === 3 || id === 4) await new Promise<void>((done) => waiting.push(done));
    return 1;
  });
  const { collector } = collectorOf({ colocated: true }, [], undefined, undefined, agents);
  const { prompts } = await collector.take(1, phase, () => undefined);
  expect(prompts.map(({ tokens }) => tokens[0])).toEqual([1, 2]);
  jest.advanceTimersByTime(6_000);
  await collector.beforeLearning();
  jest.advanceTimersByTime(60_000);
  await collector.learnt();
  jest.advanceTimersByTime(3_000);
  for (const done of waiting) done();
  const { trajectories } = await collector.take(2, phase, () => undefined);
  jest.useRealTimers();
  expect(trajectories.map(({ error }) => error)).toEqual(new Array(8).fill(null));
});

test('it is settled when the rewards that were being computed have come', async () => {
  let give: () => void = () => undefined;
  const reward = new Promise<void>((done) => {
    give = done;
  });
  const { collector, rollout } = collectorOf({}, [], async () => {
    await reward;
    return 1;
  });
  taken(collector, 1).catch(() => undefined);
  await settle();
  rollout.answer(1);
  await settle();
  await collector.close();
  let settled = false;
  const waiting = collector.settled().then(() => {
    settled = true;
  });
  await settle();
  expect(settled).toBe(false);
  give();
  await waiting;
});

test('dynamic sampling: prompts whose responses are alike make room for others, until that is hopeless', async () => {
  const filter = 'algorithm.filter_groups={enable: true, metric: seq_reward';
  /** Odd prompts teach, or none does. */
  const run = async (more: string, alike: (prompt: string) => boolean) => {
    const { collector, rollout } = collectorOf({ ahead: 0 }, [`${filter}${more}}`], (prompt, response) =>
      alike(prompt) ? 0 : Number(response.split(' ')[0]),
    );
    let ended = false;
    const step = taken(collector, 1).finally(() => {
      ended = true;
    });
    step.catch(() => undefined);
    while (!ended) {
      await settle();
      rollout.answer(...rollout.asked);
    }
    return await step;
  };
  const { ids, metrics } = await run('', (prompt) => Number(prompt) % 2 === 0);
  expect(ids).toEqual([1, 3]);
  expect(metrics).toMatchObject({ 'training/filter_groups/evicted_samples': 1, 'train/num_gen_prompts': 3 });
  await expect(run('', () => true)).rejects.toThrow(
    /of 6 prompts in 3 generation batches only 0 are such, and none of the last pass/,
  );
  // The first one teaches.
  await expect(run(', max_num_gen_batches: 2', (prompt) => prompt !== '1')).rejects.toThrow(
    /of 4 prompts in 2 generation batches only 1 are such, and .*max_num_gen_batches is 2/,
  );
});

test('dynamic sampling: what is left out while the policy learns is no reason to give up a step that has enough', async () => {
  const { collector, rollout } = collectorOf(
    { ahead: 8, maxSpan: 5 },
    ['algorithm.filter_groups={enable: true, metric: seq_reward, max_num_gen_batches: 1}'],
    (prompt, response) => (Number(prompt) > 6 ? 0 : Number(response.split(' ')[0])),
  );
  const first = taken(collector, 1);
  await settle();
  rollout.answer(1, 2);
  await first;
  // 3 and 4 teach, 7 and 8 do not.
  rollout.answer(3, 4, 7, 8);
  await settle();
  const { ids, metrics } = await taken(collector, 2);
  expect(ids).toEqual([3, 4]);
  expect(metrics).toMatchObject({ 'training/filter_groups/evicted_samples': 2 });
});

test('dynamic sampling: failures of rewards of what was left out are counted', async () => {
  const { collector, rollout } = collectorOf(
    { ahead: 0 },
    ['algorithm.filter_groups={enable: true, metric: seq_reward}'],
    (prompt, response) => (prompt === '1' ? 0 : Number(response.split(' ')[0])),
    ({ prompt }) => prompt === '1',
  );
  const first = collector.take(1, phase, () => undefined);
  await settle();
  rollout.answer(1);
  await settle();
  rollout.answer(2, 3);
  expect((await first).scored.rewards.failures).toBe(4);
});

test('dynamic sampling: a prompt that comes too late while it is scored is left out once', async () => {
  let give: () => void = () => undefined;
  const slow = new Promise<void>((done) => {
    give = done;
  });
  const { collector, rollout } = collectorOf(
    { ahead: 1, maxSpan: 1 },
    ['algorithm.filter_groups={enable: true, metric: seq_reward}'],
    async (prompt, response) => {
      if (prompt === '1') await slow;
      return prompt === '1' ? 0 : Number(response.split(' ')[0]);
    },
  );
  const first = taken(collector, 1);
  await settle();
  rollout.answer(1, 2, 3);
  expect((await first).ids).toEqual([2, 3]);
  const second = taken(collector, 2);
  await settle();
  give();
  await settle();
  rollout.answer(4, 5);
  const { ids, metrics } = await second;
  expect(ids).toEqual([4, 5]);
  expect(metrics).toMatchObject({
    'training/off_policy/evicted_samples': 1,
    'training/filter_groups/evicted_samples': 0,
  });
  await collector.close();
});

test('dynamic sampling: prompts of which every agent failed are hopeless in a row alone', async () => {
  const filter = ['algorithm.filter_groups={enable: true, metric: seq_reward}'];
  const run = async (failing: readonly number[]) => {
    const agents = agentsOf(async ({ promptIds: [id = 0], sample }) => {
      if (failing.includes(id)) throw new Error('no such tool');
      return id < 5 ? 1 : sample;
    });
    const { collector } = collectorOf({ ahead: 0 }, filter, undefined, undefined, agents);
    return (await taken(collector, 1)).ids;
  };
  // Between those that fail is one whose responses are alike, and work.
  expect(await run([1, 3])).toEqual([5, 6]);
  await expect(run([3, 4])).rejects.toThrow(/every one of 8 tasks: no such tool/);
});

/** So many turns of the microtask queue that the second prompt ends in each of those between the first one's end and the collector's wait. */
describe.each([0, 1, 2, 3, 4, 5, 6])('a prompt that ends %i microtasks after another one', (later) => {
  /** Step 1, of which prompts 1 and 2 have been answered at once; what `end` says is the reward of the second one's responses. */
  const begun = async (end: () => number) => {
    const filter = 'algorithm.filter_groups={enable: true, metric: seq_reward}';
    const { collector, rollout } = collectorOf({ ahead: 0 }, [filter], async (prompt, response) => {
      if (prompt !== '2') return Number(response.split(' ')[0]);
      for (let i = 0; i < later; i++) await null;
      return end();
    });
    const step = taken(collector, 1);
    await settle();
    rollout.answer(1, 2);
    return { collector, rollout, step };
  };

  test('makes room for a third one when its responses are alike', async () => {
    const { rollout, step } = await begun(() => 1);
    await settle();
    expect(rollout.asked).toEqual([1, 2, 3]);
    rollout.answer(3);
    expect((await step).ids).toEqual([1, 3]);
  });

  test('ends the step when it fails', async () => {
    const { collector, step } = await begun(() => {
      throw new Error('the grader is gone');
    });
    let ended = 'it waits';
    step.catch((error: Error) => {
      ended = error.message;
    });
    await settle();
    expect(ended).toMatch('the grader is gone');
    await collector.close();
  });
});
