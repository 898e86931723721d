import type { RolloutStats } from '../../../ts/rollout/engine';
import { DraftMetrics } from '../../../ts/trainer/metrics/draft_metrics';

test('how many drafts were right since it was last asked; nothing where nothing was drafted', async () => {
  const stats = { drafts: 0, draftedTokens: 0, acceptedTokens: 0 } as RolloutStats;
  const metrics = new DraftMetrics({ stats: async () => ({ ...stats }) });
  expect(await metrics.take()).toEqual({});
  Object.assign(stats, { drafts: 10, draftedTokens: 40, acceptedTokens: 12 });
  expect(await metrics.take()).toEqual({
    'rollout/spec_accept_rate': 0.3,
    'rollout/spec_accept_length': 2.2,
  });
  Object.assign(stats, { drafts: 12, draftedTokens: 44, acceptedTokens: 12 });
  expect(await metrics.take()).toEqual({ 'rollout/spec_accept_rate': 0, 'rollout/spec_accept_length': 1 });
  expect(await metrics.take()).toEqual({});
});
