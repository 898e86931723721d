import { readdirSync } from 'node:fs';

/**
 * GPUs that this process may use: those of CUDA_VISIBLE_DEVICES, up to the first that is none, else as many as the driver lists.
 * null: not known. No library of CUDA is loaded.
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
    return null;
  }
}
