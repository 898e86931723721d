import type { BatchShare } from '../../../ts/rollout/native/live_batch';
import { RankLoop } from '../../../ts/rollout/native/rank_loop';
import type { BatchSubmission, RolloutCommands, RolloutTurn } from '../../../ts/worker/kept_responses';

test('a share of more requests than a call has arguments is given up', () => {
  const count = 200_000;
  const turns: RolloutCommands[] = [];
  const loop = new RankLoop({
    turn: (commands) => {
      turns.push(commands);
      return new Promise<RolloutTurn>(() => undefined);
    },
    ready: () => true,
    hears: () => true,
    lost: () => undefined,
    left: () => undefined,
    rests: () => undefined,
  });
  const share = {
    left: count,
    has: () => true,
    openIds: () => Array.from({ length: count }, (_, i) => i),
    submission: () => ({}) as BatchSubmission,
  } as unknown as BatchShare;
  loop.submitShare(share, 0);
  loop.abortAll();
  expect(turns.flatMap(({ abort }) => abort)).toHaveLength(count);
});
