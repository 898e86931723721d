import { show } from '../base/text';
import { TroupeError } from '../errors';
import type { ChatMessage } from './chat_template';
import { atRow } from './row';
import type { Tokenizer } from './tokenizer';

/** Variables for the chat template besides the messages. */
export type TemplateVariables = Readonly<Record<string, unknown>>;

/**
 * A string is tokenized with the tokenizer's own special tokens (a leading <s>, ...); a conversation through the chat
 * template, which writes them itself.
 * @throws TroupeError INVALID_DATA
 */
export function encodePrompt(
  prompt: unknown,
  tokenizer: Tokenizer,
  where: string,
  variables: TemplateVariables = {},
): Int32Array {
  const text = promptText(prompt, tokenizer, where, variables);
  const tokens = atRow(where, () => tokenizer.encode(text, typeof prompt === 'string'));
  if (tokens.length === 0) {
    const why = text === '' ? 'is empty' : `has no tokens: the tokenizer knows nothing of ${show(text)}`;
    throw new TroupeError('INVALID_DATA', `[data] ${where}: the prompt ${why}`);
  }
  return tokens;
}

/** What is tokenized of a prompt. @throws TroupeError INVALID_DATA */
export function promptText(
  prompt: unknown,
  tokenizer: Tokenizer,
  where: string,
  variables: TemplateVariables,
): string {
  checkPrompt(prompt, where);
  return typeof prompt === 'string'
    ? prompt
    : atRow(where, () => tokenizer.renderChat(prompt, true, variables));
}

/** @throws TroupeError INVALID_DATA */
export function checkPrompt(value: unknown, where: string): asserts value is string | ChatMessage[] {
  if (typeof value === 'string' || isConversation(value)) return;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected a prompt string or a list of {role, content}, got ${show(value)}`,
  );
}

/** At least one message, each with a role and a content: text, or parts of it. Calls of tools may stand for the content. */
export function isConversation(value: unknown): value is ChatMessage[] {
  return Array.isArray(value) && value.length > 0 && value.every(isMessage);
}

function isMessage(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  const { role, content, tool_calls: calls } = value as Record<string, unknown>;
  if (typeof role !== 'string') return false;
  if (content === undefined || content === null) return Array.isArray(calls) && calls.length > 0;
  return typeof content === 'string' || (Array.isArray(content) && content.every(isPart));
}

/** An object such as {type, text}; templates that take texts among them are not unheard of. */
const isPart = (value: unknown): boolean =>
  typeof value === 'string' || (typeof value === 'object' && value !== null && !Array.isArray(value));
