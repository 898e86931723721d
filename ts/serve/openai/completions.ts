// POST /v1/completions: text or token ids in, their continuation out.
import { randomUUID } from 'node:crypto';
import { setImmediate as turn } from 'node:timers/promises';
import { z } from 'zod';
import type { Dialect, ServerEvent } from '../call/answer';
import { apiErrorOf } from '../call/api_error';
import { defined } from '../call/defined';
import { merge, withEnd } from '../call/merge';
import type { CallDelta, CallRecord, RunningCall } from '../call/model_call';
import type { ServedModel } from '../call/served_model';
import { startCalls } from '../call/start_calls';
import { textIds } from '../call/text_ids';
import { checkName } from './chat_request';
import { checkIds, harmlessFields, parseBody, samplingFields, samplingOf, streamFields } from './fields';
import { finite, tokenText, topOf } from './log_probs';
import { prompts } from './prompts';
import { errorEvent, type Usage, usageOf } from './usage';

const MOST_TOP = 20;
const DEFAULT_TOKENS = 16;

const fields = {
  ...harmlessFields,
  ...samplingFields,
  ...streamFields,
  prompt: prompts,
  max_tokens: z.int().min(1).nullish(),
  logprobs: z.int().min(0).max(MOST_TOP).nullish(),
  echo: z.literal(false, { error: 'expected false: the prompt is not given back' }).nullish(),
  best_of: z.literal(1, { error: 'expected 1: every choice is returned (n)' }).nullish(),
  suffix: z.literal('', { error: 'expected none: the model writes on, it does not fill in' }).nullish(),
};
const schema = z.strictObject(fields);

interface Form {
  stream: boolean;
  includeUsage: boolean;
  /** Most likely tokens per position; null: no log-probs. */
  logProbs: number | null;
  tokenIds: boolean;
}

interface Running {
  promptIds: ArrayLike<number>;
  call: RunningCall;
  choice: number;
}

export const answerCompletions: Dialect = async (model, body, signal, hooks = {}) => {
  const r = parseBody(schema, body, Object.keys(fields));
  checkName(model, r.model);
  for (const prompt of r.prompt) if (typeof prompt !== 'string') checkIds('prompt', prompt, model);
  const idsOfPrompts: ArrayLike<number>[] = [];
  for (const prompt of r.prompt) {
    idsOfPrompts.push(
      typeof prompt === 'string' ? await textIds(model, prompt, 'prompt', signal, true) : prompt,
    );
    // There may be many: other requests get their turn.
    await turn();
  }
  const logProbs = r.logprobs ?? null;
  const running: Running[] = [];
  try {
    for (const promptIds of idsOfPrompts) {
      const { calls } = await startCalls(
        model,
        {
          fields: { prompt: 'prompt', maxTokens: 'max_tokens', grammar: 'prompt' },
          promptIds,
          maxTokens: r.max_tokens ?? null,
          atMost: r.max_tokens ?? DEFAULT_TOKENS,
          sampling: { ...samplingOf(r, model), ...(logProbs ? { topLogProbs: logProbs } : {}) },
          n: r.n ?? 1,
          seed: r.seed,
          stop: r.stop ?? [],
          grammar: null,
          tools: null,
          specialTokens: r.skip_special_tokens === false,
          priority: r.priority,
          cacheSalt: r.cache_salt,
        },
        signal,
        hooks,
      );
      for (const call of calls) running.push({ promptIds, call, choice: running.length });
      // There may be tens of thousands of choices: other requests get their turn.
      await turn();
    }
  } catch (error) {
    for (const { call } of running) call.abort();
    throw error;
  }
  const form = defined({
    stream: r.stream ?? false,
    includeUsage: r.stream_options?.include_usage ?? false,
    logProbs,
    tokenIds: r.return_token_ids ?? false,
  });
  const answer = new CompletionAnswer(model, form, idsOfPrompts, running, hooks.onRecord);
  return form.stream ? { events: answer.events() } : { body: await answer.whole() };
};

class CompletionAnswer {
  private readonly head: { id: string; object: string; created: number; model: string };
  private readonly records: CallRecord[] = [];
  /** Choices whose stream has begun. */
  private readonly begun = new Set<number>();

  constructor(
    private readonly model: ServedModel,
    private readonly form: Form,
    private readonly prompts: readonly ArrayLike<number>[],
    private readonly running: readonly Running[],
    private readonly onRecord: ((record: CallRecord, choice: number) => void) | undefined,
  ) {
    this.head = {
      id: `cmpl-${randomUUID()}`,
      object: 'text_completion',
      created: Math.floor(Date.now() / 1000),
      model: model.name,
    };
  }

  async whole(): Promise<unknown> {
    const parts: LogProbs[][] = this.running.map(() => []);
    for await (const [choice, delta] of merge(this.running.map(({ call }) => call))) {
      if (this.form.logProbs !== null) parts[choice]?.push(this.logProbs(delta));
    }
    const choices = this.running.map((one) => {
      const record = this.finish(one);
      return {
        index: one.choice,
        text: record.text,
        logprobs: this.form.logProbs === null ? null : joined(parts[one.choice] as LogProbs[]),
        finish_reason: record.finish,
        ...this.promptIds(one),
        ...(this.form.tokenIds ? { token_ids: Array.from(record.tokens) } : {}),
        ...this.versions(record),
      };
    });
    return { ...this.head, choices, usage: this.usage() };
  }

  async *events(): AsyncGenerator<ServerEvent> {
    try {
      for await (const [index, delta] of merge(this.running.map(({ call }) => withEnd(call)))) {
        const one = this.running[index] as Running;
        const event = delta === null ? this.end(one) : this.chunk(one, delta);
        if (event !== null) yield event;
      }
      if (this.form.includeUsage) yield this.event([], this.usage());
    } catch (error) {
      yield errorEvent(apiErrorOf(error));
    }
    yield { data: '[DONE]' };
  }

  private end(one: Running): ServerEvent {
    const record = this.finish(one);
    return this.event([
      {
        index: one.choice,
        text: '',
        logprobs: null,
        finish_reason: record.finish,
        ...this.promptIds(one),
        ...this.versions(record),
      },
    ]);
  }

  private chunk(one: Running, delta: CallDelta): ServerEvent | null {
    const { logProbs, tokenIds } = this.form;
    const asked = (logProbs !== null || tokenIds) && delta.tokens.length > 0;
    if (delta.text === '' && !asked) return null;
    return this.event([
      {
        index: one.choice,
        text: delta.text,
        logprobs: logProbs === null ? null : this.logProbs(delta),
        finish_reason: null,
        ...this.promptIds(one),
        ...(tokenIds ? { token_ids: delta.tokens } : {}),
      },
    ]);
  }

  private event(choices: object[], usage: Usage | null = null): ServerEvent {
    const shown = this.form.includeUsage ? { usage } : {};
    return { data: JSON.stringify({ ...this.head, choices, ...shown }) };
  }

  private finish({ call, choice }: Running): CallRecord {
    const { record } = call;
    this.records.push(record);
    this.onRecord?.(record, choice);
    return record;
  }

  private logProbs(delta: CallDelta): LogProbs {
    const count = this.form.logProbs ?? 0;
    return {
      tokens: delta.tokens.map((token) => tokenText(this.model, token)),
      token_logprobs: delta.logProbs.map(finite),
      top_logprobs: count === 0 ? null : delta.tokens.map((_, i) => this.topLogProbs(delta, i, count)),
      text_offset: delta.offsets,
    };
  }

  /** The token that was drawn is one of them, or one more. */
  private topLogProbs(delta: CallDelta, i: number, count: number): Record<string, number> {
    const drawn = { token: delta.tokens[i] as number, logProb: delta.logProbs[i] as number };
    const entries = [...topOf(delta, i, count), drawn].map(
      ({ token, logProb }) => [tokenText(this.model, token), finite(logProb)] as const,
    );
    return Object.fromEntries(entries);
  }

  /** In the first event of a choice, where they were asked for. */
  private promptIds({ choice, promptIds }: Running): object {
    if (!this.form.tokenIds || this.begun.has(choice)) return {};
    this.begun.add(choice);
    return { prompt_token_ids: Array.from(promptIds) };
  }

  private versions({ versions }: CallRecord): object {
    return this.form.tokenIds ? { weight_versions: versions } : {};
  }

  private usage(): Usage {
    return usageOf(this.prompts, this.records);
  }
}

interface LogProbs {
  tokens: string[];
  token_logprobs: number[];
  top_logprobs: Record<string, number>[] | null;
  text_offset: number[];
}

const joined = (parts: readonly LogProbs[]): LogProbs => ({
  tokens: parts.flatMap((part) => part.tokens),
  token_logprobs: parts.flatMap((part) => part.token_logprobs),
  top_logprobs: parts.some((part) => part.top_logprobs === null)
    ? null
    : parts.flatMap((p) => p.top_logprobs ?? []),
  text_offset: parts.flatMap((part) => part.text_offset),
});
