// Who works on the prompts of a run.
import type { ResolvedConfig } from '../schema/ppo_schema';

export type AgentKind = 'module' | 'command' | 'search_agent' | 'tool_agent';

/** Search-R1's switch, which is on where there is something to search with. */
const searches = ({ do_search, retriever }: ResolvedConfig): boolean => do_search ?? retriever.url !== null;

/** null: nobody; prompts are answered once each. */
export function agentOf(config: ResolvedConfig): AgentKind | null {
  const { agent, multi_turn } = config.actor_rollout_ref.rollout;
  if (agent.path !== null) return 'module';
  if (agent.command !== null) return 'command';
  if (agent.default_agent_loop !== 'single_turn_agent') return agent.default_agent_loop;
  if (searches(config)) return 'search_agent';
  return multi_turn.enable ? 'tool_agent' : null;
}
