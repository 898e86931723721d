import { once } from 'node:events';
import { connect as connectTcp } from 'node:net';
import { PassThrough } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { connect, type TLSSocket } from 'node:tls';
import { ControllerServer } from '../../../ts/controller/server';
import { FrameWriter } from '../../../ts/worker/frames';
import type { WorkerMessage } from '../../../ts/worker/protocol';
import { sharedKey, tlsOptions } from '../../../ts/worker/transport';

// The listening end alone: connections are made here, as a worker would or would not make them.

const TOKEN = 'the token of this run';
const GARBAGE = Buffer.from([9, 0, 0, 0, 1, 0, 0, 0, ...Buffer.from('what else')]);

let server: ControllerServer;
let log: string[];
let events: string[];
beforeEach(async () => {
  const ownLog: string[] = [];
  const own: string[] = [];
  [log, events] = [ownLog, own];
  server = await ControllerServer.listen({
    worldSize: 2,
    token: TOKEN,
    heartbeatMs: 1000,
    log: (line) => ownLog.push(line),
    onConnect: ({ rank }) => own.push(`connect ${rank}`),
    onMessage: (rank, { type }) => own.push(`${type} of ${rank}`),
    onLanding: () => {},
    onActivity: () => {},
    onDisconnect: (rank, fault) => own.push(`disconnect ${rank}: ${fault}`),
  });
});
afterEach(() => server.close());

const port = (): number => Number(server.address.split(':')[1]);

async function dial(token = TOKEN): Promise<TLSSocket> {
  const socket = connect({
    ...tlsOptions,
    host: '127.0.0.1',
    port: port(),
    pskCallback: () => ({ psk: sharedKey(token), identity: 'rank 0' }),
    checkServerIdentity: () => undefined,
  });
  socket.resume();
  await once(socket, 'secureConnect');
  return socket;
}

const hello = (socket: TLSSocket, rank: number): void =>
  new FrameWriter<WorkerMessage>(socket).send({ type: 'hello', rank, pid: 1 });

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
}

test('garbage with the right token is refused, and the run goes on', async () => {
  const stranger = await dial();
  stranger.write(GARBAGE);
  await once(stranger, 'close');
  expect(log).toHaveLength(1);
  expect(log[0]).toMatch(
    /^refused a worker connection from 127\.0\.0\.1:\d+: it sent what is no message: a head of 9 bytes$/,
  );
  hello(await dial(), 0);
  await until(() => events.length > 0);
  expect(events).toEqual(['connect 0']);
});

test('garbage from a rank is the end of that rank, with the reason', async () => {
  const socket = await dial();
  hello(socket, 1);
  await until(() => events.length > 0);
  socket.write(GARBAGE);
  await once(socket, 'close');
  expect(events).toEqual([
    'connect 1',
    expect.stringMatching(/^disconnect 1: it sent what is no message: a head of 9 bytes$/),
  ]);
});

test.each([
  [
    'a first message that is no hello',
    { type: 'heartbeat' },
    "its first message was 'heartbeat', not 'hello'",
  ],
  ['a rank out of range', { type: 'hello', rank: 2, pid: 1 }, 'it claims rank 2 of a group of 2'],
] as const)('%s is refused', async (_what, message, reason) => {
  const socket = await dial();
  new FrameWriter<WorkerMessage>(socket).send(message);
  await once(socket, 'close');
  expect(log).toEqual([expect.stringContaining(reason)]);
  expect(events).toEqual([]);
});

test('what one that is refused says behind that is not heard, also where it comes at once', async () => {
  const socket = await dial();
  const both = new PassThrough();
  const writer = new FrameWriter<WorkerMessage>(both);
  writer.send({ type: 'heartbeat' });
  writer.send({ type: 'hello', rank: 0, pid: 1 });
  both.end();
  socket.write(await buffer(both));
  await once(socket, 'close');
  expect(events).toEqual([]);
});

test('a second worker of the same rank is refused, and the first one stays', async () => {
  hello(await dial(), 0);
  await until(() => events.length > 0);
  const second = await dial();
  hello(second, 0);
  await once(second, 'close');
  expect(log).toEqual([expect.stringContaining('rank 0 is connected already')]);
  expect(events).toEqual(['connect 0']);
});

test('strangers fill neither the memory nor the log', async () => {
  await expect(dial('guess')).rejects.toThrow();
  const strangers = Array.from({ length: 40 }, () => connectTcp(port(), '127.0.0.1'));
  for (const stranger of strangers) {
    stranger.on('error', () => {}).resume();
    stranger.write('GET / HTTP/1.1\r\n\r\n');
  }
  await Promise.all(strangers.map((stranger) => once(stranger, 'close')));
  expect(log).toHaveLength(5);
  server.close();
  expect(log).toHaveLength(6);
  expect(log[0]).toContain('it did not present the token of this run');
  expect(log[5]).toMatch(/it did not present the token of this run \(and 35 more\)$/);
});
