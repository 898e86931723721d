// POST /v1/messages, and what one would have as its prompt.
import { randomUUID } from 'node:crypto';
import { parseShallow } from '../../base/json_shape';
import type { Dialect, ServerEvent } from '../call/answer';
import { type ApiError, apiErrorOf } from '../call/api_error';
import { type Block, type BlockEvent, BlockWriter } from '../call/blocks';
import type { CallRecord, RunningCall } from '../call/model_call';
import { chatPrompt, startChat } from '../call/start_calls';
import { parseCounted, parseMessages } from './messages_request';

export const answerMessages: Dialect = async (model, body, signal, hooks = {}) => {
  const { call, stream } = parseMessages(model, body);
  const { promptIds, calls } = await startChat(model, call, signal, hooks);
  const answer = new MessagesAnswer(model.name, promptIds.length, calls[0] as RunningCall, hooks.onRecord);
  return stream ? { events: answer.events() } : { body: await answer.whole() };
};

export const countTokens: Dialect = async (model, body, signal, hooks = {}) => {
  const { promptIds } = await chatPrompt(model, parseCounted(model, body), signal, hooks);
  return { body: { input_tokens: promptIds.length } };
};

/** By the names of the Anthropic API. */
export function messagesError({ status, message }: ApiError): unknown {
  const types: Readonly<Record<number, string>> = {
    401: 'authentication_error',
    404: 'not_found_error',
    413: 'request_too_large',
    429: 'rate_limit_error',
    503: 'overloaded_error',
  };
  const type = types[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error');
  return { type: 'error', error: { type, message } };
}

class MessagesAnswer {
  private readonly id = `msg_${randomUUID().replaceAll('-', '')}`;
  private readonly writer = new BlockWriter();

  constructor(
    private readonly model: string,
    private readonly promptTokens: number,
    private readonly call: RunningCall,
    private readonly onRecord: ((record: CallRecord, choice: number) => void) | undefined,
  ) {}

  async whole(): Promise<unknown> {
    for await (const delta of this.call) for (const _ of this.writer.push(delta));
    return this.message(this.finish());
  }

  async *events(): AsyncGenerator<ServerEvent> {
    yield event('message_start', { message: this.message(null) });
    try {
      for await (const delta of this.call) for (const one of this.writer.push(delta)) yield this.shown(one);
      for (const one of this.writer.end()) yield this.shown(one);
      const record = this.finish();
      yield event('message_delta', {
        delta: ending(record),
        usage: this.usage(record),
      });
      yield event('message_stop', {});
    } catch (cause) {
      yield event('error', messagesError(apiErrorOf(cause)) as object);
    }
  }

  private finish(): CallRecord {
    const { record } = this.call;
    this.onRecord?.(record, 0);
    return record;
  }

  private shown(one: BlockEvent): ServerEvent {
    const { index } = one;
    switch (one.kind) {
      case 'thought_begin':
        return event('content_block_start', { index, content_block: thinkingBlock('') });
      case 'thought':
        return event('content_block_delta', {
          index,
          delta: { type: 'thinking_delta', thinking: one.text },
        });
      case 'text_begin':
        return event('content_block_start', { index, content_block: { type: 'text', text: '' } });
      case 'text':
        return event('content_block_delta', { index, delta: { type: 'text_delta', text: one.text } });
      case 'call_begin': {
        const { id, name } = one;
        return event('content_block_start', {
          index,
          content_block: { type: 'tool_use', id, name, input: {} },
        });
      }
      case 'arguments':
        return event('content_block_delta', {
          index,
          delta: { type: 'input_json_delta', partial_json: one.text },
        });
      default:
        return event('content_block_stop', { index });
    }
  }

  private message(record: CallRecord | null): Record<string, unknown> {
    return {
      id: this.id,
      type: 'message',
      role: 'assistant',
      model: this.model,
      content: record === null ? [] : this.writer.blocks.map(contentBlock),
      ...(record === null ? { stop_reason: null, stop_sequence: null } : ending(record)),
      usage: this.usage(record),
    };
  }

  /** The API's input tokens are those of the prompt that were not cached. */
  private usage(record: CallRecord | null): object {
    const cached = Math.min(record?.cachedTokens ?? 0, this.promptTokens);
    return {
      input_tokens: this.promptTokens - cached,
      output_tokens: record?.tokens.length ?? 0,
      cache_creation_input_tokens: 0,
      cache_read_input_tokens: cached,
    };
  }
}

/** The API signs them; here nobody checks. */
const thinkingBlock = (thinking: string): object => ({ type: 'thinking', thinking, signature: '' });

function contentBlock(block: Block): object {
  if (block.kind === 'thought') return thinkingBlock(block.text);
  if (block.kind === 'text') return { type: 'text', text: block.text };
  const { id, name, arguments: source } = block;
  return { type: 'tool_use', id, name, input: objectOf(source) };
}

/** The API promises an object; what the model wrote may be none. */
function objectOf(source: string): unknown {
  try {
    const value = parseShallow(source);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value;
  } catch {
    // It is passed on as what it is.
  }
  return { arguments: source };
}

/** What ended a message. */
function ending({ finish, calls, stopText }: CallRecord): {
  stop_reason: string;
  stop_sequence: string | null;
} {
  const by = (stop_reason: string) => ({ stop_reason, stop_sequence: null });
  if (calls.length > 0 && finish !== 'length') return by('tool_use');
  if (finish === 'length' || finish === 'abort') return by('max_tokens');
  return stopText === null ? by('end_turn') : { stop_reason: 'stop_sequence', stop_sequence: stopText };
}

const event = (type: string, more: object): ServerEvent => ({
  event: type,
  data: JSON.stringify({ type, ...more }),
});
