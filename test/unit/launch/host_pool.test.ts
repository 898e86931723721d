import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Launcher, WorkerProcess } from '../../../ts/controller/launcher';
import { WorkerGroup } from '../../../ts/controller/worker_group';
import { WorkerLogs } from '../../../ts/controller/worker_log';
import type { WorkerDiedError } from '../../../ts/errors';
import type { HostAgent } from '../../../ts/host/agent';
import { hostFacts } from '../../../ts/host/facts';
import type { FromHost, ToHost } from '../../../ts/host/protocol';
import { HostPool, type HostPoolOptions } from '../../../ts/launch/host_pool';
import { commandStarter, type HostStarter } from '../../../ts/launch/starter';
import { Connection } from '../../../ts/worker/connection';
import { fakeEngineOptions, waitForExit } from '../../helpers/fake_group';
import { type FakeHosts, fakeAgent, gatherFakeHosts } from '../../helpers/fake_hosts';

// Agents in this process, real connections, real worker processes, no native code.

let open: FakeHosts | null = null;
const groups: WorkerGroup[] = [];
afterEach(async () => {
  await Promise.all(groups.splice(0).map((group) => group.close()));
  await open?.pool.close(0);
  await Promise.all(open?.agents.map((agent) => agent.ended) ?? []);
  open = null;
});

async function gather(...options: Parameters<typeof gatherFakeHosts>): Promise<FakeHosts> {
  open = await gatherFakeHosts(...options);
  return open;
}

async function groupOn(
  { pool }: FakeHosts,
  worldSize = 4,
): Promise<{ group: WorkerGroup; workers: WorkerProcess[] }> {
  const launcher = pool.launcher();
  const workers: WorkerProcess[] = [];
  const observed: Launcher = {
    ...launcher,
    start(spec) {
      const worker = launcher.start(spec);
      workers.push(worker);
      return worker;
    },
  };
  const group = await WorkerGroup.launch({ worldSize, hosts: 2, device: 'cpu', launcher: observed });
  groups.push(group);
  await group.createEngine('actor', fakeEngineOptions);
  return { group, workers };
}

test('workers of two hosts are one group: ranks, local ranks, shares of the cores', async () => {
  const hosts = await gather();
  const [first] = hosts.pool.members;
  expect(hosts.pool.members.map(({ claimed }) => claimed)).toEqual([0, 1]);
  const launcher = hosts.pool.launcher();
  const specs: number[][] = [];
  const group = await WorkerGroup.launch({
    worldSize: 4,
    hosts: 2,
    device: 'cpu',
    launcher: {
      ...launcher,
      start(spec) {
        specs.push([spec.rank, spec.host, spec.localRank, spec.localWorldSize, spec.numThreads as number]);
        return launcher.start(spec);
      },
    },
  });
  const share = Math.max(1, Math.floor((first?.facts.cores as number) / 2));
  expect(specs).toEqual([
    [0, 0, 0, 2, share],
    [1, 0, 1, 2, share],
    [2, 1, 0, 2, share],
    [3, 1, 1, 2, share],
  ]);
  await group.createEngine('actor', fakeEngineOptions);
  const values = await group.callAll('actor', 'computeValues', (rank) => [
    {
      tokens: Int32Array.of(rank),
      seqOffsets: Int32Array.of(0, 1),
      promptLens: Int32Array.of(0),
      routedExperts: null,
      images: null,
    },
  ]);
  expect(values.map((array) => array[0])).toEqual([0, 0.5, 1, 1.5]);
  await group.close();
});

test('a host that is lost ends the group, with its name and reason; its workers are gone', async () => {
  const hosts = await gather();
  const { group, workers } = await groupOn(hosts);
  const work = group.callAll('actor', 'getTensor', () => ['param', 'sleep 60000']);
  hosts.pool.members[1]?.lose('it has sent nothing for 10 s');
  const error = (await work.catch((e: unknown) => e)) as WorkerDiedError;
  const { name } = hosts.pool.members[1]!;
  expect(error.message).toMatch(
    new RegExp(
      `^worker rank 2 on ${name} died in phase getTensor of 'actor': its host ${name} \\(127\\.0\\.0\\.1\\) was lost: it has sent nothing for 10 s`,
    ),
  );
  expect([error.rank, error.host]).toEqual([2, name]);
  await group.close();
  // The agent's connection has ended with the host, and with it the workers there.
  expect(await hosts.agents[1]?.ended).toMatchObject({ welcomed: true, exitCode: null });
  for (const { pid } of workers) await waitForExit(pid as number, 1_000);
});

test('a worker that dies on a host is told of as one of this machine is', async () => {
  const hosts = await gather();
  const { group } = await groupOn(hosts, 2);
  const work = group.callRank(1, 'actor', 'getTensor', ['param', 'exit 7']);
  await expect(work).rejects.toThrow(
    /worker rank 1 on \S+ died in phase getTensor of 'actor': it exited with code 7/,
  );
  await group.close();
});

test('all that a worker on a host writes comes into a file here, which its error names', async () => {
  const hosts = await gather();
  const directory = mkdtempSync(path.join(tmpdir(), 'host-logs-'));
  const logs = new WorkerLogs(directory, { maxBytes: 1 << 20, starts: 2 });
  const launcher = hosts.pool.launcher();
  const group = await WorkerGroup.launch({ worldSize: 2, hosts: 2, device: 'cpu', launcher, logs });
  await group.createEngine('actor', fakeEngineOptions);
  const say = (text: string) => group.callRank(1, 'actor', 'getTensor', ['param', `print ${text}`]);
  for (let i = 0; i < 30; i++) await say(`line ${i}`);
  const error = (await group
    .callRank(1, 'actor', 'getTensor', ['param', 'exit 7'])
    .catch((e: unknown) => e)) as WorkerDiedError;
  const file = path.join(directory, 'start_0001', 'rank_1.log');
  expect(error.logFile).toBe(file);
  expect(error.message.endsWith(`\nIts log: ${file}`)).toBe(true);
  await group.close();
  const said = readFileSync(file, 'utf8')
    .split('\n')
    .map((line) => line.slice(line.indexOf(' ') + 1));
  const name = hosts.pool.members[1]?.facts.name;
  expect(said).toEqual([
    `------ rank 1 is started on ${name}`,
    ...Array.from({ length: 30 }, (_, i) => `stderr line ${i}`),
    '------ it has ended: it exited with code 7',
    '',
  ]);
  expect(hosts.log).toContain(`[worker 1 on ${name}] line 0`);
  rmSync(directory, { recursive: true });
});

test('a worker on a host is asked where it is by its agent', async () => {
  const hosts = await gather();
  const { group, workers } = await groupOn(hosts, 2);
  const work = group.callRank(1, 'actor', 'getTensor', ['param', 'spin']);
  work.catch(() => {});
  for (const end = Date.now() + 20_000; !workers[1]?.stderrTail().includes('spinning'); ) {
    if (Date.now() > end) throw new Error(`it does not spin: ${hosts.log.join('\n')}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const script = await workers[1]?.stacks?.('script');
  expect(script?.split('\n')[0]).toMatch(/^at obey \(.*fake_binding\.ts:\d+\)$/);
  const native = await workers[1]?.stacks?.('native');
  expect(native).toMatch(/^(Thread|TID) /m);
  workers[1]?.kill();
  await expect(work).rejects.toThrow(/killed by SIGKILL/);
  expect(await workers[1]?.stacks?.('native')).toBe('');
  await group.close();
}, 60_000);

test('a port of one host leads to a port of another', async () => {
  const hosts = await gather();
  const echo = createServer((socket) => socket.pipe(socket));
  echo.listen(0, '127.0.0.1');
  await once(echo, 'listening');
  const { port } = echo.address() as AddressInfo;
  const way = await hosts.pool.launcher().forward?.(port, 0, 1);
  expect(way).not.toBe(port);
  const socket = connect(way as number, '127.0.0.1');
  const sent = Buffer.alloc(300_000, 'troupe');
  const received: Buffer[] = [];
  socket.on('data', (bytes: Buffer) => received.push(bytes));
  socket.end(sent);
  await once(socket, 'close');
  expect(Buffer.concat(received).equals(sent)).toBe(true);
  echo.close();
});

test('hosts that do not come are told of', async () => {
  await expect(gatherFakeHosts({ hosts: 3, waitMs: 2_000 }, 1)).rejects.toThrow(
    /expected 3 hosts at 127\.0\.0\.1:\d+, but within 2 s 1 came \(\S+\): each has to run troupe host-agent, and reach this address$/,
  );
});

test('a clock that is set moves no end of a wait', async () => {
  const clock = jest.spyOn(Date, 'now').mockReturnValue(0);
  await expect(gatherFakeHosts({ hosts: 3, waitMs: 1_000 }, 1)).rejects.toThrow(/within 1 s 1 came/);
  let hours = 0;
  clock.mockImplementation(() => 3_600_000 * hours++);
  const hosts = await gather();
  expect(hosts.pool.members).toHaveLength(2);
  clock.mockRestore();
});

test('an agent that ends before it has come is told of with what it wrote', async () => {
  const starter = commandStarter(
    ['n1', 'n2'],
    () => ['sh', '-c', 'echo no such node >&2; exit 4'],
    () => {},
  );
  const place = { address: '127.0.0.1', ports: null };
  const gathering = HostPool.gather({
    hosts: 2,
    place,
    starter,
    waitMs: 10_000,
    deadTimeoutMs: 10_000,
    say: () => {},
  });
  await expect(gathering).rejects.toThrow(
    /no agent could be started on host n[12]: sh ended with exit code 4\n {2}no such node/,
  );
});

test('without the token, as a host that is here, or as one too many nobody gets in', async () => {
  const hosts = await gather();
  const { controllers, token } = hosts.pool.address;
  const ends = [
    fakeAgent(controllers[0] as string, 'guess'),
    fakeAgent(controllers[0] as string, token, 1),
    fakeAgent(controllers[0] as string, token),
  ].map((agent) => agent.ended);
  expect((await Promise.all(ends)).map(({ welcomed, reason }) => [welcomed, reason])).toEqual([
    [false, expect.stringMatching(/^refused: it did not present the token of this run/)],
    [false, 'refused: host 1 of this run is here already'],
    [false, 'refused: all 2 hosts of this run are here'],
  ]);
});

test('a spare takes the place of a host that is lost', async () => {
  const hosts = await gather({ spares: 1 }, 3);
  while (!hosts.agents.every((agent) => agent.welcomed))
    await new Promise((resolve) => setTimeout(resolve, 5));
  expect(hosts.pool.members.map(({ claimed }) => claimed)).toEqual([0, 1]);
  hosts.pool.members[0]?.lose('the power went');
  await hosts.pool.regroup();
  expect(hosts.pool.members.map(({ claimed }) => claimed)).toEqual([1, 2]);
  const { group } = await groupOn(hosts, 2);
  await group.close();
});

/** Agents of this process as a starter has them, each of which ends when a test says so. */
function endableStarter(names: readonly string[]) {
  const started: { index: number; agent: HostAgent; end(how: string): void }[] = [];
  const starter: HostStarter = {
    names,
    start(index, { controllers, token }) {
      const agent = fakeAgent(controllers[0] as string, token, index);
      const exited = new Promise<string>((end) => {
        started.push({ index, agent, end });
      });
      return { exited, kill: () => {} };
    },
  };
  return { starter, started };
}

async function endAll(pool: HostPool, started: ReturnType<typeof endableStarter>['started']): Promise<void> {
  for (const { end } of started) end('the test is over');
  await pool.close(0);
  await Promise.all(started.map(({ agent }) => agent.ended));
}

test('an agent that ends only while its host is waited for is started again', async () => {
  const { starter, started } = endableStarter(['n0', 'n1']);
  const { pool } = await gather({ starter, announce: () => {}, waitMs: 10_000 });
  pool.members[1]?.lose('it has sent nothing for 10 s');
  const regrouped = pool.regroup();
  // Behind a link that is cut it gives its controller up later than this one it.
  await new Promise((resolve) => setTimeout(resolve, 50));
  started[1]?.end('ssh ended with exit code 1');
  await regrouped;
  expect(started.map(({ index }) => index)).toEqual([0, 1, 1]);
  expect(pool.members.map(({ claimed }) => claimed)).toEqual([0, 1]);
  await endAll(pool, started);
});

test('an agent that cannot be started on a host which was there is tried again as long as that is waited for', async () => {
  const { starter, started } = endableStarter(['n0', 'n1']);
  let unreachable = 0;
  const ending = {
    ...starter,
    start: (...args: Parameters<HostStarter['start']>) => {
      if (unreachable-- > 0)
        return { exited: Promise.resolve('ssh ended with exit code 255'), kill: () => {} };
      return starter.start(...args);
    },
  };
  const { pool } = await gather({ starter: ending, announce: () => {}, waitMs: 10_000, retryMs: 20 });
  unreachable = 3;
  pool.members[1]?.lose('the machine starts anew');
  started[1]?.end('ssh ended with exit code 255');
  await pool.regroup();
  expect(started.map(({ index }) => index)).toEqual([0, 1, 1]);
  expect(pool.members.map(({ claimed }) => claimed)).toEqual([0, 1]);
  await endAll(pool, started);
});

test('of a host that did not come back it is told how its agent has ended', async () => {
  const { starter, started } = endableStarter(['n0', 'n1']);
  const exited = Promise.resolve('ssh ended with exit code 255\n  No route to host');
  const once = {
    ...starter,
    start: (...args: Parameters<HostStarter['start']>) =>
      started.length < 2 ? starter.start(...args) : { exited, kill: () => {} },
  };
  const { pool } = await gather({ starter: once, announce: () => {}, waitMs: 2_000 });
  pool.members[1]?.lose('the power went');
  started[1]?.end('ssh ended with exit code 1');
  await expect(pool.regroup()).rejects.toThrow(
    /within 2 s 1 came \(\S+\); missing: n1 \(ssh ended with exit code 255\)$/,
  );
  await endAll(pool, started);
});

test('nobody waits for a host of a pool that is closed', async () => {
  const { pool } = await gather({ waitMs: 600_000 });
  pool.members[1]?.lose('the power went');
  const regrouped = expect(pool.regroup()).rejects.toMatchObject({ code: 'CLOSED' });
  await pool.close(0);
  await regrouped;
});

test('a spare that cannot be started keeps no other host from coming back', async () => {
  const { starter, started } = endableStarter(['n0', 'n1', 'n2']);
  let spareEnds: (how: string) => void = () => {};
  const exited = new Promise<string>((end) => {
    spareEnds = end;
  });
  const broken = {
    ...starter,
    start: (...args: Parameters<HostStarter['start']>) =>
      args[0] === 2 ? { exited, kill: () => spareEnds('killed') } : starter.start(...args),
  };
  const { pool } = await gather({ starter: broken, announce: () => {}, waitMs: 10_000 });
  pool.members[1]?.lose('the power went');
  const regrouped = pool.regroup();
  spareEnds('ssh ended with exit code 255');
  await new Promise((resolve) => setTimeout(resolve, 20));
  started[1]?.end('ssh ended with exit code 1');
  await regrouped;
  expect(pool.members.map(({ claimed }) => claimed)).toEqual([0, 1]);
  await endAll(pool, started);
});

/** An agent that comes, is welcomed and goes for good; then those of two other hosts. */
function announceOneThatGoesAndTwo(agents: HostAgent[]): NonNullable<HostPoolOptions['announce']> {
  return ({ controllers, token }) => {
    const controller = controllers[0] as string;
    const gone = new Connection<ToHost, FromHost>({
      controller,
      token,
      identity: 'host',
      hello: (from) => ({ type: 'hello', facts: hostFacts(from, null), index: 2 }),
      receive: () => gone.end(),
      active: () => {},
      closed: () => {
        for (const index of [0, 1]) agents.push(fakeAgent(controller, token, index));
      },
    });
  };
}

test('an elastic run goes on without a host that is lost before all were there at once; another run waits', async () => {
  const agents: HostAgent[] = [];
  const announce = announceOneThatGoesAndTwo(agents);
  const elastic = { waitMs: 200, resumes: false };
  const { pool, log } = await gather({ hosts: 3, waitMs: 60_000, elastic, announce });
  expect(pool.members.map(({ claimed }) => claimed)).toEqual([0, 1]);
  expect(log.filter((line) => line.startsWith('host '))).toEqual([
    expect.stringMatching(/^host \S+ is lost: /),
  ]);
  expect(log).toContain('going on with 2 of 3 hosts');
  pool.members[0]?.lose('the power went');
  await pool.regroup();
  expect(pool.members.map(({ claimed }) => claimed)).toEqual([1]);
  await pool.close(0);
  await Promise.all(agents.map((agent) => agent.ended));

  agents.length = 0;
  await expect(gatherFakeHosts({ hosts: 3, waitMs: 1_500, announce })).rejects.toThrow(
    /expected 3 hosts at \S+, but within 1.5 s 2 came/,
  );
  await Promise.all(agents.map((agent) => agent.ended));
});

test('an elastic run that resumes goes on without a host that never came, once the time is up', async () => {
  const elastic = { waitMs: 1, resumes: true };
  const started = Date.now();
  const { pool, log } = await gather({ hosts: 2, waitMs: 1_500, elastic }, 1);
  expect(Date.now() - started).toBeGreaterThanOrEqual(1_500);
  expect(pool.members).toHaveLength(1);
  expect(log).toContain('going on with 1 of 2 hosts');
  await expect(
    gatherFakeHosts({ hosts: 2, waitMs: 1_500, elastic: { ...elastic, resumes: false } }, 1),
  ).rejects.toThrow(/expected 2 hosts/);
  await expect(gatherFakeHosts({ hosts: 2, waitMs: 300, elastic }, 0)).rejects.toThrow(/0 came/);
});

test('the end of the run is the end of its agents, with its exit code', async () => {
  const hosts = await gather();
  const { group, workers } = await groupOn(hosts, 2);
  await hosts.pool.close(5);
  expect(await Promise.all(hosts.agents.map((agent) => agent.ended))).toEqual([
    expect.objectContaining({ exitCode: 5 }),
    expect.objectContaining({ exitCode: 5 }),
  ]);
  await expect(group.callBinding('memoryInfo', [])).rejects.toThrow(/died/);
  await group.close();
  for (const { pid } of workers) await waitForExit(pid as number, 1);
});

test('an agent says what it reads of a small file, and what time it is', async () => {
  const { pool } = await gather();
  const directory = mkdtempSync(path.join(tmpdir(), 'probe-'));
  const [small, large] = [path.join(directory, 'small'), path.join(directory, 'large')];
  writeFileSync(small, 'this');
  writeFileSync(large, 'x'.repeat(1000));
  const [first, second] = pool.members;
  expect(await first?.probe(small)).toMatchObject({ seen: 'this' });
  expect((await first?.probe(large))?.seen).toBeNull();
  const { seen, clockMs, roundTripMs } = (await second?.probe(path.join(directory, 'none'))) ?? {};
  expect(seen).toBeNull();
  // It is the clock of this process.
  expect(Math.abs(clockMs as number)).toBeLessThanOrEqual((roundTripMs as number) + 2);
  second?.lose('a test says so');
  await expect(second?.probe(small)).rejects.toThrow(/a test says so/);
});
