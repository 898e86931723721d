import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ManagedServer } from '../../../ts/rollout/remote/inference_server';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';
import { serverGpus } from '../../../ts/trainer/server_gpus';

// A program that is started as a server of vLLM would be.
const PROGRAM = `
const args = process.argv.slice(2);
const of = (name) => args[args.indexOf(name) + 1];
console.log('model', of('--model'), of('--extra'), process.env.VLLM_SERVER_DEV_MODE, process.env.CUDA_VISIBLE_DEVICES);
if (of('--model') === 'bad') { console.error('no such model'); process.exit(3); }
require('node:http').createServer((request, response) => {
  if (request.url === '/die') process.exit(9);
  response.end('{"pid":' + process.pid + '}');
}).listen(Number(of('--port')), of('--host'));
`;

const directory = mkdtempSync(join(tmpdir(), 'troupe-managed-'));
const log = join(directory, 'logs', 'server.log');
writeFileSync(join(directory, 'server.cjs'), PROGRAM);
const servers: ManagedServer[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) await server.close();
  rmSync(log, { force: true });
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

function managed(model: string, command = [process.execPath, join(directory, 'server.cjs')]): ManagedServer {
  const server = new ManagedServer(new VllmProtocol(), {
    model,
    dtype: 'float32',
    maxTokens: 64,
    maxConcurrency: 8,
    seed: 1,
    tensorParallel: 1,
    releases: false,
    command,
    args: ['--extra', 'yes'],
    gpus: '3,5',
    log,
  });
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

test('each server has GPUs of its own, as long as there are some', () => {
  const of = (servers: number, each: number, visible?: string, there?: number) =>
    serverGpus(servers, each, visible === undefined ? {} : { CUDA_VISIBLE_DEVICES: visible }, there);
  expect(of(2, 2, undefined, 4)).toEqual(['0,1', '2,3']);
  expect(of(2, 2, 'GPU-a, GPU-b,GPU-c,GPU-d')).toEqual(['GPU-a,GPU-b', 'GPU-c,GPU-d']);
  expect(of(3, 1, '4,6')).toEqual(['4', '6', '4']);
  expect(of(2, 1, '')).toEqual([null, null]);
  expect(() => of(1, 4, '0,1')).toThrow(
    /rollout\.tensor_model_parallel_size: expected at most the 2 GPUs .*got 4/,
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

test('one that has died is started again with the weights of now', async () => {
  const server = managed('first');
  await server.ready(null, AbortSignal.timeout(20_000));
  const id = await pid(server);
  await server.client.json('GET', '/die', null).catch(() => undefined);
  for (let i = 0; i < 200 && alive(id); i++) await new Promise((resolve) => setTimeout(resolve, 10));
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
  await expect(
    managed('first', ['/no/such/program']).ready(null, AbortSignal.timeout(20_000)),
  ).rejects.toThrow(/\/no\/such\/program could not be started/);
});
