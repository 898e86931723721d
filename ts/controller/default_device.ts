// Where engines run when nobody says, known before a process starts and without loading native code.
import { badOption } from '../base/check_options';
import { locateAddon } from '../native/loader';
import { countGpus } from './gpus';
import type { Launcher, LauncherOptions } from './launcher';
import type { Device, Machine } from './machine';

export type { Device, Machine } from './machine';

export interface DeviceChoice {
  device: Device;
  /** Why, as a phrase. */
  reason: string;
}

/** This machine, seen as its workers will see it; null for a launcher that starts them elsewhere. */
export function machineOf(launcher: LauncherOptions | Launcher | undefined): Machine | null {
  if (launcher !== undefined && 'start' in launcher) return launcher.machine ?? null;
  return {
    gpus: () => countGpus({ ...process.env, ...launcher?.env }),
    addonVariant: () => locateAddon().variant,
  };
}

/** cuda where there is a GPU and the addon is built for it, else cpu. */
export function defaultDevice(machine: Machine | null): DeviceChoice {
  const cpu = (reason: string): DeviceChoice => ({ device: 'cpu', reason });
  if (machine === null) return cpu('what its launcher starts workers on is not known here');
  const gpus = machine.gpus();
  if (gpus === null || gpus === 0) return cpu('no GPU is visible');
  const seen = gpus === 1 ? '1 GPU is visible' : `${gpus} GPUs are visible`;
  if (machine.addonVariant() === 'cpu')
    return cpu(`${seen}, but the native addon is built without CUDA: see npx troupe doctor`);
  return { device: 'cuda', reason: seen };
}

/**
 * The device of workers that are about to be started; `asked` null: the default.
 * @throws TroupeError INVALID_ARGUMENT when there is not one GPU for each
 */
export function deviceOfWorkers(
  where: string,
  asked: Device | null,
  worldSize: number,
  machine: Machine | null,
): Device {
  const device = asked ?? defaultDevice(machine).device;
  const gpus = device === 'cuda' ? (machine?.gpus() ?? null) : null;
  if (gpus === null || worldSize <= gpus) return device;
  throw badOption(
    where,
    `worldSize ${worldSize}: expected one GPU per worker, but ${gpus === 1 ? '1 is' : `${gpus} are`} visible here: ` +
      "use fewer workers, or device 'cpu'",
  );
}
