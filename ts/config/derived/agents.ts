// Who works on the prompts of a run.
import type { ResolvedConfig } from '../schema/ppo_schema';

export type AgentKind = 'module' | 'search_agent' | 'single_turn_agent';

/** Search-R1's switch, which is on where there is something to search with. */
export const searches = ({ do_search, retriever }: ResolvedConfig): boolean =>
  do_search ?? retriever.url !== null;

/** null: nobody; prompts are answered once each. */
export function agentOf(config: ResolvedConfig): AgentKind | null {
  const { agent } = config.actor_rollout_ref.rollout;
  if (agent.path !== null) return 'module';
  if (agent.default_agent_loop === 'search_agent' || searches(config)) return 'search_agent';
  // One response is what happens without an agent, too.
  return null;
}
