// Text Generation Inference: text in, token ids out. It takes no new weights while it runs.
import { z } from 'zod';
import { TroupeError } from '../../errors';
import type { CompleteSampling } from '../check_request';
import type { FinishReason, Grammar } from '../request';
import { type ServerClient, ServerLost, ServerRefused } from './server_client';
import {
  type LaunchOptions,
  type ServerInfo,
  type ServerPart,
  type ServerProtocol,
  type ServerRequest,
  seedNumber,
} from './server_protocol';

/** The tokenizer that the server has as well. */
export interface TextTokenizer {
  encode(text: string, addSpecialTokens?: boolean): Int32Array;
  decode(tokens: ArrayLike<number>, options: { skipSpecialTokens: boolean }): string;
}

const token = z.object({ id: z.int(), logprob: z.number().nullable() });
const event = z.object({
  token: token.nullish(),
  details: z.object({ finish_reason: z.enum(['length', 'eos_token', 'stop_sequence']) }).nullish(),
  error: z.string().nullish(),
  error_type: z.string().nullish(),
});
const info = z.object({ max_total_tokens: z.int().nullish() });

export class TgiProtocol implements ServerProtocol {
  readonly name = 'tgi';
  readonly reloads = false;
  readonly pauses = false;

  /** `eosTokenIds`: what ends a response there, which no request can change. */
  constructor(
    private readonly tokenizer: TextTokenizer,
    private readonly eosTokenIds: readonly number[],
  ) {}

  refusal(s: CompleteSampling, grammar: Grammar | null): string | null {
    const same =
      s.stopTokenIds.length === this.eosTokenIds.length &&
      s.stopTokenIds.every((id) => this.eosTokenIds.includes(id));
    if (!same)
      return (
        `its end tokens (${this.eosTokenIds.join(', ') || 'none'}) end a response there, and no others: name what shall end ` +
        'responses in the list eos_token_id of generation_config.json'
      );
    if (s.stop.length > 0 || s.badWords.length > 0) return 'stop texts and bad words are texts there';
    if (s.logitBias.size > 0 || s.minP > 0 || s.presencePenalty !== 0)
      return 'it has no min-p, no presence penalty and no logit bias';
    if (s.frequencyPenalty !== 0)
      return 'its frequency penalty is of the share of a token in prompt and response';
    if (s.topLogProbs > 0 || s.promptLogProbs) return 'only log-probs of sampled tokens are taken from it';
    if (grammar?.kind === 'structural-tag') return 'it has JSON schemas, but no structural tags';
    if (grammar !== null && !hasProperties(grammar.schema))
      return 'its JSON schemas are objects with properties';
    return null;
  }

  takes(promptIds: readonly number[]): boolean {
    return this.textOf(promptIds) !== null;
  }

  async health(server: ServerClient, signal: AbortSignal): Promise<void> {
    await server.json('GET', '/health', null, signal);
  }

  async info(server: ServerClient): Promise<ServerInfo> {
    const { max_total_tokens: maxTokens } = await server.answer(info, 'GET', '/info', null);
    return { maxTokens: maxTokens ?? null };
  }

  async *generate(
    server: ServerClient,
    request: ServerRequest,
    signal: AbortSignal,
  ): AsyncGenerator<ServerPart> {
    const inputs = this.textOf(request.promptIds);
    if (inputs === null) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        '[rollout] TGI takes text, and no text gives these prompt ids: use an engine that takes token ids (vllm, sglang, native)',
      );
    }
    const body = {
      inputs,
      parameters: parameters(request.sampling, request.grammar),
    };
    const path = '/generate_stream';
    for await (const given of server.events(path, body, signal)) {
      const { token: made, details, error, error_type: type } = server.read(event, path, given);
      // Of its other errors (overloaded, a shard that failed) the request is not the reason.
      if (error) throw new (type === 'validation' ? ServerRefused : ServerLost)(`${server.url}: ${error}`);
      if (!made) continue;
      if (made.logprob === null) throw new ServerRefused(`${server.url} sent a token without its log-prob`);
      yield {
        tokens: [made.id],
        logProbs: [made.logprob],
        ...(details ? { finish: finishOf(details.finish_reason) } : {}),
      };
    }
  }

  /** It notices when nobody reads. */
  async abort(): Promise<void> {}

  async load(server: ServerClient): Promise<void> {
    throw new ServerRefused(`${server.url}: TGI takes no weights while it runs`);
  }

  async pause(server: ServerClient): Promise<void> {
    throw new ServerRefused(`${server.url}: TGI cannot pause`);
  }

  async resume(): Promise<void> {}

  async release(server: ServerClient): Promise<void> {
    throw new ServerRefused(`${server.url}: TGI keeps its memory`);
  }

  wake(server: ServerClient): Promise<void> {
    return this.load(server);
  }

  launch(options: LaunchOptions) {
    const { model, host, port, dtype, maxTokens, maxConcurrency, tensorParallel } = options;
    const { memoryShare } = options.limits;
    return {
      command: ['text-generation-launcher'],
      args: [
        ...['--model-id', model, '--hostname', host, '--port', String(port), '--dtype', dtype],
        ...['--max-total-tokens', String(maxTokens), '--max-input-tokens', String(maxTokens - 1)],
        // Of more than this (128 by default) it refuses some.
        ...['--max-concurrent-requests', String(maxConcurrency)],
        ...(tensorParallel > 1 ? ['--num-shard', String(tensorParallel)] : []),
        ...(memoryShare === null ? [] : ['--cuda-memory-fraction', String(memoryShare)]),
      ],
      env: { HF_HUB_OFFLINE: '1' },
    };
  }

  /** The text that its tokenizer, which adds its own special tokens, turns into these ids again; null: none does. */
  private textOf(ids: readonly number[]): string | null {
    for (const start of [0, 1]) {
      const text = this.tokenizer.decode(ids.slice(start), { skipSpecialTokens: false });
      const again = this.tokenizer.encode(text, true);
      if (again.length === ids.length && again.every((id, i) => id === ids[i])) return text;
    }
    return null;
  }
}

function parameters(s: CompleteSampling, grammar: Grammar | null): Record<string, unknown> {
  const greedy = s.temperature === 0;
  return {
    max_new_tokens: s.maxNewTokens,
    do_sample: !greedy,
    ...(greedy || s.temperature === 1 ? {} : { temperature: s.temperature }),
    // With any of these it samples, whatever do_sample says. Of top_p it takes numbers below 1 only.
    ...(greedy || s.topK === 0 ? {} : { top_k: s.topK }),
    ...(greedy || s.topP === 1 ? {} : { top_p: s.topP }),
    ...(s.repetitionPenalty === 1 ? {} : { repetition_penalty: s.repetitionPenalty }),
    ...(s.seed === undefined ? {} : { seed: seedNumber(s.seed) }),
    ...(grammar?.kind === 'json-schema'
      ? { grammar: { type: 'json', value: JSON.parse(grammar.schema) } }
      : {}),
    details: true,
  };
}

const finishOf = (reason: 'length' | 'eos_token' | 'stop_sequence'): FinishReason =>
  reason === 'length' ? 'length' : 'stop';

function hasProperties(schema: string): boolean {
  try {
    const { properties } = JSON.parse(schema);
    return properties !== undefined;
  } catch {
    return false;
  }
}
