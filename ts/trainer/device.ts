import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { type Device, defaultDevice, machineOf } from '../controller/default_device';
import type { Launcher, LauncherOptions } from '../controller/launcher';

/** Where the engines of a run work, decided before any worker starts; `say` is told what `auto` is here, and why. */
export function chosenDevice(
  { trainer }: ResolvedConfig | ResolvedSftConfig,
  launcher: LauncherOptions | Launcher | undefined,
  say: (line: string) => void,
): Device {
  if (trainer.device === 'cpu' || trainer.device === 'cuda') return trainer.device;
  const { device, reason } = defaultDevice(machineOf(launcher));
  say(`device: ${device}, because ${reason} (trainer.device=auto)`);
  return device;
}
