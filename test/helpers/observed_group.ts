import type { WorkerGroupOptions } from '../../ts/controller/group_options';
import type { Launcher, WorkerProcess } from '../../ts/controller/launcher';
import { createLocalLauncher } from '../../ts/controller/local_launcher';
import { WorkerGroup } from '../../ts/controller/worker_group';

/** A group and the processes of its workers. */
export async function observedGroup(
  options: Omit<WorkerGroupOptions, 'launcher'>,
): Promise<{ group: WorkerGroup; processes: WorkerProcess[] }> {
  const processes: WorkerProcess[] = [];
  const local = createLocalLauncher();
  const launcher: Launcher = {
    start(spec) {
      const worker = local.start(spec);
      processes.push(worker);
      return worker;
    },
  };
  const group = await WorkerGroup.launch({ ...options, launcher });
  return { group, processes };
}
