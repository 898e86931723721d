// Inference servers that responses come from, with rollout.mode server or managed.
import { count, field, int, orNull, seconds, str, strings } from './field';

/** Names of rollout engines: our own, the servers that there is a protocol for, and those of verl that run inside training processes. */
export const ROLLOUT_NAMES = ['native', 'vllm', 'sglang', 'tgi', 'hf', 'trtllm'] as const;
export const SERVER_NAMES: readonly string[] = ['vllm', 'sglang', 'tgi'];

export const rolloutServerSection = {
  addresses: field(orNull(strings), null, 'URLs of the servers, with mode server.'),
  count: field(count('ranks'), 1, 'Servers to start, with mode managed.'),
  command: field(
    orNull(strings),
    null,
    'Program and first arguments of a managed server; null: python3 -m vllm.entrypoints.openai.api_server, and the like.',
  ),
  args: field(
    orNull(strings),
    null,
    'More arguments of a managed server, after those that the run gives it.',
  ),
  api_key_env: field(orNull(str), null, 'Environment variable that holds the key of the servers.'),
  max_concurrency: field(int(1, 65_536), 256, 'Requests at a time, of each server.'),
  recovery_timeout: field(
    seconds,
    600,
    'Seconds that a server may take to start, or to come back: then it is given up; and to say whether it is well: then it counts as lost.',
  ),
  weights_dir: field(
    orNull(str),
    null,
    'Directory through which weights go to the servers, which see it under the same path; null: rollout_weights in the run directory.',
  ),
};
