// What the keys of agents mean together, and what does not go with an agent.
import { estimatorNeeds } from '../../algorithms/advantages';
import { ConfigError } from '../../errors';
import { agentOf } from '../derived/agents';
import type { ResolvedConfig } from '../schema/ppo_schema';

const SECTION = 'actor_rollout_ref.rollout.agent';

/** @throws ConfigError */
export function checkAgent(config: ResolvedConfig): void {
  const kind = agentOf(config);
  const { agent } = config.actor_rollout_ref.rollout;
  if (kind === null) {
    if (agent.tools !== null)
      throw new ConfigError(
        `${SECTION}.tools: tools are given, but no agent that uses them`,
        `${SECTION}.tools`,
      );
    return;
  }
  if (agent.path !== null && agent.command !== null) {
    throw new ConfigError(
      `${SECTION}.command: expected null because ${SECTION}.path names the agent`,
      `${SECTION}.command`,
    );
  }
  if (agent.path !== null && agent.default_agent_loop !== 'single_turn_agent') {
    throw new ConfigError(
      `${SECTION}.default_agent_loop: expected single_turn_agent, the default, because ${SECTION}.path names the agent, got ${agent.default_agent_loop}`,
      `${SECTION}.default_agent_loop`,
    );
  }
  if (kind === 'search_agent' && config.retriever.url === null) {
    throw new ConfigError(
      'retriever.url: expected the URL of a retrieval server because the search agent works on prompts: start one with troupe retriever',
      'retriever.url',
    );
  }
  const { url } = config.retriever;
  if (url !== null && !(URL.canParse(url) && /^https?:$/.test(new URL(url).protocol)))
    throw new ConfigError(
      `retriever.url: expected http(s)://host[:port]/retrieve, got ${url}`,
      'retriever.url',
    );
  const { adv_estimator: estimator, use_pf_ppo } = config.algorithm;
  if (estimator === 'remax' || estimatorNeeds(estimator, 'rewardBaselines')) {
    throw new ConfigError(
      `algorithm.adv_estimator: ${estimator} compares with a greedy answer to the prompt, and trajectories of agents have none: ` +
        'use grpo, rloo, reinforce_plus_plus or gae',
      'algorithm.adv_estimator',
    );
  }
  if (use_pf_ppo) {
    throw new ConfigError(
      'algorithm.use_pf_ppo: expected false with an agent: it resamples sequences, and a trajectory may have become several',
      'algorithm.use_pf_ppo',
    );
  }
}
