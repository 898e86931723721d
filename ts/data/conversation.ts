import { show } from '../base/text';
import type { PromptImages } from '../batch/prompt_image';
import { TroupeError } from '../errors';
import type { ChatMessage } from './chat_template';
import { isConversation, type TemplateVariables } from './prompt';
import type { Tokenizer } from './tokenizer';

/** One example: the loss is on response tokens whose `lossMask` is 1. */
export interface SftSample {
  /** Of the prompt; of a model that reads images. */
  images?: PromptImages;
  prompt: Int32Array;
  response: Int32Array;
  lossMask: Uint8Array; // [R]
}

/** A stretch of the rendered conversation, with loss or without. */
interface Piece {
  text: string;
  trained: boolean;
}

/**
 * A conversation, with loss on the assistant's turns only: on what the template writes from its opening of the turn (the
 * generation prompt, which is not the assistant's doing) to the end of the turn. Everything before the first of them is the
 * prompt. Pieces are tokenized each for itself, so that the assistant's tokens follow its opening as they do in generation.
 *
 * The pieces are those by which the rendered conversation grows, so no markers in the template are needed; but a template whose
 * earlier text changes when a turn is added (some strip old reasoning) cannot be used, and is refused.
 * @throws TroupeError INVALID_DATA naming row and turn
 */
export function encodeConversation(
  value: unknown,
  tokenizer: Tokenizer,
  where: string,
  variables: TemplateVariables,
): SftSample {
  checkConversation(value, where);
  const [prompt, ...pieces] = conversationPieces(value, tokenizer, where, variables);
  const response: number[] = [];
  const lossMask: number[] = [];
  for (const { text, trained } of pieces) {
    for (const token of tokenizer.encode(text)) {
      response.push(token);
      lossMask.push(trained ? 1 : 0);
    }
  }
  return {
    prompt: tokenizer.encode(prompt?.text ?? ''),
    response: Int32Array.from(response),
    lossMask: Uint8Array.from(lossMask),
  };
}

/** @throws TroupeError INVALID_DATA */
export function checkConversation(value: unknown, where: string): asserts value is ChatMessage[] {
  if (isConversation(value)) return;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected a list of {role, content}, got ${show(value)}`,
  );
}

/** Alternately without loss and with it, the first one being the prompt. */
function conversationPieces(
  messages: readonly ChatMessage[],
  tokenizer: Tokenizer,
  where: string,
  variables: TemplateVariables,
): Piece[] {
  const pieces: Piece[] = [];
  let text = '';
  const grow = (turns: number, opened: boolean, trained: boolean): void => {
    const grown = tokenizer.renderChat(messages.slice(0, turns), opened, variables);
    if (!grown.startsWith(text)) throw notStable(where, turns - 1, text, grown);
    pieces.push({ text: grown.slice(text.length), trained });
    text = grown;
  };
  messages.forEach(({ role }, turn) => {
    if (role !== 'assistant') return;
    if (turn === 0) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${where}: expected an assistant turn after at least one other turn, but it is the first`,
      );
    }
    grow(turn, true, false);
    grow(turn + 1, false, true);
  });
  if (pieces.length === 0) {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: expected an assistant turn after at least one other turn, got the roles ` +
        messages.map(({ role }) => role).join(', '),
    );
  }
  if (messages.at(-1)?.role !== 'assistant') grow(messages.length, false, false);
  return pieces;
}

function notStable(where: string, turn: number, before: string, after: string): TroupeError {
  let at = 0;
  while (at < before.length && before[at] === after[at]) at++;
  const from = Math.max(0, at - 10);
  const excerpt = (text: string): string => show(text.slice(from, from + 40));
  return new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: the chat template rewrites earlier turns when turn ${turn} is added (${excerpt(before)} becomes ` +
      `${excerpt(after)}), so it cannot be told which tokens are the assistant's: give a template that only appends ` +
      '(model.custom_chat_template), or variables that make it so (data.apply_chat_template_kwargs)',
  );
}
