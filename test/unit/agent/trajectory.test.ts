import { joinCalls } from '../../../ts/agent/trajectory/sequences';
import { trajectoryBatch, turnScores } from '../../../ts/agent/trajectory/trajectory_batch';
import { wholeTrajectories } from '../../../ts/agent/trajectory/whole';
import { computeAdvantages } from '../../../ts/algorithms/advantages';
import { callOf, randomCalls, trajectoryOf } from './histories';

const SEEDS = Array.from({ length: 400 }, (_, seed) => seed);

describe('sequences of a trajectory', () => {
  test.each(SEEDS)('history %i: each call is one turn, in its own context', (seed) => {
    const calls = randomCalls(seed);
    const sequences = joinCalls(calls);
    const seen: number[] = [];
    for (const { tokens, turns, promptLength } of sequences) {
      let end = 0;
      for (const turn of turns) {
        const call = calls[turn.call];
        seen.push(turn.call);
        expect(turn.start).toBeGreaterThanOrEqual(end);
        end = turn.end;
        // What stands before the turn is what the model saw, and the turn what it made.
        expect([...tokens.subarray(0, turn.start)]).toEqual([...(call?.promptIds ?? [])]);
        expect([...tokens.subarray(turn.start, turn.end)]).toEqual([...(call?.tokens ?? [])]);
      }
      if (turns.length > 0) {
        expect(end).toBe(tokens.length);
        expect(promptLength).toBeLessThanOrEqual(turns[0]?.start as number);
      }
    }
    const made = calls.flatMap(({ tokens }, i) => (tokens.length > 0 ? [i] : []));
    expect(seen.sort((a, b) => a - b)).toEqual(made);
  });

  test('a conversation that only grows is one sequence', () => {
    const calls = [callOf([1, 2], [3]), callOf([1, 2, 3, 4], [5, 6]), callOf([1, 2, 3, 4, 5, 6], [7])];
    expect(joinCalls(calls)).toEqual([
      {
        tokens: Int32Array.of(1, 2, 3, 4, 5, 6, 7),
        promptLength: 2,
        turns: [
          { call: 0, start: 2, end: 3 },
          { call: 1, start: 4, end: 6 },
          { call: 2, start: 6, end: 7 },
        ],
      },
    ]);
  });

  test('a history that was rewritten begins a sibling; so does a second call from the same place', () => {
    const calls = [
      callOf([1, 2], [3, 9]),
      callOf([1, 2, 3, 4], [5]),
      callOf([1, 2], [3, 9]),
      callOf([8], [6]),
      callOf([8, 6, 7], [6]),
    ];
    const sequences = joinCalls(calls);
    expect(sequences.map(({ turns }) => turns.map(({ call }) => call))).toEqual([[0], [1], [2], [3, 4]]);
    // What begins as the task did shares its prompt; a sub-agent has one of its own.
    expect(sequences.map(({ promptLength }) => promptLength)).toEqual([2, 2, 2, 1]);
  });
});

describe('trajectories as a batch', () => {
  const row = (calls = [callOf([1, 2], [3])]) => ({ promptIds: [1, 2], trajectory: trajectoryOf(calls) });

  test.each(SEEDS.slice(0, 100))('history %i: columns say what was sampled, when and by whom', (seed) => {
    const calls = randomCalls(seed);
    const other = randomCalls(seed + 1000);
    const batch = trajectoryBatch([row(calls), row(other)]);
    const mask = batch.get('responseMask');
    const tokens = [...Array(batch.size).keys()].flatMap((i) => [...batch.response(i)]);
    const trained = new Map<string, number[]>();
    for (let i = 0; i < batch.size; i++) {
      for (let t = batch.responseOffsets[i] as number; t < (batch.responseOffsets[i + 1] as number); t++) {
        if (!mask[t]) {
          expect(batch.get('rolloutLogProbs')[t]).toBe(0);
          expect(batch.get('version')[t]).toBe(-1);
          continue;
        }
        const key = `${(batch.get('trajectory') as Int32Array)[i]}:${batch.get('turn')[t]}`;
        trained.set(key, [...(trained.get(key) ?? []), tokens[t] as number]);
        const call = (batch.row('trajectory', i) === 0 ? calls : other)[batch.get('turn')[t] as number];
        const at = (trained.get(key)?.length ?? 0) - 1;
        expect(batch.get('rolloutLogProbs')[t]).toBe(call?.logProbs[at]);
        expect(batch.get('version')[t]).toBe(call?.versions[0]?.version);
      }
    }
    const expected = [calls, other].flatMap((all, k) =>
      all.flatMap(({ tokens: made }, i) => (made.length > 0 ? [[`${k}:${i}`, [...made]] as const] : [])),
    );
    expect(trained).toEqual(new Map(expected));
  });

  test('scores lie on the last sampled token of a trajectory and of a turn', () => {
    const branching = [callOf([1, 2], [3, 4]), callOf([1, 2, 3, 4, 9], [5]), callOf([1, 2, 7], [6, 6])];
    const batch = trajectoryBatch([row(branching), row(), row([callOf([1, 2], [])])]);
    expect(batch.size).toBe(4);
    const scores = turnScores(batch, [1, 0.5, 3], [new Map([[0, 0.25]]), new Map(), new Map()]);
    //                            3  4     9  5  | 7  6  6 | 3
    expect([...scores]).toEqual([0, 0.25, 0, 0, 0, 0, 1, 0.5]);
    // That of the last call is added to the trajectory's own; a call that made nothing has no token.
    const both = turnScores(batch, [1, 0.5, 3], [new Map([[2, 0.25]]), new Map([[5, 9]]), new Map([[0, 9]])]);
    expect([...both]).toEqual([0, 0, 0, 0, 0, 0, 1.25, 0.5]);
    expect([...batch.get('numTurns')]).toEqual([6, 6, 2, 2]);
  });

  test('advantages count a trajectory in which nothing was sampled, by its score', () => {
    const branching = [callOf([1, 2], [3, 4]), callOf([1, 2, 7], [6, 6])];
    const batch = trajectoryBatch([row(branching), row(), row([callOf([1, 2], [])])]);
    // Each row of a trajectory has its score: only where no token has it, it is read.
    const scores = [2, 1, -3];
    const rewarded = batch.with({
      uid: ['a', 'a', 'a', 'a'],
      score: [2, 2, 1, -3],
      tokenRewards: turnScores(batch, scores, [new Map(), new Map(), new Map()]),
    });
    const { advantages } = computeAdvantages('grpo', wholeTrajectories(rewarded), {
      normAdvByStdInGrpo: false,
    });
    const mask = batch.get('responseMask');
    expect([...advantages].filter((_, t) => mask[t])).toEqual([2, 2, 2, 2, 1]);
  });

  test('advantages count a trajectory once, however many sequences it has', () => {
    const branching = [callOf([1, 2], [3, 4]), callOf([1, 2, 3, 4, 9], [5]), callOf([1, 2, 7], [6, 6])];
    const batch = trajectoryBatch([row(branching), row(), row()]).with({
      uid: ['a', 'a', 'a', 'a'],
      tokenRewards: Float32Array.of(0, 0, 0, 0, 0, 0, 1, 0, 0),
    });
    const whole = wholeTrajectories(batch);
    expect(whole.size).toBe(3);
    expect([...whole.get('responseMask')]).toEqual([...batch.get('responseMask')]);
    const { advantages } = computeAdvantages('grpo', whole, { normAdvByStdInGrpo: false });
    const [high, low] = [Math.fround(2 / 3), Math.fround(-1 / 3)];
    const expected = [high, high, 0, high, 0, high, high, low, low];
    for (const [t, value] of expected.entries()) expect(advantages[t]).toBeCloseTo(value, 6);
  });

  test('with one sequence each, the batch itself is taken', () => {
    const batch = trajectoryBatch([row(), row()]);
    expect(wholeTrajectories(batch)).toBe(batch);
  });

  test('no trajectories are refused', () => {
    expect(() => trajectoryBatch([])).toThrow(/at least one trajectory/);
  });
});
