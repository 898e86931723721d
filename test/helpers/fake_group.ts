import { readFileSync } from 'node:fs';
import path from 'node:path';
import type { WorkerGroupOptions } from '../../ts/controller/group_options';
import type { Launcher, WorkerProcess } from '../../ts/controller/launcher';
import { createLocalLauncher } from '../../ts/controller/local_launcher';
import { WorkerGroup } from '../../ts/controller/worker_group';
import type { NativeEngineOptions } from '../../ts/native/bridge';

/** Options that only the fake binding accepts. */
export const fakeEngineOptions = { seed: 1 } as NativeEngineOptions;

export interface FakeLauncher extends Launcher {
  readonly started: WorkerProcess[];
}

/** Real processes with the fake binding (fake_worker.ts); `fault` is its FAKE_WORKER. */
export function createFakeLauncher(fault: string = ''): FakeLauncher {
  const started: WorkerProcess[] = [];
  const register = path.join(__dirname, 'register_ts.js');
  const program = {
    args: ['-r', register, path.join(__dirname, 'fake_worker.ts')],
    env: { FAKE_WORKER: fault },
  };
  const local = createLocalLauncher({}, program);
  return {
    started,
    start(spec) {
      const worker = local.start(spec);
      started.push(worker);
      return worker;
    },
  };
}

/** A group of fake workers, with their processes. */
export async function launchFakeGroup(
  options: Partial<WorkerGroupOptions> = {},
): Promise<{ group: WorkerGroup; processes: WorkerProcess[] }> {
  const launcher = createFakeLauncher();
  const group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu', launcher, ...options });
  return { group, processes: launcher.started };
}

/** Waits until the process has gone; fails the test when it has not after `ms`. */
export async function waitForExit(pid: number, ms: number): Promise<void> {
  const deadline = Date.now() + ms;
  while (isAlive(pid)) {
    if (Date.now() > deadline) throw new Error(`process ${pid} is still there after ${ms} ms`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

/** A process that has ended but that its parent has not asked for is not. */
function isAlive(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return stat[stat.lastIndexOf(')') + 2] !== 'Z';
  } catch {
    return false;
  }
}
