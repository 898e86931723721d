// The policy as a partner in conversations: messages and tools in, text and calls of tools out, token ids kept.
import type { PromptImage } from '../../batch/prompt_image';
import type { ChatMessage } from '../../data/chat_template';
import { imageParts } from '../../data/image_places';
import type { CallHooks } from '../../serve/call/answer';
import type { ChatCall } from '../../serve/call/chat_call';
import { type Conversation, replyMessage } from '../../serve/call/conversation';
import { type ConversationImage, readImageOf } from '../../serve/call/conversation_images';
import type { KeptResponses } from '../../serve/call/kept_responses';
import type { CallRecord } from '../../serve/call/model_call';
import type { ServedModel } from '../../serve/call/served_model';
import { startChat } from '../../serve/call/start_calls';
import { type FunctionTool, responseReading } from '../../serve/tools/families';
import type { AgentModel } from '../model/agent_model';
import { ConversationIds, type History } from './conversation_ids';

export interface ChatOptions {
  tools?: readonly FunctionTool[];
  /** Further variables of the chat template. */
  variables?: Readonly<Record<string, unknown>>;
  maxNewTokens?: number;
  stop?: readonly string[];
  /** Of the parts `{type: 'image'}` of the messages, in order. Default: those of the task, where there are such parts. */
  images?: readonly PromptImage[];
}

export interface ChatReply {
  /** To be appended to the messages. */
  message: ChatMessage;
  text: string;
  calls: CallRecord['calls'];
  finish: CallRecord['finish'];
  promptIds: Int32Array;
  tokens: Int32Array;
  seconds: number;
}

export class AgentChat {
  private readonly ids: ConversationIds;
  private readonly keptResponses: KeptResponses = new Map();
  /** Of the task. */
  private readonly images: readonly ConversationImage[];

  constructor(
    private readonly served: ServedModel,
    private readonly model: AgentModel,
    private readonly signal: AbortSignal,
    history: History,
    private readonly variables: Readonly<Record<string, unknown>> = {},
    images: readonly PromptImage[] = [],
  ) {
    this.images = images.map(readImageOf);
    const reading = served.images?.reading ?? null;
    this.ids = new ConversationIds(served.tokenizer, served.eosTokenIds, history, reading);
  }

  /** The ids that the next turn of these messages is made from. */
  promptIds(messages: readonly ChatMessage[], options: ChatOptions = {}): Int32Array {
    return this.ids.ids(this.conversation(messages, options));
  }

  /** The next turn. @throws ContextFull, EngineFailed, the signal's reason */
  async complete(messages: readonly ChatMessage[], options: ChatOptions = {}): Promise<ChatReply> {
    const { tools, maxNewTokens, stop = [] } = options;
    const { family } = this.served;
    const call: ChatCall = {
      fields: { prompt: 'messages', maxTokens: 'maxNewTokens', grammar: 'tools' },
      conversation: this.conversation(messages, options),
      maxTokens: null,
      atMost: maxNewTokens ?? null,
      sampling: {},
      n: 1,
      seed: undefined,
      stop: [...stop],
      grammar: null,
      tools: responseReading(family, tools ?? null),
      specialTokens: false,
      priority: undefined,
      cacheSalt: undefined,
    };
    const started = performance.now();
    const record = await this.model.guarded(async () => {
      const hooks = this.hooks();
      const { calls } = await startChat(this.served, call, this.signal, hooks);
      const running = calls[0] as (typeof calls)[number];
      for await (const _ of running) this.signal.throwIfAborted();
      hooks.onRecord?.(running.record, 0);
      return running.record;
    });
    this.signal.throwIfAborted();
    const { text, calls, finish } = record;
    return {
      message: replyMessage(record),
      text,
      calls,
      finish,
      promptIds: Int32Array.from(record.promptIds),
      tokens: record.tokens,
      seconds: (performance.now() - started) / 1000,
    };
  }

  /** What ties a call in a dialect of HTTP to the trajectory. */
  hooks(): CallHooks {
    let conversation: Conversation | null = null;
    let promptIds: ArrayLike<number> = [];
    const started = performance.now();
    return {
      keptResponses: this.keptResponses,
      promptIds: (asked) => {
        conversation = { ...asked, variables: { ...this.variables, ...asked.variables } };
        promptIds = this.ids.ids(conversation);
        return promptIds;
      },
      // How tokens are drawn is the run's matter; to be told which others were likely changes nothing of it.
      sampling: ({ maxNewTokens, topLogProbs }) => ({
        ...this.model.sampling(promptIds, maxNewTokens),
        ...(topLogProbs === undefined ? {} : { topLogProbs }),
      }),
      request: this.model.request,
      onRecord: (record) => {
        this.model.record(record, (performance.now() - started) / 1000);
        const { text: content, calls, reasoning, tokens, promptIds: seen } = record;
        if (conversation !== null) this.ids.record(conversation, seen, tokens, { content, calls, reasoning });
      },
    };
  }

  private conversation(
    messages: readonly ChatMessage[],
    { tools, variables = {}, images }: ChatOptions,
  ): Conversation {
    const own = images?.map(readImageOf) ?? (imageParts(messages) === 0 ? [] : this.images);
    return {
      messages: [...messages],
      images: own,
      tools: tools?.length ? tools : null,
      variables: { ...this.variables, ...variables },
      opened: true,
    };
  }
}
