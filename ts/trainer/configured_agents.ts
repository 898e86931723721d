// Who works on the prompts of a run: the agent and the tools that its configuration names.
import pLimit from 'p-limit';
import { type Agent, defineAgent } from '../agent/define';
import { SessionServer } from '../agent/endpoint/session_server';
import { commandAgent } from '../agent/loops/command';
import { searchAgent } from '../agent/loops/search';
import { toolAgent } from '../agent/loops/tool_agent';
import type { ChatParts } from '../agent/run_agent';
import { reasonOf } from '../base/text';
import { thrownAt } from '../base/thrown_at';
import { loadUserModule } from '../base/user_module';
import { loadModelDirectory } from '../checkpoint/model_dir';
import type { ResolvedConfig } from '../config/config';
import { agentOf } from '../config/derived/agents';
import { usesServers } from '../config/derived/rollout_place';
import { sequenceBounds } from '../config/derived/sequence_bounds';
import { endTokenIds } from '../data/end_tokens';
import { ImageThreads } from '../data/images/image_threads';
import { TextThreads } from '../data/text_threads';
import { TokenBytes } from '../data/token_bytes';
import type { Tokenizer } from '../data/tokenizer';
import { ConfigError } from '../errors';
import type { Grammars } from '../serve/call/grammars';
import { GrammarThreads, grammarVocabulary } from '../serve/grammar/grammar_threads';
import { LazyGrammars } from '../serve/grammar/lazy_grammars';
import { familyOf, familyOfFormat } from '../serve/tools/families';
import type { AgentRollout } from './agent_rollout';
import { codeRunner } from './code_runner';
import { configuredTools, type GivenAgent, type RunTools } from './configured_tools';
import { imageReading } from './image_reading';

const SECTION = 'actor_rollout_ref.rollout.agent';

/**
 * null: prompts are answered once each. `ready`: its tools, where they are there already; they are closed with it. Else `python`
 * among them has a sandbox of its own.
 * @throws ConfigError when a module cannot be loaded, or exports something else
 */
export async function configuredAgents(
  config: ResolvedConfig,
  tokenizer: Tokenizer | undefined,
  given: GivenAgent = {},
  ready: RunTools | null = null,
): Promise<AgentRollout | null> {
  const { agent: keys, multi_turn: turns } = config.actor_rollout_ref.rollout;
  const agent = given.agent ? defineAgent(given.agent) : configuredAgent(config);
  if (agent === null) return null;
  if (tokenizer === undefined)
    throw new ConfigError(`${SECTION}: agents need the tokenizer of the data`, SECTION);
  const { tools, ...own } = ready ?? ((await configuredTools(config, codeRunner(config), given)) as RunTools);
  const sessions = new SessionServer();
  // Images are in conversations alone.
  const chat = tokenizer.hasChatTemplate ? { ...chatParts(config, tokenizer), sessions } : null;
  // What it throws at once must hold up no more of the others than what it rejects with.
  const closeAgent = async (): Promise<void> => await agent.close?.();
  const close = async (): Promise<void> => {
    const { grammars, images, texts } = chat?.served ?? {};
    await Promise.allSettled([
      closeAgent(),
      sessions.close(),
      images?.close(),
      texts?.close(),
      ...(grammars === 'engine' || !grammars ? [] : [grammars.close()]),
      own.close(),
    ]);
  };
  return {
    agent,
    tokenizer,
    chat,
    tools,
    imageToken: chat?.served.images?.reading.imageToken,
    options: {
      toolOptions: {
        timeout: keys.tool_timeout,
        maxResponseLength: turns.max_tool_response_length,
        truncateSide: turns.tool_response_truncate_side,
      },
      timeout: keys.timeout,
      retries: keys.retries,
      // Of all that goes on at a time: a validation beside prompts that are worked on ahead, too.
      concurrency: pLimit(keys.max_concurrent),
      onError: keys.on_error,
      maxTokens: sequenceBounds(config).sequence,
      // Servers refuse priorities unless they were started to take them, and do not agree which ones come first.
      behindFirst: !usesServers(config),
    },
    close,
  };
}

function configuredAgent(config: ResolvedConfig): Agent | null {
  const { agent: keys, multi_turn: turns } = config.actor_rollout_ref.rollout;
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
    case 'command':
      return commandAgent(keys.command as readonly string[]);
    case 'tool_agent':
      return toolAgent({
        maxAssistantTurns: turns.max_assistant_turns,
        maxUserTurns: turns.max_user_turns,
        maxParallelCalls: turns.max_parallel_calls,
        maxResponseLength: config.data.max_response_length,
      });
    default:
      return null;
  }
}

function moduleAgent(path: string, name: string, kwargs: Readonly<Record<string, unknown>>): Agent {
  const exported = loadUserModule(
    path,
    `${SECTION}.path`,
    `a program as an agent is for ${SECTION}.command, such as python ${path}`,
  );
  let found = exported[name];
  // What a compiler makes of `export default` may lie one level deeper.
  if (name === 'default' && typeof found === 'object' && found !== null && 'default' in found)
    found = found.default;
  try {
    if (typeof found === 'function') found = (found as (kwargs: unknown) => unknown)(kwargs);
    return defineAgent(found as Agent);
  } catch (cause) {
    throw new ConfigError(
      `${SECTION}.path: expected ${path} to export defineAgent({ run ... }) as ${name}: ${reasonOf(cause)}${thrownAt(cause, __filename)}`,
      `${SECTION}.path`,
    );
  }
}

function chatParts(config: ResolvedConfig, tokenizer: Tokenizer): Omit<ChatParts, 'sessions'> {
  const { model, rollout } = config.actor_rollout_ref;
  const { format } = rollout.multi_turn;
  const { config: modelConfig, eosTokenIds: modelEnds } = loadModelDirectory(model.path, 'lm');
  const eosTokenIds = endTokenIds(modelEnds, tokenizer);
  const written = familyOf(tokenizer.toolTemplate);
  const family = format === 'auto' ? written : familyOfFormat(format);
  if (written !== null && family !== null && written.name !== family.name) {
    const key = 'actor_rollout_ref.rollout.multi_turn.format';
    throw new ConfigError(
      `${key}: expected ${written.name} (or auto), which the chat template of ${tokenizer.directory} writes, got ${format}`,
      key,
    );
  }
  const reading = imageReading(model, config.data.mm_processor_kwargs);
  const bytes = new TokenBytes(tokenizer);
  const own = (): Grammars =>
    new GrammarThreads(
      grammarVocabulary(tokenizer, bytes, {
        vocabSize: modelConfig.vocabSize,
        stopTokenIds: eosTokenIds,
        tags: family?.tags ?? [],
      }),
    );
  return {
    served: {
      name: 'policy',
      created: 0,
      vocabSize: modelConfig.vocabSize,
      eosTokenIds,
      tokenizer,
      bytes,
      texts: new TextThreads(tokenizer),
      family,
      // Inference servers hold responses to grammars by themselves.
      grammars: usesServers(config) ? 'engine' : new LazyGrammars(own),
      images: reading === null ? null : new ImageThreads(reading),
    },
    history: rollout.agent.history,
    variables: config.data.apply_chat_template_kwargs,
  };
}
