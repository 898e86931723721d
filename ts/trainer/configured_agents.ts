// Who works on the prompts of a run: the agent and the tools that its configuration names.
import { type Agent, defineAgent } from '../agent/define';
import { searchAgent } from '../agent/loops/search';
import { singleTurnAgent } from '../agent/loops/single_turn';
import type { AgentTokenizer } from '../agent/model/agent_model';
import type { Tool } from '../agent/tools/tool';
import { reasonOf } from '../base/text';
import { loadUserModule } from '../base/user_module';
import type { ResolvedConfig } from '../config/config';
import { agentOf } from '../config/derived/agents';
import { ConfigError } from '../errors';
import type { AgentRollout } from './agent_rollout';

const SECTION = 'actor_rollout_ref.rollout.agent';

/** Given by a program instead of the configuration. */
export interface GivenAgent {
  agent?: Agent;
  tools?: readonly Tool[];
}

/**
 * null: prompts are answered once each.
 * @throws ConfigError when a module cannot be loaded, or exports something else
 */
export function configuredAgents(
  config: ResolvedConfig,
  tokenizer: AgentTokenizer | undefined,
  given: GivenAgent = {},
): AgentRollout | null {
  const { agent: keys, multi_turn: turns } = config.actor_rollout_ref.rollout;
  const agent = given.agent ? defineAgent(given.agent) : configuredAgent(config);
  if (agent === null) return null;
  if (tokenizer === undefined)
    throw new ConfigError(`${SECTION}: agents need the tokenizer of the data`, SECTION);
  return {
    agent,
    tokenizer,
    tools: given.tools ?? (keys.tools ?? []).flatMap(moduleTools),
    options: {
      toolOptions: {
        timeout: keys.tool_timeout,
        maxResponseLength: turns.max_tool_response_length,
        truncateSide: turns.tool_response_truncate_side,
      },
      timeout: keys.timeout,
      retries: keys.retries,
      concurrency: keys.max_concurrent,
      onError: keys.on_error,
      maxTokens: config.data.max_prompt_length + config.data.max_response_length,
    },
    close: async () => {
      await agent.close?.();
    },
  };
}

function configuredAgent(config: ResolvedConfig): Agent | null {
  const { agent: keys } = config.actor_rollout_ref.rollout;
  switch (agentOf(config)) {
    case 'module':
      return moduleAgent(keys.path as string, keys.name, keys.kwargs);
    case 'search_agent':
      return searchAgent({
        maxTurns: config.max_turns,
        maxStartLength: config.data.max_start_length ?? config.data.max_prompt_length,
        maxResponseLength: config.data.max_response_length,
        maxObsLength: config.data.max_obs_length,
        maxPromptLength: config.data.max_prompt_length,
        stopAtTags: keys.stop_at_tags,
        retriever: { url: config.retriever.url as string, topk: config.retriever.topk },
      });
    case 'single_turn_agent':
      return singleTurnAgent();
    default:
      return null;
  }
}

function moduleAgent(path: string, name: string, kwargs: Readonly<Record<string, unknown>>): Agent {
  const exported = loadUserModule(path, `${SECTION}.path`);
  let found = exported[name];
  // What a compiler makes of `export default` may lie one level deeper.
  if (name === 'default' && typeof found === 'object' && found !== null && 'default' in found)
    found = found.default;
  try {
    if (typeof found === 'function') found = (found as (kwargs: unknown) => unknown)(kwargs);
    return defineAgent(found as Agent);
  } catch (cause) {
    throw new ConfigError(
      `${SECTION}.path: expected ${path} to export defineAgent({ run ... }) as ${name}: ${reasonOf(cause)}`,
      `${SECTION}.path`,
    );
  }
}

const isTool = (value: unknown): value is Tool =>
  typeof value === 'object' &&
  value !== null &&
  typeof (value as Partial<Tool>).call === 'function' &&
  typeof (value as Partial<Tool>).name === 'string' &&
  typeof (value as Partial<Tool>).parameters === 'object';

/** Every tool that a module exports, by itself or in a list. */
function moduleTools(path: string): Tool[] {
  const exported = loadUserModule(path, `${SECTION}.tools`);
  const found = [...new Set(Object.values(exported).flat())].filter(isTool);
  if (found.length > 0) return found;
  throw new ConfigError(
    `${SECTION}.tools: ${path} exports no tool: expected some made by defineTool`,
    `${SECTION}.tools`,
  );
}
