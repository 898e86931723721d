// vLLM's own protocol of token ids in and out (0.24 and later, with --enable-scale-out and VLLM_SERVER_DEV_MODE=1).
import { z } from 'zod';
import type { CompleteSampling } from '../check_request';
import type { FinishReason, Grammar } from '../request';
import type { ServerClient } from './server_client';
import { ServerLost, ServerRefused } from './server_client';
import {
  type LaunchOptions,
  type ServerInfo,
  type ServerPart,
  type ServerProtocol,
  type ServerRequest,
  seedNumber,
  weightSpans,
  weightVersions,
} from './server_protocol';

/** Log-probs per position. */
const MOST_TOP = 20;

const entry = z.object({ token_id: z.int(), logprob: z.number() });
const part = z.object({
  choices: z
    .array(
      z.object({
        token_ids: z.array(z.int()),
        finish_reason: z.string().nullish(),
        logprobs: z.object({ content: z.array(entry.extend({ top_logprobs: z.array(entry) })) }).nullish(),
        weight_versions: weightVersions,
      }),
    )
    .max(1),
  usage: z
    .object({ prompt_tokens_details: z.object({ cached_tokens: z.int().nullish() }).nullish() })
    .nullish(),
});
const failure = z.object({ error: z.object({ message: z.string(), code: z.int().nullish() }) });
const models = z.object({ data: z.array(z.object({ max_model_len: z.int().nullish() })) });

export class VllmProtocol implements ServerProtocol {
  readonly name = 'vllm';
  readonly reloads: boolean = true;
  readonly pauses = true;

  refusal(s: CompleteSampling): string | null {
    if (s.badWords.length > 0) return 'bad words are texts there, not token ids';
    if (s.stop.length > 0) return 'stop texts are not looked for where token ids come out';
    if (s.promptLogProbs) return 'its log-probs of prompts are not at the sampling temperature';
    if (s.topLogProbs > MOST_TOP) return `it returns at most ${MOST_TOP} log-probs per position`;
    return null;
  }

  takes(): boolean {
    return true;
  }

  async health(server: ServerClient, signal: AbortSignal): Promise<void> {
    await server.json('GET', '/health', null, signal);
  }

  async info(server: ServerClient): Promise<ServerInfo> {
    const { data } = await server.answer(models, 'GET', '/v1/models', null);
    return { maxTokens: data[0]?.max_model_len ?? null };
  }

  async *generate(
    server: ServerClient,
    request: ServerRequest,
    signal: AbortSignal,
  ): AsyncGenerator<ServerPart> {
    const body = {
      request_id: request.id,
      token_ids: request.promptIds,
      sampling_params: samplingParams(request.sampling, request.grammar),
      stream: true,
      stream_options: { include_usage: true },
      output_mode: 'tokens',
      // There lower ones go first, and other numbers than 0 need a server that heeds them.
      priority: 0 - Math.round(request.priority),
      ...(request.cacheSalt === null ? {} : { cache_salt: request.cacheSalt }),
    };
    const path = '/inference/v1/generate';
    for await (const event of server.events(path, body, signal)) {
      const failed = failure.safeParse(event);
      if (failed.success) {
        const { message, code } = failed.data.error;
        throw new ((code ?? 400) >= 500 ? ServerLost : ServerRefused)(`${server.url}: ${message}`);
      }
      const { choices, usage } = server.read(part, path, event);
      const cachedTokens = usage?.prompt_tokens_details?.cached_tokens ?? 0;
      const [choice] = choices;
      // After the last token it tells of counts.
      if (choice === undefined) {
        if (usage) yield { tokens: [], logProbs: [], cachedTokens };
        continue;
      }
      const content = choice.logprobs?.content ?? [];
      const { token_ids: tokens } = choice;
      if (content.length !== tokens.length)
        throw new ServerRefused(
          `${server.url} sent ${tokens.length} tokens with ${content.length} log-probs`,
        );
      const other = content.find(({ token_id: id }, i) => id !== tokens[i]);
      if (other !== undefined)
        throw new ServerRefused(
          `${server.url} sent log-probs of token ${other.token_id}, which is not the one that it sent`,
        );
      yield {
        tokens,
        logProbs: content.map(({ logprob }) => logprob),
        topLogProbs: content.map(({ top_logprobs: top }) =>
          top
            .map(({ token_id: token, logprob: logProb }) => ({ token, logProb }))
            .sort((a, b) => b.logProb - a.logProb)
            .slice(0, request.sampling.topLogProbs),
        ),
        ...(choice.finish_reason ? { finish: finishOf(choice.finish_reason) } : {}),
        ...weightSpans(choice.weight_versions),
      };
    }
  }

  /** Breaking off the stream ends it, too; this reaches requests that have not begun. */
  async abort(server: ServerClient, id: string): Promise<void> {
    await server.json('POST', '/inference/v1/abort_requests', { request_ids: [`generate-tokens-${id}`] });
  }

  async pause(server: ServerClient): Promise<void> {
    await server.json('POST', '/pause?mode=keep', null);
  }

  async load(server: ServerClient, directory: string, version: number): Promise<void> {
    await server.json('POST', '/collective_rpc', {
      method: 'reload_weights',
      kwargs: { weights_path: directory },
    });
    await server.json('POST', '/update_weight_version', { new_version: String(version) });
    // Else what requests in flight hold, and prefixes with it, stays as the old weights made it, and nobody is told.
    await server.json('POST', '/reset_prefix_cache?reset_running_requests=true', null);
  }

  async resume(server: ServerClient): Promise<void> {
    await server.json('POST', '/resume', null);
  }

  /** What is left of requests that nobody waits for ends with it. */
  async release(server: ServerClient): Promise<void> {
    await server.json('POST', '/sleep?level=2', null);
  }

  async wake(server: ServerClient, directory: string, version: number): Promise<void> {
    await server.json('POST', '/wake_up?tags=weights', null);
    await this.load(server, directory, version);
    await server.json('POST', '/wake_up?tags=kv_cache', null);
  }

  launch(options: LaunchOptions) {
    const { model, host, port, dtype, maxTokens, seed, tensorParallel, releases } = options;
    return {
      command: ['python3', '-m', 'vllm.entrypoints.openai.api_server'],
      args: [
        ...['--model', model, '--served-model-name', 'policy', '--host', host, '--port', String(port)],
        ...['--dtype', dtype, '--max-model-len', String(maxTokens), '--seed', String(seed)],
        // Log-probs at the sampling temperature: those of the policy that is trained.
        ...['--logprobs-mode', 'processed_logprobs', '--enable-scale-out', '--generation-config', 'vllm'],
        ...['--scheduling-policy', 'priority', '--enable-prompt-tokens-details'],
        // One more than we ask for, with the sampled token.
        ...['--max-logprobs', String(MOST_TOP + 1)],
        ...(tensorParallel > 1 ? ['--tensor-parallel-size', String(tensorParallel)] : []),
        ...(releases ? ['--enable-sleep-mode'] : []),
        ...limitArguments(options),
      ],
      env: { VLLM_SERVER_DEV_MODE: '1', HF_HUB_OFFLINE: '1', VLLM_NO_USAGE_STATS: '1' },
    };
  }
}

function limitArguments({ maxTokens, maxConcurrency, limits }: LaunchOptions): string[] {
  const { sequences, stepTokens, memoryShare, chunkedPrefill, prefixCaching } = limits;
  // It does not start where a prompt that it may not cut does not fit into a step, or a token of every sequence.
  const tokens = chunkedPrefill ? stepTokens : Math.max(stepTokens, maxTokens);
  return [
    ...['--max-num-batched-tokens', String(tokens)],
    ...['--max-num-seqs', String(Math.min(sequences, maxConcurrency, tokens))],
    ...(memoryShare === null ? [] : ['--gpu-memory-utilization', String(memoryShare)]),
    // Not every model can have both, and it knows which.
    ...(chunkedPrefill ? [] : ['--no-enable-chunked-prefill']),
    ...(prefixCaching ? [] : ['--no-enable-prefix-caching']),
  ];
}

function samplingParams(s: CompleteSampling, grammar: Grammar | null): Record<string, unknown> {
  return {
    n: 1,
    max_tokens: s.maxNewTokens,
    temperature: s.temperature,
    top_k: s.topK,
    top_p: s.topP,
    min_p: s.minP,
    repetition_penalty: s.repetitionPenalty,
    presence_penalty: s.presencePenalty,
    frequency_penalty: s.frequencyPenalty,
    // What ends a response we say, whatever its generation_config.json has.
    ignore_eos: true,
    stop_token_ids: [...s.stopTokenIds],
    // The sampled token comes first of so many, however likely it is.
    logprobs: s.topLogProbs === 0 ? 0 : s.topLogProbs + 1,
    detokenize: false,
    ...(s.seed === undefined ? {} : { seed: seedNumber(s.seed) }),
    ...(s.logitBias.size === 0 ? {} : { logit_bias: Object.fromEntries(s.logitBias) }),
    ...(grammar === null
      ? {}
      : {
          structured_outputs:
            grammar.kind === 'json-schema' ? { json: grammar.schema } : { structural_tag: grammar.tag },
        }),
  };
}

function finishOf(reason: string): FinishReason {
  return reason === 'stop' || reason === 'length' ? reason : 'abort';
}
