import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import type { Launcher, WorkerSpec } from '../../../ts/controller/launcher';
import { ResourcePools, type ResourcePoolsOptions } from '../../../ts/controller/resource_pools';
import { WorkerDiedError } from '../../../ts/errors';
import { createFakeLauncher, fakeEngineOptions, waitForExit } from '../../helpers/fake_group';

// Real processes, the real protocol, no native code.

type Name = 'policy' | 'reward';
const sizes = { policy: 2, reward: 1 };

/** Fake workers that start well, but for the pools with a `fault` (FAKE_WORKER). */
function observedLauncher(fault: Partial<Record<Name, string>> = {}) {
  const specs: WorkerSpec[] = [];
  const pids: number[] = [];
  const launcher: Launcher = {
    start(spec) {
      specs.push(spec);
      const worker = createFakeLauncher(fault[spec.pool as Name]).start(spec);
      pids.push(worker.pid as number);
      return worker;
    },
  };
  return { launcher, specs, pids };
}

const open: ResourcePools<Name>[] = [];

async function launch(options: Partial<ResourcePoolsOptions<Name>> = {}) {
  const observed = observedLauncher();
  const { launcher } = observed;
  const pools = await ResourcePools.launch<Name>({ pools: sizes, device: 'cpu', launcher, ...options });
  open.push(pools);
  return { ...observed, pools };
}

afterEach(async () => {
  await Promise.all(open.splice(0).map((pools) => pools.close()));
});

const rejection = (promise: Promise<unknown>): Promise<Error> =>
  promise.then(
    () => Promise.reject(new Error('expected a rejection')),
    (error: Error) => error,
  );

const gone = async (pids: readonly number[]): Promise<void> => {
  for (const pid of pids) await waitForExit(pid, 2000);
};

test('a group per name; local ranks, and the cores, are counted over all of them', async () => {
  const { pools, specs } = await launch();
  expect(pools.worldSize).toBe(3);
  expect(pools.group('policy').worldSize).toBe(2);
  expect(pools.group('reward').worldSize).toBe(1);
  expect(() => pools.group('critic' as Name)).toThrow("no pool 'critic'; the pools are policy, reward");
  const threads = Math.max(1, Math.floor(availableParallelism() / 3));
  const place = ({ pool, rank, worldSize, localRank, localWorldSize, numThreads, env }: WorkerSpec) => [
    ...[pool, rank, worldSize, localRank, localWorldSize, numThreads],
    ...[env.RANK, env.WORLD_SIZE, env.LOCAL_RANK],
  ];
  expect(specs.map(place)).toEqual([
    ['policy', 0, 2, 0, 3, threads, '0', '2', '0'],
    ['policy', 1, 2, 1, 3, threads, '1', '2', '1'],
    ['reward', 0, 1, 2, 3, threads, '0', '1', '2'],
  ]);
});

test('engines of one name live beside each other in different pools', async () => {
  const { pools } = await launch();
  for (const name of ['policy', 'reward'] as const)
    await pools.group(name).createEngine('model', fakeEngineOptions);
  await pools.group('reward').callRank(0, 'model', 'getTensor', ['param', 'first']);
  expect(await pools.group('reward').callRank(0, 'model', 'parameters', [])).toHaveLength(1);
  expect(await pools.group('policy').callRank(0, 'model', 'parameters', [])).toHaveLength(0);
});

test('one pool is a group like any other: nothing names it, one worker has all cores', async () => {
  const { pools, specs, pids } = await launch({ pools: { policy: 1 } });
  expect(specs).toMatchObject([{ pool: null, localRank: 0, localWorldSize: 1, numThreads: null }]);
  process.kill(pids[0] as number, 'SIGKILL');
  expect((await pools.failed).message).toMatch(/^worker rank 0 died in phase idle: killed by SIGKILL/);
});

describe('GPUs', () => {
  const devices = process.env['CUDA_VISIBLE_DEVICES'];
  afterEach(() => {
    if (devices === undefined) delete process.env['CUDA_VISIBLE_DEVICES'];
    else process.env['CUDA_VISIBLE_DEVICES'] = devices;
  });
  const seen = (pid: number): string | undefined =>
    /(?:^|\0)CUDA_VISIBLE_DEVICES=([^\0]*)/.exec(readFileSync(`/proc/${pid}/environ`, 'utf8'))?.[1];

  test('the second pool has those after the first, of the ones that this process may use', async () => {
    delete process.env['CUDA_VISIBLE_DEVICES'];
    const all = await launch({ device: 'cuda' });
    expect(all.pids.map(seen)).toEqual(['0', '1', '2']);
    process.env['CUDA_VISIBLE_DEVICES'] = '7,3,GPU-5a,1';
    const some = await launch({ device: 'cuda' });
    expect(some.pids.map(seen)).toEqual(['7', '3', 'GPU-5a']);
  });

  test('too few: an error that counts the workers of all pools, and the first pool ends', async () => {
    process.env['CUDA_VISIBLE_DEVICES'] = '0,1';
    const { launcher, pids } = observedLauncher();
    await expect(ResourcePools.launch({ pools: sizes, device: 'cuda', launcher })).rejects.toThrow(
      "expected a device for each of 3 workers, but CUDA_VISIBLE_DEVICES is '0,1'",
    );
    expect(pids).toHaveLength(2);
    await gone(pids);
  });
});

describe('a launch that fails', () => {
  test.each([
    ['policy', 2],
    ['reward', 3],
  ] as const)('pool %s: its error, and no process of any pool', async (pool, started) => {
    const { launcher, pids } = observedLauncher({ [pool]: 'exit:0' });
    const error = await rejection(ResourcePools.launch({ pools: sizes, device: 'cpu', launcher }));
    expect(error).toBeInstanceOf(WorkerDiedError);
    expect(error).toMatchObject({ pool, rank: 0, phase: 'startup', exitCode: 9 });
    expect(error.message).toMatch(
      new RegExp(`^worker rank 0 of pool ${pool} died in phase startup: .* code 9`),
    );
    expect(pids).toHaveLength(started);
    await gone(pids);
  });

  test('a worker without an addon: what it says, and of which pool it is', async () => {
    const { launcher, pids } = observedLauncher({ reward: 'no-addon' });
    await expect(ResourcePools.launch({ pools: sizes, device: 'cpu', launcher })).rejects.toMatchObject({
      code: 'NATIVE_UNAVAILABLE',
      message: 'worker rank 0 of pool reward could not start: no addon here',
    });
    await gone(pids);
  });

  test('the first pool is lost while the second one does not start: the first cause', async () => {
    const { launcher, pids } = observedLauncher({ reward: 'no-dial' });
    const start: Launcher['start'] = (spec) => {
      const worker = launcher.start(spec);
      if (spec.pool === 'reward') process.kill(pids[1] as number, 'SIGKILL');
      return worker;
    };
    const options = { pools: sizes, device: 'cpu', launcher: { start }, startupTimeoutMs: 4000 } as const;
    const error = await rejection(ResourcePools.launch(options));
    expect(error).toMatchObject({ pool: 'policy', rank: 1, signal: 'SIGKILL' });
    await gone(pids);
  });

  test('no pool, a pool without workers', async () => {
    await expect(ResourcePools.launch({ pools: {}, device: 'cpu' })).rejects.toThrow(/expected at least one/);
    const { launcher, pids } = observedLauncher();
    const empty = { policy: 1, reward: 0 };
    await expect(ResourcePools.launch({ pools: empty, device: 'cpu', launcher })).rejects.toThrow(
      'worldSize: expected an integer from 1 to 65536 but got 0',
    );
    await gone(pids);
  });
});

describe('a worker that dies', () => {
  test.each([
    ['policy', 1, 1],
    ['reward', 0, 2],
  ] as const)(
    'in pool %s: `failed` names it, and no process of any pool stays',
    async (name, rank, victim) => {
      const { pools, pids } = await launch();
      pools.setPhase('old_log_prob');
      const groups = (['policy', 'reward'] as const).map((pool) => pools.group(pool));
      for (const group of groups) await group.createEngine('model', fakeEngineOptions);
      const ends = groups.map((group) =>
        rejection(group.callAll('model', 'getTensor', () => ['param', 'sleep 20000'])),
      );
      process.kill(pids[victim] as number, 'SIGKILL');
      const error = await pools.failed;
      expect(error).toMatchObject({ code: 'WORKER_DIED', pool: name, rank, signal: 'SIGKILL' });
      expect(error.message).toMatch(
        new RegExp(`^worker rank ${rank} of pool ${name} died in phase old_log_prob .*: killed by SIGKILL`),
      );
      await pools.close();
      const [policy, reward] = (await Promise.all(ends)) as [Error, Error];
      expect(name === 'policy' ? policy : reward).toBe(error);
      // Its 20 seconds are not waited for.
      expect(name === 'policy' ? reward : policy).toMatchObject({ code: 'ABORTED' });
      await gone(pids);
    },
  );
});

describe('close', () => {
  test('finishes the work of every pool, and can be repeated', async () => {
    const { pools, pids } = await launch();
    const group = pools.group('reward');
    await group.createEngine('model', fakeEngineOptions);
    const call = group.callRank(0, 'model', 'getTensor', ['param', 'sleep 100']);
    const closed = pools.close();
    expect(pools.close()).toBe(closed);
    await closed;
    expect(await call).toHaveLength(1);
    await gone(pids);
  });

  test('closes all, also when closing one throws', async () => {
    const { pools, pids } = await launch();
    const group = pools.group('policy');
    const close = group.close.bind(group);
    group.close = async () => {
      await close();
      throw new Error('cannot close');
    };
    await expect(pools.close()).rejects.toThrow('cannot close');
    open.pop();
    await gone(pids);
  });
});
