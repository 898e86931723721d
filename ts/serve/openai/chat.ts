// POST /v1/chat/completions.
import { randomUUID } from 'node:crypto';
import { holdsAtMost } from '../../base/json_shape';
import type { Dialect, ServerEvent } from '../call/answer';
import { ApiError, apiErrorOf } from '../call/api_error';
import { merge, withEnd } from '../call/merge';
import type { CallDelta, CallRecord, RunningCall } from '../call/model_call';
import type { ServedModel } from '../call/served_model';
import { startChat } from '../call/start_calls';
import { type ChatForm, parseChat } from './chat_request';
import { type TokenLogProbs, tokenLogProbs } from './log_probs';
import { errorEvent, type Usage, usageOf } from './usage';

const MOST_VALUES = 200_000;

export const answerChat: Dialect = async (model, body, signal, hooks = {}) => {
  const { call, form } = parseChat(model, body);
  // A template is shown what messages and tools hold beside what is known here.
  if (!holdsAtMost(body, MOST_VALUES))
    throw new ApiError(400, `expected a body of at most ${MOST_VALUES} values in all its lists and objects`);
  const { promptIds, calls } = await startChat(model, call, signal, hooks);
  const answer = new ChatAnswer(model, form, promptIds, calls, hooks.onRecord);
  return form.stream ? { events: answer.events() } : { body: await answer.whole() };
};

class ChatAnswer {
  private readonly head: { id: string; object: string; created: number; model: string };
  private readonly records: CallRecord[] = [];

  constructor(
    private readonly model: ServedModel,
    private readonly form: ChatForm,
    private readonly promptIds: ArrayLike<number>,
    private readonly calls: readonly RunningCall[],
    private readonly onRecord: ((record: CallRecord, choice: number) => void) | undefined,
  ) {
    this.head = {
      id: `chatcmpl-${randomUUID()}`,
      object: form.stream ? 'chat.completion.chunk' : 'chat.completion',
      created: Math.floor(Date.now() / 1000),
      model: model.name,
    };
  }

  async whole(): Promise<unknown> {
    const entries: TokenLogProbs[][] = this.calls.map(() => []);
    for await (const [choice, delta] of merge(this.calls)) entries[choice]?.push(...this.entries(delta));
    const choices = this.calls.map((_, choice) => {
      const record = this.finish(choice);
      const { text, calls, finish, reasoning } = record;
      const message = {
        role: 'assistant',
        content: text === '' && calls.length > 0 ? null : text,
        refusal: null,
        ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
        ...(calls.length > 0
          ? { tool_calls: calls.map(({ id, ...f }) => ({ id, type: 'function', function: f })) }
          : {}),
      };
      const logprobs = this.form.logProbs === null ? null : { content: entries[choice], refusal: null };
      return { index: choice, message, logprobs, finish_reason: finish, ...this.ids(record) };
    });
    const ids = this.form.tokenIds ? { prompt_token_ids: Array.from(this.promptIds) } : {};
    return { ...this.head, choices, usage: this.usage(), ...ids };
  }

  async *events(): AsyncGenerator<ServerEvent> {
    try {
      for (const choice of this.calls.keys()) yield this.opening(choice);
      for await (const [choice, delta] of merge(this.calls.map(withEnd))) {
        if (delta !== null) yield* this.chunk(choice, delta);
        else yield this.ending(choice);
      }
      if (this.form.includeUsage) yield this.event([], this.usage());
    } catch (error) {
      yield errorEvent(apiErrorOf(error));
    }
    yield { data: '[DONE]' };
  }

  private opening(choice: number): ServerEvent {
    const ids = choice === 0 && this.form.tokenIds ? { prompt_token_ids: Array.from(this.promptIds) } : {};
    return this.event([this.choice(choice, { role: 'assistant', content: '' })], null, ids);
  }

  /** Nothing while the text is not complete, unless tokens were asked for. */
  private *chunk(choice: number, delta: CallDelta): Generator<ServerEvent> {
    const { logProbs, tokenIds } = this.form;
    const asked = (logProbs !== null || tokenIds) && delta.tokens.length > 0;
    const { text, reasoning } = delta;
    if (text === '' && reasoning === '' && delta.calls.length === 0 && !asked) return;
    const content = {
      ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
      ...(text === '' ? {} : { content: text }),
    };
    const calls = delta.calls.length === 0 ? {} : { tool_calls: delta.calls.map(callDelta) };
    const logprobs = logProbs === null ? {} : { logprobs: { content: this.entries(delta), refusal: null } };
    const ids = tokenIds ? { token_ids: delta.tokens } : {};
    yield this.event([{ ...this.choice(choice, { ...content, ...calls }), ...logprobs, ...ids }]);
  }

  private ending(choice: number): ServerEvent {
    const { finish, versions } = this.finish(choice);
    const ids = this.form.tokenIds ? { weight_versions: versions } : {};
    return this.event([{ ...this.choice(choice, {}), finish_reason: finish, ...ids }]);
  }

  private choice(index: number, delta: object) {
    return { index, delta, logprobs: null as unknown, finish_reason: null as string | null };
  }

  private event(choices: object[], usage: Usage | null = null, more: object = {}): ServerEvent {
    const shown = this.form.includeUsage ? { usage } : {};
    return { data: JSON.stringify({ ...this.head, choices, ...shown, ...more }) };
  }

  /** The record of a choice that is complete. */
  private finish(choice: number): CallRecord {
    const { record } = this.calls[choice] as RunningCall;
    this.records.push(record);
    this.onRecord?.(record, choice);
    return record;
  }

  private entries(delta: CallDelta): TokenLogProbs[] {
    return this.form.logProbs === null ? [] : tokenLogProbs(this.model, delta, this.form.logProbs);
  }

  private ids({ tokens, versions }: CallRecord): object {
    return this.form.tokenIds ? { token_ids: Array.from(tokens), weight_versions: versions } : {};
  }

  private usage(): Usage {
    return usageOf([this.promptIds], this.records);
  }
}

function callDelta({ index, id, name, arguments: more }: CallDelta['calls'][number]): object {
  if (name === undefined) return { index, function: { arguments: more } };
  return { index, id, type: 'function', function: { name, arguments: more } };
}
