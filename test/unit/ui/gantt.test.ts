// The timeline: calls of ranks are recognised as the phases that they are of, and who waited for whom.
import { ganttOf, hueOf, totals } from '../../../ui/src/lib/gantt';

test('calls of a rank have the colour of their phase', () => {
  const calls: Record<string, readonly string[]> = {
    gen: [
      "openRollout of 'actor'",
      "beginRollout of 'actor'",
      "rolloutTurn of 'actor'",
      "parkRollout of 'actor'",
    ],
    old_log_prob: ["computeLogProb of 'actor'"],
    ref: ["computeLogProb of 'ref'"],
    values: ["computeValues of 'critic'"],
    update_actor: ["updatePolicy of 'actor'", "updateSft of 'actor'"],
    update_critic: ["updateCritic of 'critic'"],
  };
  const seen = Object.entries(calls).map(([phase, names]) => [phase, ...names.map(hueOf)]);
  expect(seen).toEqual(
    Object.entries(calls).map(([phase, names]) => [phase, ...names.map(() => hueOf(phase))]),
  );
  // None of them is the grey of what has no colour of its own.
  expect(Object.keys(calls).map(hueOf)).not.toContain(hueOf('save_checkpoint'));
});

test('a rank waits for the one that is longest at the same thing, until its own next call', () => {
  const { lanes, steps, end } = ganttOf([
    {
      step: 4,
      time: 100,
      phases: [
        ['step', 0, 5],
        ['gen', 0, 3],
        ['update_actor', 3, 2],
      ],
      ranks: [
        { rank: 0, calls: [['rolloutTurn', 0, 1] as [string, number, number], ['updatePolicy', 3, 2]] },
        { rank: 1, calls: [['rolloutTurn', 0, 2.5] as [string, number, number], ['updatePolicy', 3, 1]] },
      ],
    },
  ]);
  expect([steps, end]).toEqual([[{ step: 4, start: 0 }], 5]);
  expect(lanes[0]?.bars.map(({ name }) => name)).toEqual(['gen', 'update_actor']);
  const waits = lanes.map(({ name, bars }) => [
    name,
    ...bars.filter((bar) => bar.waits).map((bar) => [bar.waits, bar.start, bar.end]),
  ]);
  expect(waits).toEqual([['trainer'], ['rank 0', ['rank 1', 1, 2.5]], ['rank 1', ['rank 0', 4, 5]]]);
  expect(totals(lanes[1]?.bars ?? [])).toEqual([
    ['updatePolicy', 2],
    ['waits', 1.5],
    ['rolloutTurn', 1],
  ]);
});
