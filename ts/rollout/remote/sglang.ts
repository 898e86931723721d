// SGLang's native protocol: /generate with token ids, weights from a directory.
import { z } from 'zod';
import type { CompleteSampling } from '../check_request';
import type { Grammar } from '../request';
import { type ServerClient, ServerRefused } from './server_client';
import {
  endWeights,
  type LaunchOptions,
  type ServerInfo,
  type ServerPart,
  type ServerProtocol,
  type ServerRequest,
  seedNumber,
  weightSpans,
  weightVersions,
} from './server_protocol';

/** [log-prob, token, its text or null] */
const logProb = z.tuple([z.number(), z.int()]).rest(z.unknown());
const answer = z.object({
  output_ids: z.array(z.int()),
  meta_info: z.object({
    finish_reason: z.object({ type: z.string() }).loose(),
    output_token_logprobs: z.array(logProb).nullish(),
    output_top_logprobs: z.array(z.array(logProb).nullable()).nullish(),
    cached_tokens: z.int().nullish(),
    weight_version: z.string().nullish(),
    // Since 2026-08.
    weight_versions: weightVersions,
  }),
});
const done = z.object({ success: z.boolean(), message: z.string().nullish() });
const serverInfo = z.object({ context_length: z.int().nullish(), max_req_input_len: z.int().nullish() });

export class SglangProtocol implements ServerProtocol {
  readonly name = 'sglang';
  readonly reloads = true;
  readonly pauses = true;

  /** `eosTokenIds`: what ends a response there beside the ids of a request, or else neither does. */
  constructor(private readonly eosTokenIds: readonly number[]) {}

  refusal(s: CompleteSampling): string | null {
    if (s.stopTokenIds.length > 0 && !this.eosTokenIds.every((id) => s.stopTokenIds.includes(id)))
      return "it stops at the model's end tokens too where it stops at any";
    if (s.badWords.length > 0) return 'it has no bad words';
    if (s.stop.length > 0) return 'its stop texts are cut off the tokens';
    if (s.promptLogProbs) return 'its log-probs of prompts are not at the sampling temperature';
    return null;
  }

  takes(): boolean {
    return true;
  }

  async health(server: ServerClient, signal: AbortSignal): Promise<void> {
    await server.json('GET', '/health_generate', null, signal);
  }

  async info(server: ServerClient): Promise<ServerInfo> {
    const found = serverInfo.safeParse(await server.json('GET', '/server_info', null));
    return { maxTokens: found.data?.context_length ?? null };
  }

  async *generate(
    server: ServerClient,
    request: ServerRequest,
    signal: AbortSignal,
  ): AsyncGenerator<ServerPart> {
    const { topLogProbs } = request.sampling;
    // In one piece: what its streams hold, all tokens so far or the new ones, depends on how the server was started.
    const body = {
      rid: request.id,
      input_ids: request.promptIds,
      sampling_params: samplingParams(request.sampling, request.grammar),
      return_logprob: true,
      logprob_start_len: -1,
      top_logprobs_num: topLogProbs,
      stream: false,
      ...(request.priority === 0 ? {} : { priority: Math.round(request.priority) }),
      ...(request.cacheSalt === null ? {} : { cache_salt: request.cacheSalt }),
    };
    const { output_ids: tokens, meta_info: meta } = await server.answer(
      answer,
      'POST',
      '/generate',
      body,
      signal,
    );
    const logProbs = meta.output_token_logprobs ?? [];
    if (logProbs.length !== tokens.length || logProbs.some(([, token], i) => token !== tokens[i]))
      throw new ServerRefused(`${server.url} sent ${tokens.length} tokens with ${logProbs.length} log-probs`);
    const { type } = meta.finish_reason;
    yield {
      tokens,
      logProbs: logProbs.map(([value]) => value),
      ...(topLogProbs === 0
        ? {}
        : {
            topLogProbs: (meta.output_top_logprobs ?? []).map((top) =>
              (top ?? []).map(([value, token]) => ({ token, logProb: value })),
            ),
          }),
      finish: type === 'stop' || type === 'length' ? type : 'abort',
      cachedTokens: meta.cached_tokens ?? 0,
      ...endWeights(meta.weight_version),
      ...weightSpans(meta.weight_versions),
    };
  }

  async abort(server: ServerClient, id: string): Promise<void> {
    await server.json('POST', '/abort_request', { rid: id });
  }

  /** Retracted requests give up their keys and values, which are of the old weights, and compute them again. */
  async pause(server: ServerClient): Promise<void> {
    await server.json('POST', '/pause_generation', { mode: 'retract' });
  }

  async load(server: ServerClient, directory: string, version: number): Promise<void> {
    const body = { model_path: directory, flush_cache: true, weight_version: String(version) };
    const result = await server.answer(done, 'POST', '/update_weights_from_disk', body);
    if (!result.success)
      throw new ServerRefused(`${server.url}: ${result.message ?? 'it did not take the weights'}`);
  }

  async resume(server: ServerClient): Promise<void> {
    await server.json('POST', '/continue_generation', {});
  }

  /** It dies of being asked where a request is left: those that nobody waits for must be gone. */
  async release(server: ServerClient): Promise<void> {
    await server.json('POST', '/pause_generation', { mode: 'abort' });
    await server.json('POST', '/release_memory_occupation', { tags: ['kv_cache', 'weights'] });
  }

  async wake(server: ServerClient, directory: string, version: number): Promise<void> {
    await server.json('POST', '/resume_memory_occupation', { tags: ['weights'] });
    await this.load(server, directory, version);
    await server.json('POST', '/resume_memory_occupation', { tags: ['kv_cache'] });
    await this.resume(server);
  }

  launch(options: LaunchOptions) {
    const { model, host, port, dtype, maxTokens, seed, tensorParallel, releases } = options;
    const { sequences, memoryShare, chunkedPrefill, prefixCaching } = options.limits;
    return {
      command: ['python3', '-m', 'sglang.launch_server'],
      args: [
        ...['--model-path', model, '--served-model-name', 'policy', '--host', host, '--port', String(port)],
        ...['--dtype', dtype, '--context-length', String(maxTokens), '--random-seed', String(seed)],
        // Per-request seeds, and samplers that nobody's generation_config.json changes.
        ...['--enable-deterministic-inference', '--sampling-defaults', 'openai'],
        ...(tensorParallel > 1 ? ['--tp-size', String(tensorParallel)] : []),
        ...(releases ? ['--enable-memory-saver'] : []),
        ...['--max-running-requests', String(Math.min(sequences, options.maxConcurrency))],
        ...(memoryShare === null ? [] : ['--mem-fraction-static', String(memoryShare)]),
        ...(chunkedPrefill ? [] : ['--chunked-prefill-size', '-1']),
        ...(prefixCaching ? [] : ['--disable-radix-cache']),
      ],
      env: { HF_HUB_OFFLINE: '1' },
    };
  }
}

function samplingParams(s: CompleteSampling, grammar: Grammar | null): Record<string, unknown> {
  return {
    max_new_tokens: s.maxNewTokens,
    temperature: s.temperature,
    top_k: s.topK === 0 ? -1 : s.topK,
    top_p: s.topP,
    min_p: s.minP,
    repetition_penalty: s.repetitionPenalty,
    presence_penalty: s.presencePenalty,
    frequency_penalty: s.frequencyPenalty,
    // With it no token ends a response, those of the request neither.
    ignore_eos: s.stopTokenIds.length === 0,
    stop_token_ids: [...s.stopTokenIds],
    no_stop_trim: true,
    skip_special_tokens: false,
    ...(s.seed === undefined ? {} : { sampling_seed: seedNumber(s.seed) }),
    ...(s.logitBias.size === 0
      ? {}
      : { logit_bias: Object.fromEntries([...s.logitBias].map(([id, bias]) => [String(id), bias])) }),
    ...(grammar === null
      ? {}
      : grammar.kind === 'json-schema'
        ? { json_schema: grammar.schema }
        : { structural_tag: grammar.tag }),
  };
}
