import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { createInterface } from 'node:readline';
import type { WorkerProcess } from '../../ts/controller/launcher';
import type { WorkerGroup } from '../../ts/controller/worker_group';
import { WorkerDiedError } from '../../ts/errors';
import { waitForExit } from '../helpers/fake_group';
import { observedGroup } from '../helpers/observed_group';
import {
  tinyBatch,
  tinyEngine,
  tinyMiniBatches,
  tinyModel,
  tinyPolicyBatch,
  tinyPolicyLoss,
} from '../helpers/tiny_model';

// The built worker program with the real addon: dist/worker/main.js.

let group: WorkerGroup | null = null;
let processes: WorkerProcess[] = [];

async function launch(worldSize: number, deadTimeoutMs: number = 10_000): Promise<WorkerGroup> {
  const observed = await observedGroup({ worldSize, device: 'cpu', deadTimeoutMs });
  ({ group, processes } = observed);
  return observed.group;
}

afterEach(async () => {
  await group?.close();
  group = null;
});

/** Long enough for a test to kill it: hundreds of optimiser steps. */
function startLongUpdate(workers: WorkerGroup): Promise<unknown> {
  const mini = { ...tinyMiniBatches, epochs: 1_000_000 };
  return workers.callRank(0, 'actor', 'updatePolicy', [tinyPolicyBatch(), mini, tinyPolicyLoss, 1]);
}

async function deathOf(call: Promise<unknown>): Promise<WorkerDiedError> {
  const error = await call.then(
    () => null,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(WorkerDiedError);
  return error as WorkerDiedError;
}

test('two ranks compute, each on its own engines, and exit when the group is closed', async () => {
  const workers = await launch(2);
  await workers.createEngine('actor', tinyEngine());
  await workers.createEngine('critic', tinyEngine({ model: tinyModel({ head: 'value' }) }));
  const [a, b] = await workers.callAll('actor', 'computeLogProb', () => [
    tinyBatch(),
    1,
    true,
    false,
    false,
    false,
    0,
  ]);
  expect(a!.logProbs).toHaveLength(5);
  expect(b).toEqual(a);
  expect((await workers.callRank(1, 'critic', 'computeValues', [tinyBatch()])).length).toBe(5);
  expect(workers.buildInfo().libtorch).toMatch(/^2\./);
  await expect(workers.callRank(0, 'actor', 'getTensor', ['param', 'none such'])).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: expect.stringContaining('none such'),
  });
  await workers.close();
  for (const worker of processes) expect(await worker.exited).toEqual({ exitCode: 0, signal: null });
});

test('a worker killed in the middle of a call is reported at once', async () => {
  const workers = await launch(1);
  await workers.createEngine('actor', tinyEngine());
  workers.setPhase('update_actor');
  const call = startLongUpdate(workers);
  setTimeout(() => process.kill(processes[0]!.pid!, 'SIGKILL'), 200);
  const start = Date.now();
  expect(await deathOf(call)).toMatchObject({ rank: 0, phase: 'update_actor', signal: 'SIGKILL' });
  expect(Date.now() - start).toBeLessThan(2000);
});

test('a stopped worker is reported by its missing heartbeats, a busy one is not', async () => {
  const workers = await launch(1, 1500);
  await workers.createEngine('actor', tinyEngine());
  const call = startLongUpdate(workers);
  let settled = false;
  call.catch(() => {}).finally(() => (settled = true));
  await new Promise((resolve) => setTimeout(resolve, 2500));
  expect(settled).toBe(false);
  process.kill(processes[0]!.pid!, 'SIGSTOP');
  const start = Date.now();
  expect((await deathOf(call)).message).toContain('it has sent nothing for 1.5 s');
  expect(Date.now() - start).toBeLessThan(2500);
  await waitForExit(processes[0]!.pid!, 2000);
});

test('an aborted update ends, and the worker exits as asked', async () => {
  const workers = await launch(1);
  await workers.createEngine('actor', tinyEngine());
  const call = startLongUpdate(workers);
  call.catch(() => {});
  setTimeout(() => workers.abort('the trainer stops'), 100);
  await expect(call).rejects.toMatchObject({ code: 'ABORTED' });
  await workers.close();
  expect(await processes[0]!.exited).toEqual({ exitCode: 0, signal: null });
});

test('no worker survives its controller, busy or idle', async () => {
  const helpers = path.join(__dirname, '..', 'helpers');
  const child = spawn(process.execPath, [
    '-r',
    path.join(helpers, 'register_ts.js'),
    path.join(helpers, 'busy_controller.ts'),
  ]);
  const [line] = await once(createInterface({ input: child.stdout }), 'line');
  const pids = JSON.parse(String(line)) as number[];
  expect(pids).toHaveLength(2);
  child.kill('SIGKILL');
  for (const pid of pids) await waitForExit(pid, 5000);
});
