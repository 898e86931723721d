// Which GPUs of a machine the servers have that are started on it.
import { DECODING_RANKS } from '../config/derived/rollout_place';
import { countGpus } from '../controller/gpus';
import { ConfigError } from '../errors';

export interface ServerGpuNeeds {
  servers: number;
  /** GPUs of each. */
  each: number;
  /** GPUs that training has for itself: the first ones, as its workers are given them. */
  taken: number;
}

/**
 * CUDA_VISIBLE_DEVICES of each of `servers`: the next `each` of those that this process may use, from the first that is not taken again when all have been given
 * (servers then share them, and rollout.gpu_memory_utilization says how). Nulls: it is not known which there are.
 * @throws ConfigError where one server asks for more than there are
 */
export function serverGpus(
  { servers, each, taken }: ServerGpuNeeds,
  env: NodeJS.ProcessEnv = process.env,
  there: number | null = countGpus(env),
): (string | null)[] {
  if (there === null || there === 0) return Array<null>(servers).fill(null);
  const left = Math.max(0, there - taken);
  if (each > left)
    throw new ConfigError(
      `${DECODING_RANKS}: expected at most the ${left} GPUs that a server may use on this machine${taken === 0 ? '' : ` (it has ${there}, and ${taken} are those of training, which goes on meanwhile)`}, got ${each}`,
      DECODING_RANKS,
    );
  const visible = env['CUDA_VISIBLE_DEVICES']?.split(',').map((device) => device.trim());
  const nameOf = (gpu: number): string => visible?.[gpu] ?? String(gpu);
  return Array.from({ length: servers }, (_, server) =>
    Array.from({ length: each }, (_, i) => nameOf(taken + ((server * each + i) % left))).join(','),
  );
}
