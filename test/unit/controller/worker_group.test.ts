import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { WorkerGroup } from '../../../ts/controller/worker_group';
import { WorkerLogs } from '../../../ts/controller/worker_log';
import { TroupeError, WorkerDiedError } from '../../../ts/errors';
import type { NativePolicyLossInputs, NativePolicyLossOptions } from '../../../ts/native/bridge';
import {
  createFakeLauncher,
  fakeEngineOptions,
  launchFakeGroup,
  waitForExit,
} from '../../helpers/fake_group';

// Real processes, the real protocol, no native code.

const open: WorkerGroup[] = [];

async function launch(options: Parameters<typeof launchFakeGroup>[0] = {}) {
  const launched = await launchFakeGroup(options);
  open.push(launched.group);
  return launched;
}

afterEach(async () => {
  await Promise.all(open.splice(0).map((group) => group.close()));
});

function died(promise: Promise<unknown>): Promise<WorkerDiedError> {
  return promise.then(
    () => Promise.reject(new Error('expected a WorkerDiedError, but the call succeeded')),
    (error: unknown) => {
      expect(error).toBeInstanceOf(WorkerDiedError);
      return error as WorkerDiedError;
    },
  );
}

describe('a group of two', () => {
  test('calls return by rank, in the order they were made, with typed arrays intact', async () => {
    const { group } = await launch({ worldSize: 2 });
    await group.createEngine('actor', fakeEngineOptions);
    const values = await group.callAll('actor', 'computeValues', (rank) => [
      {
        tokens: Int32Array.of(rank, 3),
        seqOffsets: Int32Array.of(0, 2),
        promptLens: Int32Array.of(1),
        routedExperts: null,
        images: null,
      },
    ]);
    expect(values).toEqual([Float32Array.of(0, 1.5), Float32Array.of(0.5, 1.5)]);
    const order: string[] = [];
    await Promise.all(
      ['sleep 60', 'sleep 1', 'third'].map(async (command) => {
        await group.callRank(1, 'actor', 'getTensor', ['param', command]);
        order.push(command);
      }),
    );
    expect(order).toEqual(['sleep 60', 'sleep 1', 'third']);
    expect((await group.callRank(1, 'actor', 'parameters', [])).map(({ name }) => name)).toEqual(order);
    expect(await group.callRank(0, 'actor', 'parameters', [])).toEqual([]);
    expect(await group.memoryInfo()).toHaveLength(2);
    expect(group.buildInfo().libtorch).toBe('0.0.0');
    const inputs = { logProbs: Float32Array.of(1, 2) } as NativePolicyLossInputs;
    expect(await group.callBinding('policyLoss', [inputs, {} as NativePolicyLossOptions])).toMatchObject({
      loss: 2,
      metrics: { pg_loss: 0.5 },
    });
  });

  test('the first death is what every call hears, and no peer survives', async () => {
    const { group, processes } = await launch({ worldSize: 2 });
    await group.createEngine('actor', fakeEngineOptions);
    group.setPhase('update_actor');
    const calls = [0, 1].map((rank) => group.callRank(rank, 'actor', 'getTensor', ['param', 'sleep 9000']));
    const start = Date.now();
    process.kill(processes[1]!.pid!, 'SIGKILL');
    const errors = await Promise.all(calls.map(died));
    expect(Date.now() - start).toBeLessThan(2000);
    expect(errors[0]).toBe(errors[1]);
    expect(errors[0]).toMatchObject({
      code: 'WORKER_DIED',
      rank: 1,
      phase: 'update_actor',
      exitCode: null,
      signal: 'SIGKILL',
    });
    expect(errors[0]!.message).toContain(
      "worker rank 1 died in phase update_actor (getTensor of 'actor'): killed by SIGKILL",
    );
    expect(await died(group.memoryInfo())).toBe(errors[0]);
    await waitForExit(processes[0]!.pid!, 3000);
  });
});

describe('errors of a call', () => {
  test('what cannot be sent rejects, and the group goes on', async () => {
    const { group } = await launch();
    await group.createEngine('actor', fakeEngineOptions);
    const call = group.callRank(0, 'actor', 'getTensor', ['param', (() => {}) as never]);
    await expect(call).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringMatching(
        /^getTensor of 'actor': its arguments cannot be sent to a worker: .*clone/,
      ),
    });
    expect(await group.callRank(0, 'actor', 'parameters', [])).toEqual([]);
  });

  test('what a worker cannot send back rejects, too', async () => {
    const { group } = await launch();
    await group.createEngine('actor', fakeEngineOptions);
    const call = group.callRank(0, 'actor', 'getTensor', ['param', 'unsendable']);
    await expect(call).rejects.toMatchObject({ code: 'INTERNAL', message: expect.stringContaining('clone') });
    expect(await group.callRank(0, 'actor', 'parameters', [])).toHaveLength(1);
  });

  test('keep code and message, and the group goes on', async () => {
    const { group } = await launch();
    await group.createEngine('actor', fakeEngineOptions);
    const call = group.callRank(0, 'actor', 'getTensor', ['param', 'fail NON_FINITE loss is NaN']);
    await expect(call).rejects.toThrow(TroupeError);
    await expect(call).rejects.toMatchObject({ code: 'NON_FINITE', message: 'loss is NaN' });
    await group.closeEngine('actor');
    await expect(group.callRank(0, 'actor', 'parameters', [])).rejects.toThrow("there is no engine 'actor'");
  });

  test('an engine of a group that is closed is closed', async () => {
    const { group } = await launch();
    await group.createEngine('actor', fakeEngineOptions);
    const closing = group.close();
    await group.closeEngine('actor');
    await closing;
    await group.closeEngine('actor');
  });

  test('abort overtakes queued work', async () => {
    const { group } = await launch();
    await group.createEngine('actor', fakeEngineOptions);
    const call = group.callRank(0, 'actor', 'getTensor', ['param', 'sleep 20000']);
    setTimeout(() => group.abort('that is enough'), 50);
    await expect(call).rejects.toMatchObject({ code: 'ABORTED', message: 'that is enough' });
  });
});

describe('ranks that can only go on together', () => {
  const three = async () => {
    const { group, processes } = await launch({ worldSize: 3 });
    await group.connect();
    await group.createEngine('actor', fakeEngineOptions);
    const call = (commandOf: (rank: number) => string) =>
      group.callRanks([1, 2], 'actor', 'getTensor', (rank) => ['param', commandOf(rank)]);
    return { group, processes, call };
  };

  test('an error that all of them have is thrown, and the group goes on', async () => {
    const { group, call } = await three();
    await expect(call(() => 'fail OUT_OF_MEMORY it is full')).rejects.toMatchObject({
      code: 'OUT_OF_MEMORY',
      message: 'it is full',
    });
    expect(group.failure).toBeNull();
    expect(await call((rank) => `third of ${rank}`)).toEqual([Float32Array.of(0, 1), Float32Array.of(0, 1)]);
    expect(await group.callRank(0, 'actor', 'parameters', [])).toEqual([]);
  });

  test.each([
    ['others wait for it', 'sleep 60000'],
    ['the other has gone on without it', 'nothing'],
  ])('an error of one ends the group under its number: %s', async (_, other) => {
    const { group, processes, call } = await three();
    group.setPhase('gen');
    const error = await call((rank) => (rank === 2 ? 'fail OUT_OF_MEMORY it is full' : other)).catch(
      (reason: unknown) => reason,
    );
    expect(error).toMatchObject({
      code: 'OUT_OF_MEMORY',
      message: expect.stringContaining(
        "worker rank 2 failed in phase gen (getTensor of 'actor'): it is full",
      ),
    });
    await expect(group.memoryInfo()).rejects.toBe(error);
    for (const { pid } of processes) await waitForExit(pid!, 3000);
  });
});

describe('a worker that dies', () => {
  test('by exiting: the code and its last words are reported', async () => {
    const directory = mkdtempSync(path.join(tmpdir(), 'logs-'));
    const { group } = await launch({ logs: new WorkerLogs(directory, { maxBytes: 1 << 20, starts: 1 }) });
    await group.createEngine('actor', fakeEngineOptions);
    await group.callRank(0, 'actor', 'getTensor', ['param', 'print the end is near']);
    const error = await died(group.callRank(0, 'actor', 'getTensor', ['param', 'exit 7']));
    expect(error).toMatchObject({ rank: 0, phase: "getTensor of 'actor'", exitCode: 7, signal: null });
    expect(error.message).toContain('it exited with code 7. Its last lines on stderr:\n  the end is near');
    const file = path.join(directory, 'start_0001', 'rank_0.log');
    expect(error.message).toContain(`\nIts log: ${file}`);
    await group.close();
    expect(readFileSync(file, 'utf8')).toMatch(
      /Z ------ rank 0 is started\n.*Z stderr the end is near\n.*Z ------ it has ended: it exited with code 7\n$/,
    );
    rmSync(directory, { recursive: true });
  });

  test('by crashing', async () => {
    const { group } = await launch();
    await group.createEngine('actor', fakeEngineOptions);
    const error = await died(group.callRank(0, 'actor', 'getTensor', ['param', 'segfault']));
    expect(error).toMatchObject({ signal: 'SIGSEGV' });
    expect(error.message).toContain('crashed in native code with SIGSEGV');
  });

  test('by stopping to answer: missing heartbeats tell', async () => {
    const { group, processes } = await launch({ deadTimeoutMs: 1000 });
    const pid = processes[0]!.pid!;
    await new Promise((resolve) => setTimeout(resolve, 1300)); // heartbeats alone keep it alive
    await group.memoryInfo();
    process.kill(pid, 'SIGSTOP');
    const start = Date.now();
    const error = await died(group.memoryInfo());
    expect(Date.now() - start).toBeLessThan(1500);
    expect(error.message).toContain('it has sent nothing for 1 s, although its process exists');
    await waitForExit(pid, 2000);
  });
});

describe('a large call', () => {
  test('takes no memory of the controller beside the arrays, on however many ranks', async () => {
    const worldSize = 3;
    const { group } = await launch({ worldSize, deadTimeoutMs: 20_000 });
    await group.createEngine('actor', fakeEngineOptions);
    const tokens = new Int32Array(2 ** 24).fill(3); // 64 MiB, the same for all
    const batch = {
      tokens,
      seqOffsets: Int32Array.of(0),
      promptLens: Int32Array.of(),
      routedExperts: null,
      images: null,
    };
    const before = process.memoryUsage().arrayBuffers;
    let peak = 0;
    const look = (): void => {
      peak = Math.max(peak, process.memoryUsage().arrayBuffers - before);
    };
    const watch = setInterval(look, 2);
    const sums = group.callAll('actor', 'updateCritic', () => [
      { tokens: batch } as never,
      {} as never,
      {} as never,
    ]);
    look();
    expect(await sums).toEqual(Array(worldSize).fill([{ sum: 3 * 2 ** 24 }]));
    look();
    clearInterval(watch);
    // A copy of it would take 64 MiB, and one per rank three times that.
    expect(peak).toBeLessThan(16 * 2 ** 20);
  });
});

describe('a launch that fails', () => {
  const attempt = (fault: string, startupTimeoutMs: number = 20_000) => {
    const launcher = createFakeLauncher(fault);
    const log: string[] = [];
    const launched = WorkerGroup.launch({
      worldSize: 2,
      device: 'cpu',
      launcher,
      startupTimeoutMs,
      log: (line) => log.push(line),
    });
    return { launched, launcher, log };
  };

  test('a worker that exits at once is named with its stderr, and its peer is killed', async () => {
    const { launched, launcher } = attempt('exit:1');
    const error = await died(launched);
    expect(error).toMatchObject({ rank: 1, phase: 'startup', exitCode: 9 });
    expect(error.message).toContain('first line\n  cannot go on');
    for (const { pid } of launcher.started) await waitForExit(pid!, 1000);
  });

  test('a worker that never dials in is named', async () => {
    const { launched, launcher } = attempt('no-dial:0', 2500);
    const error = await died(launched);
    expect(error).toMatchObject({ rank: 0, phase: 'startup' });
    expect(error.message).toContain('it did not connect to the controller within 2.5 s');
    expect(error.message).toContain('sitting here');
    for (const { pid } of launcher.started) await waitForExit(pid!, 1000);
  });

  test('a worker that is stopped before it dials in is named long before the start-up has timed out', async () => {
    const launcher = createFakeLauncher('no-dial:1');
    const launched = WorkerGroup.launch({ worldSize: 2, device: 'cpu', launcher, deadTimeoutMs: 1000 });
    setTimeout(() => process.kill(launcher.started[1]?.pid as number, 'SIGSTOP'), 300);
    const error = await died(launched);
    expect(error).toMatchObject({ rank: 1, phase: 'startup' });
    expect(error.message).toContain('its process has been stopped (SIGSTOP) for 1 s');
    for (const { pid } of launcher.started) await waitForExit(pid!, 1000);
  });

  test('a worker with a wrong token is refused', async () => {
    const { launched, log } = attempt('wrong-token:1');
    const error = await died(launched);
    expect(error).toMatchObject({ rank: 1, phase: 'startup', exitCode: 1 });
    expect(error.message).toContain('it did not present the token of this run');
    expect(log.join()).toMatch(
      /^refused a worker connection from .*: it did not present the token of this run$/,
    );
  });

  test('a worker without an addon passes the reason on', async () => {
    const { launched } = attempt('no-addon');
    await expect(launched).rejects.toMatchObject({
      code: 'NATIVE_UNAVAILABLE',
      message: expect.stringMatching(/^worker rank [01] could not start: no addon here$/),
    });
  });

  test('a world size that makes no sense', async () => {
    await expect(WorkerGroup.launch({ worldSize: 0, device: 'cpu' })).rejects.toThrow(
      'worldSize: expected an integer from 1 to 65536 but got 0',
    );
  });
});

describe('close', () => {
  test('finishes queued work, ends the processes, and can be repeated', async () => {
    const { group, processes } = await launch({ worldSize: 2 });
    await group.createEngine('actor', fakeEngineOptions);
    const call = group.callRank(0, 'actor', 'getTensor', ['param', 'sleep 100']);
    const closed = group.close();
    expect(group.close()).toBe(closed);
    await expect(group.memoryInfo()).rejects.toMatchObject({ code: 'CLOSED' });
    await closed;
    expect(await call).toHaveLength(1);
    for (const worker of processes) expect(await worker.exited).toEqual({ exitCode: 0, signal: null });
  });

  test('kills a worker that takes too long', async () => {
    const { group, processes } = await launch({ closeTimeoutMs: 200 });
    await group.createEngine('actor', fakeEngineOptions);
    const call = group.callRank(0, 'actor', 'getTensor', ['param', 'sleep 20000']);
    call.catch(() => {});
    await group.close();
    await expect(call).rejects.toMatchObject({ code: 'CLOSED' });
    expect(await processes[0]!.exited).toMatchObject({ signal: 'SIGKILL' });
  });
});

describe('the controller process', () => {
  const start = (mode: string) =>
    spawn(process.execPath, [
      '-r',
      path.join(__dirname, '../../helpers/register_ts.js'),
      path.join(__dirname, '../../helpers/fake_controller.ts'),
      mode,
    ]);

  test('is given up by a far worker when it has been silent for a minute of heartbeats', async () => {
    const child = start('far');
    const [line] = await once(createInterface({ input: child.stdout! }), 'line');
    const pids = JSON.parse(String(line)) as number[];
    child.kill('SIGSTOP'); // its connections stay open
    try {
      for (const pid of pids) await waitForExit(pid, 30_000);
    } finally {
      child.kill('SIGKILL');
    }
  });

  test('ends by itself after close', async () => {
    const child = start('close');
    const [code] = await once(child, 'exit');
    expect(code).toBe(0);
  });

  test.each(['as they are', 'stopped'])('takes its workers with it when it is killed: %s', async (how) => {
    const child = start('wait');
    const [line] = await once(createInterface({ input: child.stdout! }), 'line');
    const pids = JSON.parse(String(line)) as number[];
    expect(pids).toHaveLength(2);
    if (how === 'stopped') for (const pid of pids) process.kill(pid, 'SIGSTOP');
    child.kill('SIGKILL');
    for (const pid of pids) await waitForExit(pid, 3000);
  });
});
