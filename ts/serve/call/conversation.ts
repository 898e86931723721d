// A conversation as chat templates want it, from whichever dialect, and its token ids.
import { parseShallow } from '../../base/json_shape';
import type { ChatMessage } from '../../data/chat_template';
import type { Tokenizer } from '../../data/tokenizer';
import { type FunctionTool, familyOf } from '../tools/families';
import type { ConversationImage } from './conversation_images';

export interface Conversation {
  messages: ChatMessage[];
  /** What the template is shown; null: none. */
  tools: readonly FunctionTool[] | null;
  /** More variables of the template. */
  variables: Readonly<Record<string, unknown>>;
  /** Whether the template opens the assistant's turn. */
  opened: boolean;
  /** Of the messages, in order; default: there are none. */
  images?: readonly ConversationImage[];
}

/** As the template writes it. */
export function conversationText(tokenizer: Tokenizer, conversation: Conversation): string {
  const { messages, tools, variables, opened } = conversation;
  const family = familyOf(tokenizer.toolTemplate);
  const concatenates = CONCATENATES.test(tokenizer.toolTemplate ?? '');
  const change = family?.iterates ? withObject : concatenates ? withText : null;
  const whole = change === null ? messages : messages.map((message) => withCalls(message, change));
  const shown = family?.channels
    ? whole.map(withOneThought)
    : family?.callsEnd === undefined
      ? whole
      : whole.map(callsAlone);
  return tokenizer.renderChat(shown, opened, { ...variables, tools });
}

/** The template of gpt-oss writes thoughts or words before a call, and refuses both. */
function withOneThought(message: ChatMessage): ChatMessage {
  const { tool_calls: calls, content } = message;
  const thought = ['reasoning_content', 'thinking', 'reasoning'].some((key) => Boolean(message[key]));
  return Array.isArray(calls) && calls.length > 0 && thought && content
    ? { ...message, content: '' }
    : message;
}

/** Templates that end a message with its calls write words of it behind what the tools told, and end the turn there. */
function callsAlone(message: ChatMessage): ChatMessage {
  const { tool_calls: calls, content } = message;
  return Array.isArray(calls) && calls.length > 0 && content ? { ...message, content: '' } : message;
}

function withCalls(message: ChatMessage, change: (call: unknown) => unknown): ChatMessage {
  const { tool_calls: calls } = message;
  return Array.isArray(calls) ? { ...message, tool_calls: calls.map(change) } : message;
}

/** Templates of DeepSeek add arguments to other texts as they are. */
const CONCATENATES =
  /(?:\['arguments'\]|\["arguments"\]|\.arguments)\s*\+|\+\s*\w[\w.'"[\]]{0,100}(?:\['arguments'\]|\["arguments"\]|\.arguments\b)(?!\s*[|.[(])/;

function withText(call: unknown): unknown {
  const made = (call as { function?: { arguments?: unknown } } | null)?.function;
  if (typeof made?.arguments !== 'object' || made.arguments === null) return call;
  return { ...(call as object), function: { ...made, arguments: spacedJson(made.arguments) } };
}

/** As Python writes it, and models. */
function spacedJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(spacedJson).join(', ')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const entries = Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${spacedJson(item)}`);
  return `{${entries.join(', ')}}`;
}

/** For templates that can write nothing else: arguments that are no object, as of a call that was cut off, are left out. */
function withObject(call: unknown): unknown {
  const made = (call as { function?: { arguments?: unknown } } | null)?.function;
  if (typeof made?.arguments !== 'string') return call;
  const value = parsed(made.arguments);
  return { ...(call as object), function: { ...made, arguments: typeof value === 'string' ? {} : value } };
}

/** The template's text without the tokenizer's own special tokens, which it writes itself. */
export const conversationIds = (tokenizer: Tokenizer, conversation: Conversation): Int32Array =>
  tokenizer.encode(conversationText(tokenizer, conversation));

/** Calls of tools as templates want them: arguments as an object where they are one. */
export function templateCalls(
  calls: readonly { id: string; function: { name: string; arguments: string } }[],
): unknown[] {
  return calls.map(({ id, function: { name, arguments: source } }) => ({
    id,
    type: 'function',
    function: { name, arguments: parsed(source) },
  }));
}

/**
 * What instructs the model before anything is said, as one message: clients send it in several, and many templates take one, as the
 * first, alone.
 */
export function joinedOpening(messages: readonly ChatMessage[]): ChatMessage[] {
  const end = messages.findIndex(({ role, content }) => role !== 'system' || typeof content !== 'string');
  const opening = messages.slice(0, end < 0 ? messages.length : end);
  if (opening.length < 2) return [...messages];
  const content = opening.map((message) => message.content).join('\n\n');
  return [{ role: 'system', content }, ...messages.slice(opening.length)];
}

/** A response as the message that goes on the conversation. */
export function replyMessage({
  text,
  calls,
  reasoning = '',
}: {
  text: string;
  reasoning?: string;
  calls: readonly { id: string; name: string; arguments: string }[];
}): ChatMessage {
  const toolCalls = calls.map(({ id, name, arguments: source }) => ({
    id,
    function: { name, arguments: source },
  }));
  return {
    role: 'assistant',
    content: text,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length > 0 ? { tool_calls: templateCalls(toolCalls) } : {}),
  };
}

function parsed(source: string): unknown {
  if (source.trim() === '') return {};
  try {
    const value = parseShallow(source);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value;
  } catch {
    // The model wrote something else: that is what it said.
  }
  return source;
}
