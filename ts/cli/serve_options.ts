// The command line of `troupe serve`.
import type { Argv } from 'yargs';
import { parseByteSize } from '../base/byte_size';
import { RUN_LIMITS } from '../base/limits';
import { TOOL_FAMILIES } from '../base/tool_formats';
import { UsageError } from './report';
import type { ServeOptions } from './serve';

/** A reader of `troupe serve` that takes nothing for so long is given up. */
const STALL_MS = 120_000;

export const withServe = (y: Argv) =>
  y
    .positional('model', { type: 'string', demandOption: true, describe: 'Hugging Face directory' })
    .option('host', { type: 'string', requiresArg: true, default: '127.0.0.1' })
    .option('port', { type: 'number', requiresArg: true, default: 8000, describe: '0: any that is free' })
    .option('api-key', {
      type: 'string',
      array: true,
      nargs: 1,
      describe:
        'A key that lets in; may be repeated. Default: TROUPE_API_KEY, where it is set; else everybody',
    })
    .option('served-model-name', {
      type: 'string',
      requiresArg: true,
      describe: 'What requests call the model; default: the name of its directory',
    })
    .option('tool-parser', {
      choices: TOOL_FAMILIES,
      describe: 'How the model writes calls of tools; default: as its chat template says',
    })
    .option('chat-template', { type: 'string', requiresArg: true, describe: 'File with another one' })
    .option('workers', {
      type: 'number',
      requiresArg: true,
      describe: 'Worker processes; default: --tensor-parallel-size',
    })
    .option('tensor-parallel-size', {
      type: 'number',
      requiresArg: true,
      default: 1,
      describe: 'Workers that have a part of every matrix each and answer together: a divisor of --workers',
    })
    .option('device', { choices: ['cpu', 'cuda'] as const })
    .option('dtype', { choices: ['float32', 'bfloat16'] as const })
    .option('max-model-len', {
      type: 'number',
      requiresArg: true,
      describe:
        'Most tokens of a prompt and its response; default: as many as the model has positions and the cache has room for',
    })
    .option('gpu-memory-utilization', {
      type: 'number',
      requiresArg: true,
      describe:
        "Share of the GPU's memory for the model and the cache of keys and values, 0.5; on a CPU a quarter of it, of the machine's memory, for the cache",
    })
    .option('latent-cache', {
      type: 'boolean',
      describe:
        'Keep latents in the place of keys and values (--no-latent-cache: those of all heads); default: where the model has latent attention',
    })
    .option('num-speculative-tokens', {
      type: 'number',
      requiresArg: true,
      default: 0,
      describe: 'Guesses per request and step, which make answers faster and no token another one; 0: none',
    })
    .option('speculative-method', {
      choices: ['ngram', 'mtp'] as const,
      default: 'ngram' as const,
      describe:
        'Where guesses come from: ngram: the prompt and what has been said; mtp: the layer of the model that predicts further tokens',
    })
    .option('max-requests', {
      type: 'number',
      requiresArg: true,
      default: 1024,
      describe: 'At a time; more are told to come again (429)',
    })
    .option('max-body', {
      type: 'string',
      requiresArg: true,
      describe: 'Of a request; default: 8MiB, where images are read 32MiB',
    })
    .option('read-images', {
      type: 'boolean',
      describe:
        'With the tower for images (--no-read-images: text alone); default: where the model has one and preprocessor_config.json is beside it',
    })
    .option('grace', {
      type: 'number',
      requiresArg: true,
      default: 30,
      describe: 'Seconds that requests have to end when the server does',
    });

/** @throws UsageError naming the option that is out of range */
export function serveOptions(a: Awaited<ReturnType<typeof withServe>['argv']>): ServeOptions {
  const within = (name: string, value: number, min: number, max: number, integer = true): void => {
    if (value >= min && value <= max && (!integer || Number.isInteger(value))) return;
    const kind = integer ? 'an integer' : 'a number';
    throw new UsageError(`serve: --${name}: expected ${kind} from ${min} to ${max}, got ${value}`);
  };
  within('port', a.port, 0, 65_535);
  const { tensorParallelSize: tensorParallel, workers = tensorParallel } = a;
  within('tensor-parallel-size', tensorParallel, 1, RUN_LIMITS.ranks);
  within('workers', workers, 1, RUN_LIMITS.ranks);
  if (workers % tensorParallel !== 0) {
    throw new UsageError(
      `serve: --tensor-parallel-size: expected a divisor of the ${workers} workers (--workers), got ${tensorParallel}`,
    );
  }
  if (a.maxModelLen !== undefined) within('max-model-len', a.maxModelLen, 2, RUN_LIMITS.tokens);
  const share = a.gpuMemoryUtilization;
  if (share !== undefined && !(share > 0 && share <= 1)) {
    throw new UsageError(
      `serve: --gpu-memory-utilization: expected a number above 0 and at most 1, got ${share}`,
    );
  }
  within('num-speculative-tokens', a.numSpeculativeTokens, 0, RUN_LIMITS.tokens);
  within('max-requests', a.maxRequests, 1, 1_000_000);
  within('grace', a.grace, 0, 86_400, false);
  const maxBodyBytes = a.maxBody === undefined ? null : parseByteSize(a.maxBody);
  if (a.maxBody !== undefined && maxBodyBytes === null)
    throw new UsageError(`serve: --max-body: expected a size such as 8MiB, got ${a.maxBody}`);
  const keys = a.apiKey ?? [process.env['TROUPE_API_KEY'] ?? ''].filter((key) => key !== '');
  if (keys.includes('')) throw new UsageError('serve: --api-key: expected a key that is not empty');
  return {
    model: a.model,
    servedName: a.servedModelName ?? null,
    toolParser: a.toolParser ?? null,
    chatTemplate: a.chatTemplate ?? null,
    device: a.device ?? null,
    dtype: a.dtype ?? null,
    workers,
    tensorParallel,
    maxModelLen: a.maxModelLen ?? null,
    gpuMemoryUtilization: share ?? null,
    latentCache: a.latentCache ?? null,
    numSpeculativeTokens: a.numSpeculativeTokens,
    speculativeMethod: a.speculativeMethod,
    readImages: a.readImages ?? null,
    server: {
      host: a.host,
      port: a.port,
      apiKeys: keys,
      maxBodyBytes,
      maxRequests: a.maxRequests,
      stallMs: STALL_MS,
      graceMs: a.grace * 1000,
    },
  };
}
