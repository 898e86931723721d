// verl's ToolAgentLoop: responses and calls of tools by turns, until there is no call or a limit is reached.
import { parseShallow } from '../../base/json_shape';
import type { ChatMessage } from '../../data/chat_template';
import { type Agent, type AgentContext, type AgentTask, defineAgent } from '../define';

export interface ToolAgentOptions {
  /** Responses; null: no limit. */
  maxAssistantTurns: number | null;
  /** Turns of tools; null: no limit. */
  maxUserTurns: number | null;
  /** Calls of one response that are made, at the same time; the others are left out. */
  maxParallelCalls: number;
  /** Tokens of all responses and what tools told between them. */
  maxResponseLength: number;
}

/** The row's messages; a text is the user's. */
function messagesOf({ prompt }: AgentTask): ChatMessage[] {
  return typeof prompt === 'string' ? [{ role: 'user', content: prompt }] : [...prompt];
}

function argumentsOf(source: string): unknown {
  try {
    return parseShallow(source);
  } catch (error) {
    throw new Error(`the arguments are no JSON that can be read: ${(error as Error).message}`);
  }
}

export function toolAgent(options: ToolAgentOptions): Agent {
  return defineAgent({ name: 'tool_agent', run: (task, context) => play(task, context, options) });
}

async function play(
  task: AgentTask,
  context: AgentContext,
  options: ToolAgentOptions,
): Promise<{ answer: string }> {
  const { chat, tools, note } = context;
  const { maxAssistantTurns, maxUserTurns, maxParallelCalls, maxResponseLength } = options;
  const messages = messagesOf(task);
  let start: number | null = null;
  let answer = '';
  for (let turn = 1; ; turn++) {
    const before = chat.promptIds(messages, { tools: tools.schemas });
    start ??= before.length;
    const used = before.length - start;
    // What tools told does not fit any more: the episode ends without it.
    if (used >= maxResponseLength) break;
    const reply = await chat.complete(messages, {
      tools: tools.schemas,
      maxNewTokens: maxResponseLength - used,
    });
    answer = reply.text;
    note({ role: 'assistant', content: shown(reply.text, reply.calls), seconds: reply.seconds });
    messages.push(reply.message);
    if (used + reply.tokens.length >= maxResponseLength) break;
    if (maxAssistantTurns !== null && turn >= maxAssistantTurns) break;
    if (maxUserTurns !== null && turn - 1 >= maxUserTurns) break;
    if (reply.calls.length === 0) break;
    const calls = reply.calls.slice(0, maxParallelCalls);
    // The template shows the calls that were made; what the model wrote stays as it was sampled.
    const answers = await Promise.all(
      calls.map(({ name, arguments: source }) => tools.attempt(name, () => argumentsOf(source))),
    );
    answers.forEach(({ text, error, seconds }, i) => {
      const { id, name } = calls[i] as (typeof calls)[number];
      messages.push({ role: 'tool', name, tool_call_id: id, content: text });
      note({ role: 'tool', tool: name, content: text, seconds, ...(error === null ? {} : { error }) });
    });
  }
  return { answer };
}

const shown = (text: string, calls: readonly { name: string; arguments: string }[]): string =>
  [text, ...calls.map(({ name, arguments: source }) => `${name}(${source})`)]
    .filter((part) => part !== '')
    .join('\n');
