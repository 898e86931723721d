import { collectorOf, phase, settle } from './told_rollout';

// The share of time in which a collector that works ahead had nothing to work on.

test('the idle ratio is the share of the time since the last step in which nothing was worked on', async () => {
  let now = 1000;
  const clock = jest.spyOn(performance, 'now').mockImplementation(() => now);
  try {
    const { collector, rollout } = collectorOf({ ahead: 0 });
    const step = async (number: number, after: number, work: number, ...prompts: number[]) => {
      now += after;
      const took = collector.take(number, phase, () => undefined);
      await settle();
      now += work;
      rollout.answer(...prompts);
      return (await took).timings['rollouter/idle_ratio'];
    };
    expect(await step(1, 10, 30, 1, 2)).toBe(0.25);
    expect(await step(2, 60, 40, 3, 4)).toBe(0.6);
    await collector.close();
  } finally {
    clock.mockRestore();
  }
});

test('idle time before a step has taken its own is none of the step behind it', async () => {
  let now = 1000;
  const clock = jest.spyOn(performance, 'now').mockImplementation(() => now);
  try {
    const { collector, rollout } = collectorOf({ ahead: 0 });
    const step = async (number: number, ...prompts: number[]) => {
      now += 10;
      // Twice before the work, and twice behind it: when the step looks what is done, and when it has taken that.
      const took = collector.take(number, phase, () => {
        now += 5;
      });
      await settle();
      now += 80;
      rollout.answer(...prompts);
      return (await took).timings['rollouter/idle_ratio'];
    };
    // 10 before the work and 10 behind it, of 105.
    expect(await step(1, 1, 2)).toBeCloseTo(20 / 105, 12);
    expect(await step(2, 3, 4)).toBeCloseTo(20 / 105, 12);
    await collector.close();
  } finally {
    clock.mockRestore();
  }
});
