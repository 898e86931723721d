// What our rollout needs of an inference server, whichever it is.
import { z } from 'zod';
import type { CompleteSampling } from '../check_request';
import type { FinishReason, Grammar, RolloutResult, TopLogProb } from '../request';
import type { ServerClient } from './server_client';

/** A request as one server gets it; tokens that another one made before it was lost are at the end of the prompt. */
export interface ServerRequest {
  id: string;
  promptIds: number[];
  sampling: CompleteSampling;
  grammar: Grammar | null;
  cacheSalt: string | null;
  /** Higher ones first, as everywhere; servers know whole numbers. */
  priority: number;
}

export type WeightSpan = RolloutResult['versions'][number];

export interface ServerPart {
  tokens: number[];
  logProbs: number[];
  topLogProbs?: TopLogProb[][];
  /** With the last part that has tokens; others may tell of counts. */
  finish?: FinishReason;
  cachedTokens?: number;
  /** Of tokens [start, end) of the response, where the server says so. */
  versions?: WeightSpan[];
  /** What the server calls weights that made some of it and that are none of ours, which are numbers. */
  otherWeights?: string;
  /** Of the weights that it ended with, where the server says no more. */
  endVersion?: number;
}

export interface ServerInfo {
  /** Prompt and response together; null: it does not say. */
  maxTokens: number | null;
}

/** The model that a managed server is started with. */
export interface LaunchOptions {
  model: string;
  host: string;
  port: number;
  dtype: 'float32' | 'bfloat16';
  maxTokens: number;
  /** Requests at a time. */
  maxConcurrency: number;
  seed: number;
  /** GPUs that have a part of every matrix each. */
  tensorParallel: number;
  /** It will be asked to give its memory back. */
  releases: boolean;
  limits: EngineLimits;
}

/** How much of the device its engine may take; of what it has no argument for, it decides. */
export interface EngineLimits {
  /** Requests that are computed at the same time; more than `maxConcurrency` never are. */
  sequences: number;
  /** Tokens of one step, prompts and decodes together. */
  stepTokens: number;
  /** Of each GPU's memory; null: there is none. */
  memoryShare: number | null;
  chunkedPrefill: boolean;
  prefixCaching: boolean;
}

/** One kind of server. All but `launch`, `refusal` and `takes` throw ServerLost and ServerRefused. */
export interface ServerProtocol {
  readonly name: 'vllm' | 'sglang' | 'tgi';
  /** Whether weights are exchanged while it runs; else it must be started again with the new ones. */
  readonly reloads: boolean;
  /** Whether requests in flight can stand still. */
  readonly pauses: boolean;
  /** Why it cannot serve a request; null: it can. */
  refusal(sampling: CompleteSampling, grammar: Grammar | null): string | null;
  /** Whether there is a prompt of these ids, as there is of those of a text. */
  takes(promptIds: readonly number[]): boolean;
  /** Resolves once it answers requests. */
  health(server: ServerClient, signal: AbortSignal): Promise<void>;
  info(server: ServerClient): Promise<ServerInfo>;
  generate(server: ServerClient, request: ServerRequest, signal: AbortSignal): AsyncIterable<ServerPart>;
  /** Ends a request that nobody waits for. */
  abort(server: ServerClient, id: string): Promise<void>;
  /** Requests in flight stand still, also where they do so already, until they go on with the weights of then. */
  pause(server: ServerClient): Promise<void>;
  /** Takes the weights of a directory, in a pause. */
  load(server: ServerClient, directory: string, version: number): Promise<void>;
  resume(server: ServerClient): Promise<void>;
  /** Gives the memory of weights, keys and values back; nothing is asked of it. */
  release(server: ServerClient): Promise<void>;
  /** Takes its memory again, and the weights of a directory. */
  wake(server: ServerClient, directory: string, version: number): Promise<void>;
  /** The command line of a server of our own. */
  launch(options: LaunchOptions): { command: string[]; args: string[]; env: Record<string, string> };
}

/** JSON numbers are exact up to 2^53. */
export const seedNumber = (seed: bigint): number => Number(seed & ((1n << 53n) - 1n));

/** In the answers of vLLM and SGLang. */
export const weightVersions = z
  .array(z.object({ version: z.string(), start: z.int(), end: z.int() }))
  .nullish();

/** Versions are texts there: those that we have set are numbers. null: others. */
const weightVersion = (text: string): number | null => (/^\d+$/.test(text) ? Number(text) : null);

/** Of the weights that a response ended with. */
export function endWeights(text: string | null | undefined): Pick<ServerPart, 'endVersion' | 'otherWeights'> {
  if (text === null || text === undefined) return {};
  const endVersion = weightVersion(text);
  return endVersion === null ? { otherWeights: text } : { endVersion };
}

/** The spans of a server, where all of their versions are ours. */
export function weightSpans(
  spans: z.infer<typeof weightVersions>,
): Pick<ServerPart, 'versions' | 'otherWeights'> {
  const versions: WeightSpan[] = [];
  for (const { version: text, start, end } of spans ?? []) {
    const version = weightVersion(text);
    if (version === null) return { otherWeights: text };
    versions.push({ version, start, end });
  }
  return versions.length > 0 ? { versions } : {};
}
