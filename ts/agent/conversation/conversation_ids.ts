// Token ids of conversations that grow: earlier turns are the ids that the model saw and made, only what is new is tokenised.
import { createHash } from 'node:crypto';
import { parseShallow } from '../../base/json_shape';
import { toJson } from '../../base/text';
import type { ChatMessage } from '../../data/chat_template';
import { imageParts } from '../../data/image_places';
import type { ImageReading } from '../../data/images/image_tokens';
import type { Tokenizer } from '../../data/tokenizer';
import { type Conversation, conversationIds, conversationText } from '../../serve/call/conversation';
import { withImages } from '../../serve/call/conversation_images';
import { familyOf } from '../../serve/tools/families';

/**
 * append: a turn that is continued stays as it was sampled, whatever the template would write of it now (as verl has it). template: only
 * where the template writes it as it was sampled; else the conversation is tokenised anew, and is what the model will see in use.
 */
export type History = 'append' | 'template';

/** A message of the assistant as the caller was told of it. */
export interface Reply {
  content: string;
  calls: readonly { name: string; arguments: string }[];
  /** What it thought, where it says so beside its words. */
  reasoning: string;
}

interface State {
  /** Prompt and response. */
  ids: Int32Array;
  /** The template's text that the prompt ended with. */
  promptText: string;
  reply: Reply;
  /** Its response with all tags; empty where it has no thoughts of its own. */
  sampled: string;
  /** How many the ids have. */
  images: number;
  /** The last token ended the turn, so the template's end of it is there. */
  ended: string | null;
}

/** Stands where the assistant's words are, to find what the template writes after them. */
const MARK = 'Zq9 the words of the assistant Zq9';

export class ConversationIds {
  private readonly states = new Map<string, State>();

  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly eosTokenIds: readonly number[],
    private readonly history: History,
    /** null: the model reads text alone. */
    private readonly reading: ImageReading | null = null,
  ) {}

  /** The ids of a conversation that ends with the opening of the assistant's turn. @throws TroupeError INVALID_DATA where the template fails */
  ids(conversation: Conversation): Int32Array {
    const { messages } = conversation;
    for (let i = messages.length - 1; i >= 0; i--) {
      if (messages[i]?.role !== 'assistant') continue;
      const state = this.states.get(keyOf(conversation, messages.slice(0, i + 1)));
      if (state === undefined) continue;
      const added = this.added(conversation, i, state);
      if (added === null) continue;
      const ids = this.placed(this.tokenizer.encode(added), conversation, state.images);
      const whole = new Int32Array(state.ids.length + ids.length);
      whole.set(state.ids);
      whole.set(ids, state.ids.length);
      return whole;
    }
    return this.placed(conversationIds(this.tokenizer, conversation), conversation, 0);
  }

  /** With tokens for the images of the conversation but for the `before` first, which the ids do not have. */
  private placed(ids: Int32Array, { images = [] }: Conversation, before: number): Int32Array {
    if (this.reading === null) return ids;
    return withImages(ids, images.slice(before), this.reading, 'messages');
  }

  /** Keeps what the model made of a conversation, for those that go on from it. */
  record(
    conversation: Conversation,
    promptIds: ArrayLike<number>,
    tokens: ArrayLike<number>,
    reply: Reply,
  ): void {
    const ids = new Int32Array(promptIds.length + tokens.length);
    ids.set(Array.from(promptIds));
    ids.set(Array.from(tokens), promptIds.length);
    const last = tokens.length > 0 ? (tokens[tokens.length - 1] as number) : -1;
    const ended = this.eosTokenIds.includes(last)
      ? this.tokenizer.decode([last], { skipSpecialTokens: false })
      : null;
    const message = { role: 'assistant', content: reply.content, tool_calls: asMessageCalls(reply) };
    const key = keyOf(conversation, [...conversation.messages, message]);
    this.states.set(key, {
      ids,
      promptText: this.render(conversation, conversation.messages, true),
      reply,
      images: conversation.images?.length ?? 0,
      sampled: reply.reasoning === '' ? '' : this.tokenizer.decode(tokens, { skipSpecialTokens: false }),
      ended,
    });
  }

  /** The text after the tokens of turn `at`, up to the opening of the next one; null: earlier turns are written otherwise now. */
  private added(conversation: Conversation, at: number, state: State): string | null {
    const { messages, opened } = conversation;
    const upTo = messages.slice(0, at + 1);
    const whole = this.render(conversation, messages, opened);
    const exact = this.history === 'template';
    if (exact && !beginsAlike(state, whole)) return null;
    const plain = this.render(conversation, upTo, false);
    if (exact && !thoughtAlike(state, whole, plain)) return null;
    if (whole.startsWith(plain)) return this.closing(plain, state) + whole.slice(plain.length);
    // The template writes the turn differently when it is not the last one: only what follows its words is compared.
    const marked = (list: readonly ChatMessage[]): readonly ChatMessage[] =>
      list.map((message, i) => (i === at ? { ...message, content: MARK } : message));
    const [before, after] = [
      afterMark(this.render(conversation, marked(upTo), false)),
      afterMark(this.render(conversation, marked(messages), opened)),
    ];
    if (before === null || after === null) return null;
    if (after.startsWith(before)) return this.closing(before, state) + after.slice(before.length);
    // Earlier turns may end otherwise than the last one: the tag that was sampled stays.
    const ends = familyOf(this.tokenizer.toolTemplate)?.channels?.ends;
    if (ends === undefined || before !== ends.last || !after.startsWith(ends.earlier)) return null;
    return state.ended === null ? after : after.slice(ends.earlier.length);
  }

  /** What the template writes after the last token of a turn that was sampled, `text` being all that it writes up to there. */
  private closing(text: string, { ended, reply }: State): string {
    const callsEnd = familyOf(this.tokenizer.toolTemplate)?.callsEnd;
    // Whatever ended it, which may be no part of what the template writes.
    if (callsEnd !== undefined && reply.calls.length > 0 && text.endsWith(callsEnd))
      return ended === callsEnd ? '' : callsEnd;
    if (ended !== null) {
      const end = text.lastIndexOf(ended);
      return end < 0 ? '' : text.slice(end + ended.length);
    }
    // It was cut off: the template's end of the turn is missing as well.
    const ends = this.eosTokenIds.map((id) =>
      text.lastIndexOf(this.tokenizer.decode([id], { skipSpecialTokens: false })),
    );
    const end = Math.max(-1, ...ends);
    return end < 0 ? '' : text.slice(end);
  }

  private render(conversation: Conversation, messages: readonly ChatMessage[], opened: boolean): string {
    return conversationText(this.tokenizer, { ...conversation, messages: [...messages], opened });
  }
}

/** Whether the template writes all up to the words of the turn as they were. */
function beginsAlike({ promptText, reply: { content, reasoning } }: State, whole: string): boolean {
  if (!whole.startsWith(promptText)) return false;
  return reasoning !== '' || whole.slice(promptText.length).startsWith(content.trimEnd());
}

/** Whether what was thought is there beside the words, as one thought, and the turn ends as if it were the last, `plain`. */
function thoughtAlike(
  { promptText, reply: { content, reasoning }, sampled }: State,
  whole: string,
  plain: string,
): boolean {
  if (reasoning === '') return true;
  const written = plain.slice(promptText.length);
  return (
    whole.startsWith(plain) &&
    sampled.includes(reasoning) &&
    written.includes(reasoning) &&
    written.includes(content.trim())
  );
}

function afterMark(text: string): string | null {
  const at = text.lastIndexOf(MARK);
  return at < 0 ? null : text.slice(at + MARK.length);
}

const asMessageCalls = ({ calls }: Reply): unknown[] =>
  calls.map(({ name, arguments: source }) => ({ function: { name, arguments: source } }));

/** Equal for conversations that mean the same: ids of calls, spaces around words and the order of keys do not count. */
function keyOf({ tools, variables, images = [] }: Conversation, messages: readonly ChatMessage[]): string {
  const seen = images.slice(0, imageParts(messages)).map(({ key }) => key);
  const canonical = messages.map(({ role, content, tool_calls: calls }) => ({
    role,
    content:
      typeof content === 'string' ? (role === 'assistant' ? content.trim() : content) : (content ?? ''),
    calls: Array.isArray(calls) ? calls.map(canonicalCall) : [],
  }));
  return createHash('sha256')
    .update(toJson([canonical, tools, variables, seen]))
    .digest('base64');
}

function canonicalCall(call: unknown): unknown {
  const { name, arguments: args } = ((call as { function?: unknown }).function ?? {}) as Record<
    string,
    unknown
  >;
  return [name, sorted(typeof args === 'string' ? parsed(args) : args)];
}

function parsed(source: string): unknown {
  try {
    return parseShallow(source);
  } catch {
    return source;
  }
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return entries.map(([key, one]) => [key, sorted(one)]);
}
