import { Mt19937 } from '../../../ts/base/mt19937';
import type { Asynchrony } from '../../../ts/config/derived/asynchrony';
import { collectorOf, settle, taken } from './told_rollout';

const TOTAL = 10;

/** What became of the prompts of a run whose responses come in any order, also while the policy learns, and which may be stopped after any step. */
async function randomRun(seed: number, strategy: Asynchrony['strategy'], filters: boolean) {
  const random = new Mt19937(seed);
  const draw = (below: number): number => random.nextBelow(below);
  const newestFirst = draw(2) === 0;
  const ahead = draw(7);
  const maxSpan = 1 + Math.ceil(ahead / 2) + draw(2);
  const options = { ahead, maxSpan, strategy, totalSteps: TOTAL };
  const overrides = filters ? ['algorithm.filter_groups={enable: true, metric: seq_reward}'] : [];
  /** Every third prompt teaches nothing. */
  const score = (prompt: string, response: string): number =>
    Number(prompt) % 3 === 0 ? 0 : Number(response.split(' ')[0]);
  const begin = (more = {}) => collectorOf(options, overrides, score, undefined, null, more);
  let { collector, rollout } = begin();
  const learnt: (number | undefined)[] = [];
  let evicted = 0;
  let answered = new Set<number>();
  const answerSome = async (): Promise<void> => {
    const open = rollout.asked.filter((id) => !answered.has(id) && !rollout.aborted.includes(id));
    // No more are worked on than may be, whatever is done.
    expect(open.length).toBeLessThanOrEqual(2 + ahead);
    // In any order, or one by one with the newest first.
    for (const id of newestFirst ? open.slice(-1) : open) {
      if (draw(3) > 0) continue;
      rollout.answer(id);
      answered.add(id);
    }
    await settle();
  };
  for (let step = 1; step <= TOTAL; step++) {
    let over = false;
    const taking = taken(collector, step).finally(() => {
      over = true;
    });
    taking.catch(() => undefined);
    for (let i = 0; !over; i++) {
      if (i > 1000) throw new Error(`step ${step} of run ${seed} waits for ever`);
      await settle();
      await answerSome();
    }
    const { ids, metrics } = await taking;
    learnt.push(...ids);
    evicted += metrics['training/off_policy/evicted_samples'] ?? 0;
    evicted += metrics['training/filter_groups/evicted_samples'] ?? 0;
    expect(metrics['training/off_policy/trajectory_staleness_worst/max']).toBeLessThan(maxSpan);
    // While the policy learns.
    if (draw(2) === 0) await answerSome();
    rollout.version = step;
    if (draw(5) > 0) continue;
    const position = JSON.parse(JSON.stringify(collector.position()));
    await collector.close();
    await collector.settled();
    ({ collector, rollout } = begin({ step, position }));
    rollout.version = step;
    answered = new Set();
  }
  await collector.close();
  return { learnt: learnt.sort((a, b) => (a as number) - (b as number)), evicted };
}

test.each(['wait', 'drop'] as const)(
  '%s: whatever comes first, and wherever it is stopped, tokens are no older than they may be and each prompt is learnt from once',
  async (strategy) => {
    for (let seed = 0; seed < 40; seed++) {
      const { learnt, evicted } = await randomRun(seed, strategy, false);
      expect([seed, new Set(learnt).size]).toEqual([seed, 2 * TOTAL]);
      // Nothing is begun that the run does not take, but in place of what it leaves out.
      if (evicted === 0) expect(learnt).toEqual(Array.from({ length: 2 * TOTAL }, (_, i) => i + 1));
      if (strategy === 'wait') expect(evicted).toBe(0);
    }
  },
  120_000,
);

test('so it is with dynamic sampling, which learns from all prompts that teach', async () => {
  const teach = Array.from({ length: 3 * TOTAL }, (_, i) => i + 1).filter((id) => id % 3 !== 0);
  for (let seed = 0; seed < 40; seed++) {
    const { learnt } = await randomRun(seed, 'wait', true);
    expect([seed, learnt]).toEqual([seed, teach]);
  }
}, 120_000);
