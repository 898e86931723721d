import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';

/**
 * GPUs that this process may use: those of CUDA_VISIBLE_DEVICES, up to the first that is none, else as many as the driver lists, or
 * (where it has no list, as under WSL) nvidia-smi. null: not known. No library of CUDA is loaded.
 */
export function countGpus(
  env: NodeJS.ProcessEnv = process.env,
  listed = '/proc/driver/nvidia/gpus',
): number | null {
  const visible = env['CUDA_VISIBLE_DEVICES'];
  if (visible !== undefined) {
    const devices = visible.split(',').map((device) => device.trim());
    const end = devices.findIndex((device) => device === '' || device.startsWith('-'));
    return end < 0 ? devices.length : end;
  }
  try {
    return readdirSync(listed).length || null;
  } catch {
    return askDriver(env);
  }
}

/** One line "GPU 0: ..." each; a GPU that is cut into instances has further, indented lines. */
function askDriver(env: NodeJS.ProcessEnv): number | null {
  const run = spawnSync('nvidia-smi', ['-L'], { env, encoding: 'utf8', timeout: 10_000 });
  if (run.status !== 0) return null;
  return run.stdout.split('\n').filter((line) => /^GPU \d+:/.test(line)).length || null;
}
