// POST /v1/responses.
import { randomUUID } from 'node:crypto';
import type { Dialect, ServerEvent } from '../call/answer';
import { apiErrorOf } from '../call/api_error';
import { type Block, type BlockEvent, BlockWriter } from '../call/blocks';
import { replyMessage } from '../call/conversation';
import type { CallRecord, RunningCall } from '../call/model_call';
import { startChat } from '../call/start_calls';
import { type CalledTool, calledText } from './response_tools';
import { parseResponses, type ResponsesForm } from './responses_request';

export const answerResponses: Dialect = async (model, body, signal, hooks = {}) => {
  const kept = hooks.keptResponses ?? null;
  const { call, form } = parseResponses(model, body, kept);
  const { promptIds, calls } = await startChat(model, call, signal, hooks);
  const answer = new ResponsesAnswer(
    model.name,
    form,
    promptIds.length,
    calls[0] as RunningCall,
    (id, record) => {
      hooks.onRecord?.(record, 0);
      if (form.kept === null) return;
      const { messages, images } = form.kept;
      kept?.set(id, { messages: [...messages, replyMessage(record)], images });
    },
  );
  return form.stream ? { events: answer.events() } : { body: await answer.whole() };
};

/** What begins an item, and the beginning of its id. */
const BEGINS = { thought_begin: 'rs', text_begin: 'msg', call_begin: 'fc' } as const;

type Status = 'completed' | 'incomplete';

const statusOf = ({ finish }: CallRecord): Status =>
  finish === 'length' || finish === 'abort' ? 'incomplete' : 'completed';

const idOf = (kind: string): string => `${kind}_${randomUUID().replaceAll('-', '')}`;

class ResponsesAnswer {
  private readonly id = idOf('resp');
  private readonly created = Math.floor(Date.now() / 1000);
  private readonly writer = new BlockWriter();
  /** Of the blocks. */
  private readonly ids: string[] = [];
  private readonly statuses: string[] = [];
  private sequence = 0;

  constructor(
    private readonly model: string,
    private readonly form: ResponsesForm,
    private readonly promptTokens: number,
    private readonly call: RunningCall,
    private readonly onRecord: (id: string, record: CallRecord) => void,
  ) {}

  async whole(): Promise<unknown> {
    for await (const _ of this.events()) {
      // The events fill the blocks.
    }
    return this.response(this.call.record);
  }

  async *events(): AsyncGenerator<ServerEvent> {
    yield this.event('response.created', { response: this.response(null) });
    yield this.event('response.in_progress', { response: this.response(null) });
    try {
      for await (const delta of this.call)
        for (const one of this.writer.push(delta)) yield* this.shown(one, 'completed');
      const { record } = this.call;
      const status = statusOf(record);
      // What is still open was cut where the response was.
      for (const one of this.writer.end()) yield* this.shown(one, status);
      this.onRecord(this.id, record);
      yield this.event(`response.${status}`, { response: this.response(record) });
    } catch (cause) {
      // Without a stream it is the answer of the request.
      if (!this.form.stream) throw cause;
      const { message, code } = apiErrorOf(cause);
      yield this.event('error', { code, message, param: null });
    }
  }

  /** `status`: of the item that the event ends, if it ends one. */
  private *shown(one: BlockEvent, status: Status): Generator<ServerEvent> {
    const { index: output_index } = one;
    if (one.kind in BEGINS) {
      const custom = one.kind === 'call_begin' && this.toolOf(one.name).type === 'custom';
      this.ids.push(idOf(custom ? 'ctc' : BEGINS[one.kind as keyof typeof BEGINS]));
      this.statuses.push('in_progress');
    }
    const item_id = this.ids[output_index];
    const at = { item_id, output_index };
    const inText = { ...at, content_index: 0 };
    const block = this.writer.blocks[output_index] as Block;
    switch (one.kind) {
      case 'thought_begin':
        yield this.event('response.output_item.added', {
          output_index,
          item: { ...this.item(block, output_index), content: [] },
        });
        break;
      case 'thought':
        yield this.event('response.reasoning_text.delta', { ...inText, delta: one.text });
        break;
      case 'text_begin':
        yield this.event('response.output_item.added', {
          output_index,
          item: { ...this.item(block, output_index), content: [] },
        });
        yield this.event('response.content_part.added', { ...inText, part: textPart('') });
        break;
      case 'text':
        yield this.event('response.output_text.delta', { ...inText, delta: one.text, logprobs: [] });
        break;
      case 'call_begin':
        yield this.event('response.output_item.added', {
          output_index,
          item: this.item(block, output_index),
        });
        break;
      case 'arguments':
        // The text of a custom tool is known when its arguments are complete.
        if (block.kind === 'call' && this.toolOf(block.name).type === 'custom') break;
        yield this.event('response.function_call_arguments.delta', { ...at, delta: one.text });
        break;
      default:
        if (block.kind === 'thought')
          yield this.event('response.reasoning_text.done', { ...inText, text: block.text });
        else if (block.kind === 'text') {
          yield this.event('response.output_text.done', { ...inText, text: block.text, logprobs: [] });
          yield this.event('response.content_part.done', { ...inText, part: textPart(block.text) });
        } else if (this.toolOf(block.name).type === 'custom') {
          const input = calledText(block.arguments);
          yield this.event('response.custom_tool_call_input.delta', { ...at, delta: input });
          yield this.event('response.custom_tool_call_input.done', { ...at, input });
        } else {
          const { name } = this.toolOf(block.name);
          const done = { ...at, name, arguments: block.arguments };
          yield this.event('response.function_call_arguments.done', done);
        }
        this.statuses[output_index] = status;
        yield this.event('response.output_item.done', { output_index, item: this.item(block, output_index) });
    }
  }

  private item(block: Block, index: number): Record<string, unknown> {
    const id = this.ids[index];
    const status = this.statuses[index];
    if (block.kind === 'thought') {
      const content = [{ type: 'reasoning_text', text: block.text }];
      return { type: 'reasoning', id, status, summary: [], content };
    }
    if (block.kind === 'text')
      return { type: 'message', id, status, role: 'assistant', content: [textPart(block.text)] };
    const { type, name, namespace } = this.toolOf(block.name);
    const called = { id, status, call_id: block.id, name, ...(namespace === undefined ? {} : { namespace }) };
    if (type === 'function') return { type: 'function_call', ...called, arguments: block.arguments };
    // What is not there yet is no text.
    const input = status === 'in_progress' ? '' : calledText(block.arguments);
    return { type: 'custom_tool_call', ...called, input };
  }

  /** Also of a name that the model made up. */
  private toolOf(name: string): CalledTool {
    return this.form.called.get(name) ?? { type: 'function', name, namespace: undefined };
  }

  private response(record: CallRecord | null): Record<string, unknown> {
    const status = record === null ? 'in_progress' : statusOf(record);
    return {
      id: this.id,
      object: 'response',
      created_at: this.created,
      status,
      error: null,
      incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
      model: this.model,
      output: record === null ? [] : this.writer.blocks.map((block, i) => this.item(block, i)),
      ...this.form.echo,
      usage: record === null ? null : this.usage(record),
    };
  }

  private usage({ tokens, cachedTokens }: CallRecord): unknown {
    return {
      input_tokens: this.promptTokens,
      input_tokens_details: { cached_tokens: Math.min(cachedTokens, this.promptTokens) },
      output_tokens: tokens.length,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: this.promptTokens + tokens.length,
    };
  }

  private event(type: string, more: object): ServerEvent {
    return { event: type, data: JSON.stringify({ type, sequence_number: this.sequence++, ...more }) };
  }
}

const textPart = (text: string): object => ({ type: 'output_text', text, annotations: [], logprobs: [] });
