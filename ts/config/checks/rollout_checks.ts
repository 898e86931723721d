import { validateHeaderValue } from 'node:http';
import { resolveCorrection } from '../../algorithms/rollout_correction/options';
// Where responses come from: what no single key of rollout can tell.
import { ConfigError } from '../../errors';
import { correctionOptions } from '../derived/correction';
import { MTP_ROLLOUT } from '../derived/drafts';
import { hasRolloutPool } from '../derived/pools';
import { decodingNote, usesServers } from '../derived/rollout_place';
import type { ConfigNote } from '../reading/resolve';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { rolloutSection } from '../schema/rollout_section';
import { SERVER_NAMES } from '../schema/rollout_server_section';

const ROLLOUT = 'actor_rollout_ref.rollout';

/** @throws ConfigError naming the key */
export function checkDrafts({ actor_rollout_ref: { rollout } }: ResolvedConfig): void {
  const { prompt_lookup_min: least, prompt_lookup_max: most } = rollout.speculative_config;
  const key = `${ROLLOUT}.speculative_config.prompt_lookup_min`;
  if (least > most)
    throw new ConfigError(`${key}: expected at most prompt_lookup_max ${most}, got ${least}`, key);
}

/** @throws ConfigError naming the key */
export function checkRolloutServers(config: ResolvedConfig): void {
  const { name, mode, server, quantization, latent_cache, speculative_config } =
    config.actor_rollout_ref.rollout;
  const refuse = (key: string, message: string): never => {
    throw new ConfigError(`${ROLLOUT}.${key}: ${message}`, `${ROLLOUT}.${key}`);
  };
  if (!usesServers(config)) {
    if (server.addresses !== null)
      refuse('server.addresses', `are given, but mode is ${mode}: set it to server`);
    return;
  }
  if (quantization !== null)
    refuse(
      'quantization',
      `is of our own engine, but mode is ${mode}: give the server its own arguments for it`,
    );
  if (latent_cache)
    refuse('latent_cache', `is of our own engine, but mode is ${mode}: leave it to the server, or set false`);
  if (speculative_config.method !== null)
    refuse(
      'speculative_config.method',
      `is of our own engine, but mode is ${mode}: give the server its own arguments for it`,
    );
  if (!SERVER_NAMES.includes(name))
    refuse('name', `expected one of ${SERVER_NAMES.join(', ')} because mode is ${mode}, got ${name}`);
  if (mode === 'server') {
    if (!server.addresses?.length)
      refuse('server.addresses', 'expected URLs of servers because mode is server');
    if (name === 'tgi')
      refuse(
        'mode',
        'TGI takes no weights while it runs: use managed, which starts it again after each step',
      );
    for (const address of server.addresses ?? []) {
      const url = URL.canParse(address) ? new URL(address) : null;
      if (url === null || !/^https?:$/.test(url.protocol))
        refuse('server.addresses', `expected URLs such as http://host:8000, got "${address}"`);
    }
    for (const key of ['command', 'args'] as const)
      if (server[key] !== null) refuse(`server.${key}`, 'is of use with mode managed only');
  } else if (server.addresses !== null) refuse('server.addresses', 'are of use with mode server only');
  const key = server.api_key_env;
  const value = key === null ? undefined : process.env[key];
  if (key !== null && !value) refuse('server.api_key_env', `the environment variable ${key} is not set`);
  if (value && !isHeader(value)) {
    refuse(
      'server.api_key_env',
      `the environment variable ${key} has characters that no HTTP header may have: does it end with a line break?`,
    );
  }
}

function isHeader(value: string): boolean {
  try {
    validateHeaderValue('authorization', value);
    return true;
  } catch {
    return false;
  }
}

const DRAFTS_OF_SERVERS: ConfigNote = {
  path: MTP_ROLLOUT,
  reason: 'of our own engine: what a managed server takes stands in server.args',
};

/** What a name of verl means here, and what servers do otherwise. */
export function rolloutNotes(config: ResolvedConfig): ConfigNote[] {
  const decoding = decodingNote(config);
  const { enable, enable_rollout } = config.actor_rollout_ref.model.mtp;
  return [
    ...(enable && enable_rollout && usesServers(config) ? [DRAFTS_OF_SERVERS] : []),
    ...(decoding === null ? [] : [decoding]),
    ...sourceNotes(config),
    ...limitNotes(config),
    ...recordingNotes(config),
  ];
}

/** Keys of how much an engine may take. */
const LIMITS = [
  'gpu_memory_utilization',
  'max_num_seqs',
  'max_num_batched_tokens',
  'max_model_len',
  'enable_chunked_prefill',
  'enable_prefix_caching',
] as const;
type Limit = (typeof LIMITS)[number];
const MANAGED: Readonly<Record<string, readonly Limit[]>> = {
  vllm: LIMITS,
  sglang: LIMITS.filter((key) => key !== 'max_num_batched_tokens'),
  tgi: ['gpu_memory_utilization', 'max_model_len'],
};

/** Of servers: what was given and does not reach them. */
function limitNotes(config: ResolvedConfig): ConfigNote[] {
  const { rollout } = config.actor_rollout_ref;
  const { name, mode } = rollout;
  if (!usesServers(config)) return [];
  return LIMITS.filter((key) => rollout[key] !== rolloutSection[key].value).flatMap((key) => {
    const path = `${ROLLOUT}.${key}`;
    // That of prompt and response bounds what is asked of them.
    if (mode === 'server')
      return key === 'max_model_len' ? [] : [{ path, reason: 'the servers were started by somebody else' }];
    if (!MANAGED[name]?.includes(key))
      return [
        { path, reason: `${name} has no argument that means the same: give ${ROLLOUT}.server.args its own` },
      ];
    const { device } = config.trainer;
    if (key !== 'gpu_memory_utilization' || device === 'cuda') return [];
    const own = `on cpu a server keeps its own share of the memory, unless ${ROLLOUT}.server.args say more`;
    return [{ path, reason: device === 'cpu' ? own : `works on a GPU; ${own}` }];
  });
}

function recordingNotes({ skip: { rollout } }: ResolvedConfig): ConfigNote[] {
  if (!rollout.enable || rollout.steps.length > 0) return [];
  const reason = 'skip.rollout.steps names no step: nothing is kept, and nothing taken';
  return [{ path: 'skip.rollout.enable', reason }];
}

function sourceNotes(config: ResolvedConfig): ConfigNote[] {
  const { name, mode, top_k, top_p } = config.actor_rollout_ref.rollout;
  const weighed = weighedNotes(config);
  if (!usesServers(config)) {
    if (name === 'native') return weighed;
    const where = hasRolloutPool(config)
      ? 'our own engine in workers of their own'
      : 'the training workers, not from a separate inference engine,';
    const reason =
      `responses come from ${where} with mode ${mode}; ` +
      'mode server or managed asks servers of vllm, sglang or tgi';
    return [...weighed, { path: `${ROLLOUT}.name`, reason }];
  }
  if (top_k === -1 && top_p === 1) return weighed;
  return [
    ...weighed,
    {
      path: `${ROLLOUT}.${top_k === -1 ? 'top_p' : 'top_k'}`,
      reason: `log-probs of ${name} are those after top-k and top-p, so rollout_probs_diff counts what they leave out`,
    },
  ];
}

/** Responses of weights of 8 bits, or of earlier steps, are weighed where rollout correction does that. */
function weighedNotes(config: ResolvedConfig): ConfigNote[] {
  if (resolveCorrection(correctionOptions(config)).importance?.level !== 'token') return [];
  const { quantization } = config.actor_rollout_ref.rollout;
  const path =
    quantization !== null
      ? `${ROLLOUT}.quantization`
      : config.trainer.v1.trainer_mode !== 'sync'
        ? 'trainer.v1.trainer_mode'
        : null;
  if (path === null) return [];
  const reason =
    'responses come from other weights than those that are trained: rollout correction weighs tokens (algorithm.rollout_correction.preset=disabled: it does not)';
  return [{ path, reason }];
}
