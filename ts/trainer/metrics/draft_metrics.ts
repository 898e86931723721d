// How many of the drafts of an engine that decodes speculatively were right.
import type { RolloutEngine, RolloutStats } from '../../rollout/engine';
import type { Metrics } from './metrics';

type DraftCounts = Pick<RolloutStats, 'drafts' | 'draftedTokens' | 'acceptedTokens'>;

/**
 * rollout/spec_accept_rate, accepted tokens by drafted ones, and rollout/spec_accept_length, tokens by steps that checked a draft (1: none was
 * right). Of all responses together, where verl takes means of ratios over responses. They depend on what ran at the same time: unlike the tokens they
 * are not the same in every run.
 */
export class DraftMetrics {
  private last: DraftCounts = { drafts: 0, draftedTokens: 0, acceptedTokens: 0 };

  constructor(private readonly engine: Pick<RolloutEngine, 'stats'>) {}

  /** Since it was last asked; nothing where nothing was drafted. */
  async take(): Promise<Metrics> {
    const now = await this.engine.stats();
    const { last } = this;
    this.last = now;
    const drafts = now.drafts - last.drafts;
    if (drafts === 0) return {};
    const accepted = now.acceptedTokens - last.acceptedTokens;
    return {
      'rollout/spec_accept_rate': accepted / (now.draftedTokens - last.draftedTokens),
      'rollout/spec_accept_length': 1 + accepted / drafts,
    };
  }
}
