import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { GroupGuard } from '../../../ts/base/group_guard';
import { ManagedServer } from '../../../ts/rollout/remote/inference_server';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';
import { serverGpus } from '../../../ts/trainer/server_gpus';

// A program that is started as a server of vLLM would be, with a process of its own.
const PROGRAM = `
const { pid: worker } = require('node:child_process').spawn('sleep', ['600'], { stdio: 'ignore' });
const args = process.argv.slice(2);
const of = (name) => args[args.indexOf(name) + 1];
console.log('model', of('--model'), of('--extra'), process.env.VLLM_SERVER_DEV_MODE, process.env.CUDA_VISIBLE_DEVICES);
if (of('--model') === 'bad') { console.error('no such model'); process.exit(3); }
if (of('--model') === 'slow') { console.error('port 1: address already in use, trying port 2'); setInterval(() => {}, 1000); return; }
const listening = { port: Number(of('--port')), host: of('--host') };
const { appendFileSync, readFileSync } = require('node:fs');
// Its port is taken while it comes up: so often as the name says.
const taken = /^taken (\\d+) (.*)$/.exec(of('--model'));
if (taken !== null) {
  appendFileSync(taken[2], listening.port + '\\n');
  if (readFileSync(taken[2], 'utf8').trim().split('\\n').length <= Number(taken[1]))
    require('node:net').createServer().listen(listening, () => require('node:net').createServer().listen(listening));
}
if (taken === null || readFileSync(taken[2], 'utf8').trim().split('\\n').length > Number(taken[1]))
require('node:http').createServer((request, response) => {
  if (request.url === '/die') process.exit(9);
  response.end(JSON.stringify({ pid: process.pid, worker }));
}).listen(listening);
`;

const directory = mkdtempSync(join(tmpdir(), 'troupe-managed-'));
const log = join(directory, 'logs', 'server.log');
writeFileSync(join(directory, 'server.cjs'), PROGRAM);
const servers: ManagedServer[] = [];
const guard = new GroupGuard();
afterEach(async () => {
  for (const server of servers.splice(0)) await server.close();
  rmSync(log, { force: true });
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const options = {
  model: 'first',
  dtype: 'float32' as const,
  maxTokens: 64,
  maxConcurrency: 8,
  seed: 1,
  tensorParallel: 1,
  releases: false,
  limits: {
    sequences: 8,
    stepTokens: 8192,
    memoryShare: null,
    chunkedPrefill: true,
    prefixCaching: true,
  },
  command: [process.execPath, join(directory, 'server.cjs')],
  args: ['--extra', 'yes'],
  gpus: '3,5',
  log,
};

function managed(model: string, command = options.command): ManagedServer {
  const server = new ManagedServer(new VllmProtocol(), { ...options, model, command }, guard);
  servers.push(server);
  return server;
}
const pid = async (server: ManagedServer): Promise<number> =>
  ((await server.client.json('GET', '/health', null)) as { pid: number }).pid;
const alive = (id: number): boolean => {
  try {
    process.kill(id, 0);
    return true;
  } catch {
    return false;
  }
};
/** Of processes whose parent has gone: nobody may be there to wait for them. */
const running = (id: number): boolean =>
  alive(id) && !readFileSync(`/proc/${id}/stat`, 'utf8').includes(') Z');

test('each server has GPUs of its own, as long as there are some', () => {
  const of = (servers: number, each: number, visible?: string, there?: number, taken = 0) =>
    serverGpus(
      { servers, each, taken },
      visible === undefined ? {} : { CUDA_VISIBLE_DEVICES: visible },
      there,
    );
  expect(of(2, 2, undefined, 4)).toEqual(['0,1', '2,3']);
  expect(of(2, 2, 'GPU-a, GPU-b,GPU-c,GPU-d')).toEqual(['GPU-a,GPU-b', 'GPU-c,GPU-d']);
  expect(of(3, 1, '4,6')).toEqual(['4', '6', '4']);
  expect(of(2, 1, '')).toEqual([null, null]);
  expect(() => of(1, 4, '0,1')).toThrow(
    /rollout\.tensor_model_parallel_size: expected at most the 2 GPUs .*got 4/,
  );
  // Training has the first ones and goes on while servers generate.
  expect(of(3, 1, '4,5,6,7', undefined, 2)).toEqual(['6', '7', '6']);
  expect(() => of(1, 2, undefined, 4, 3)).toThrow(
    /at most the 1 GPUs .*it has 4, and 3 are those of training.*got 2/,
  );
});

test('it is started, keeps its log, and ends', async () => {
  const server = managed('first');
  await server.ready(null, AbortSignal.timeout(20_000));
  const id = await pid(server);
  expect(readFileSync(log, 'utf8')).toBe('model first yes 1 3,5\n');
  await server.close();
  expect(alive(id)).toBe(false);
});

test.each([1, 2])('a port that is taken meanwhile, %d times: it is started on another', async (times) => {
  const ports = join(directory, `ports_${times}`);
  const server = managed(`taken ${times} ${ports}`);
  await server.ready(null, AbortSignal.timeout(20_000));
  expect(await pid(server)).toEqual(expect.any(Number));
  const tried = readFileSync(ports, 'utf8').trim().split('\n');
  expect(new Set(tried).size).toBe(times + 1);
});

test('a port that is taken each time is told with the end of the log', async () => {
  const ports = join(directory, 'ports_always');
  const server = managed(`taken 100 ${ports}`);
  await expect(server.ready(null, AbortSignal.timeout(20_000))).rejects.toThrow(
    /ended with exit code 1; the end of [\s\S]*EADDRINUSE/,
  );
  expect(readFileSync(ports, 'utf8').trim().split('\n')).toHaveLength(3);
});

test('one that is closed while it comes up is not started again, whatever its log says of ports', async () => {
  const server = managed('slow');
  const ended = expect(server.ready(null, AbortSignal.timeout(20_000))).rejects.toThrow(
    /ended with SIGTERM; [\s\S]*address already in use/,
  );
  const told = (): string => (existsSync(log) ? readFileSync(log, 'utf8') : '');
  while (!told().includes('in use')) await sleep(10);
  await server.close();
  await ended;
  expect(told().match(/^model slow/gm)).toHaveLength(1);
});

test('one that has died is started again with the weights of now', async () => {
  const server = managed('first');
  await server.ready(null, AbortSignal.timeout(20_000));
  const id = await pid(server);
  await server.client.json('GET', '/die', null).catch(() => undefined);
  while (alive(id)) await sleep(10);
  await server.ready('/weights/version_7', AbortSignal.timeout(20_000));
  expect(await pid(server)).not.toBe(id);
  expect(readFileSync(log, 'utf8')).toContain('model /weights/version_7 yes 1 3,5');
});

test('who asks for it at the same time gets one process, and a close that comes meanwhile ends it', async () => {
  const server = managed('first');
  const signal = AbortSignal.timeout(20_000);
  await Promise.all([server.ready(null, signal), server.ready('/weights/other', signal)]);
  expect(readFileSync(log, 'utf8')).toBe('model first yes 1 3,5\n');
  await server.close();
  const old = server.ready('/weights/old', signal);
  const ended = expect(old).rejects.toThrow(/ended with SIGTERM/);
  await server.close();
  await ended;
  await server.ready('/weights/new', signal);
  expect(readFileSync(log, 'utf8').trim().split('\n').at(-1)).toBe('model /weights/new yes 1 3,5');
});

test('one that ends before it answers is an error with the end of its log', async () => {
  await expect(managed('bad').ready(null, AbortSignal.timeout(20_000))).rejects.toThrow(
    /ended with exit code 3; the end of .*server\.log:\n[\s\S]*no such model/,
  );
  // Of a log that nobody has looked after for weeks, too. It takes no room: what was never written is a hole.
  truncateSync(log, 3 * 2 ** 30);
  await expect(managed('bad').ready(null, AbortSignal.timeout(20_000))).rejects.toThrow(
    /server\.log:\n[\s\S]*no such model/,
  );
  await expect(
    managed('first', ['/no/such/program']).ready(null, AbortSignal.timeout(20_000)),
  ).rejects.toThrow(
    /\/no\/such\/program ended with exit code 127; the end of .*server\.log:\n[\s\S]*not found/,
  );
});

// What has a server when it is killed itself.
const HOLDER = `
const [dist, options] = process.argv.slice(1);
const { GroupGuard } = require(dist + '/base/group_guard.js');
const { ManagedServer } = require(dist + '/rollout/remote/inference_server.js');
const { VllmProtocol } = require(dist + '/rollout/remote/vllm.js');
const server = new ManagedServer(new VllmProtocol(), JSON.parse(options), new GroupGuard());
server.ready(null, AbortSignal.timeout(20_000))
  .then(() => server.client.json('GET', '/health', null))
  .then((answer) => console.log(JSON.stringify(answer)));
`;

test('of a process that is killed neither a server nor what the server has started is left', async () => {
  const dist = resolve(__dirname, '../../../dist');
  const holder = spawn(process.execPath, ['-e', HOLDER, dist, JSON.stringify(options)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [line] = await once(holder.stdout.setEncoding('utf8'), 'data');
  const { pid: server, worker } = JSON.parse(line) as { pid: number; worker: number };
  expect([server, worker].map(running)).toEqual([true, true]);
  holder.kill('SIGKILL');
  while (running(server) || running(worker)) await sleep(10);
});
