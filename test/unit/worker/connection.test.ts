import type { AddressInfo } from 'node:net';
import { createServer as createPlain, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { createServer, type TlsOptions } from 'node:tls';
import { Connection } from '../../../ts/worker/connection';
import { sharedKey, tlsOptions } from '../../../ts/worker/transport';

// Whoever listens where the controller should be: the dialling end says nothing to one that has not got the token of the run.

const TOKEN = 'f4c1'.repeat(16);
let server: Server | null = null;
afterEach(() => server?.close());

/** What a server has got, in the clear and after a handshake. */
interface Got {
  raw: Buffer[];
  inside: Buffer[];
}

async function listen(listener: Server): Promise<string> {
  server = listener;
  await new Promise<void>((done) => listener.listen(0, '127.0.0.1', done));
  return `127.0.0.1:${(listener.address() as AddressInfo).port}`;
}

/** Dials, until the connection has ended or something was said. */
function dial(controller: string): Promise<{ reason: string | null; said: number }> {
  let said = 0;
  return new Promise((done) => {
    const connection = new Connection<{ type: string }, { type: string; from: string }>({
      controller,
      token: TOKEN,
      identity: 'host',
      hello(from) {
        said++;
        return { type: 'hello', from };
      },
      receive: () => {
        done({ reason: null, said });
        connection.end();
      },
      active: () => {
        done({ reason: null, said });
        connection.end();
      },
      closed: (reason) => done({ reason, said }),
    });
  });
}

/** A server that takes in what it can, and answers what comes out of a handshake. */
function tlsServer(options: TlsOptions, got: Got): Server {
  const listener = createServer({ dhparam: 'auto', ...options }, (socket) => {
    socket.on('error', () => {});
    socket.on('data', (bytes: Buffer) => {
      got.inside.push(bytes);
      socket.write('x');
    });
  });
  listener.on('tlsClientError', (_error, socket) => socket.destroy());
  listener.on('connection', (socket: Socket) => socket.on('error', () => {}));
  return listener;
}

const withKey = (token: string): TlsOptions => ({ ...tlsOptions, pskCallback: () => sharedKey(token) });

test('the token of the run: greeted', async () => {
  const got: Got = { raw: [], inside: [] };
  const address = await listen(tlsServer(withKey(TOKEN), got));
  expect(await dial(address)).toEqual({ reason: null, said: 1 });
  expect(Buffer.concat(got.inside).length).toBeGreaterThan(0);
});

const impostors: [string, TlsOptions][] = [
  ['another token', withKey('abcd'.repeat(16))],
  ['no key at all, in TLS 1.2', { ciphers: 'aNULL:@SECLEVEL=0', maxVersion: 'TLSv1.2' }],
  ['a key under TLS 1.3', { pskCallback: () => sharedKey(TOKEN), minVersion: 'TLSv1.3' }],
  ['the key for a cipher that hides nothing', { ...withKey(TOKEN), ciphers: 'PSK-NULL-SHA256:@SECLEVEL=0' }],
];
test.each(impostors)('a server with %s is told nothing', async (_, options) => {
  const got: Got = { raw: [], inside: [] };
  const address = await listen(tlsServer(options, got));
  const { reason, said } = await dial(address);
  expect([said, got.inside]).toEqual([0, []]);
  expect(reason).not.toBeNull();
});

test.each([
  ['nonsense', 'HTTP/1.1 200 OK\r\n\r\n'],
  ['what it was sent', null],
])('a server that answers %s is told nothing, and never sees the token', async (_, answer) => {
  const got: Got = { raw: [], inside: [] };
  const address = await listen(
    createPlain((socket) => {
      socket.on('error', () => {});
      socket.on('data', (bytes) => {
        got.raw.push(bytes as Buffer);
        socket.write(answer ?? bytes);
      });
    }),
  );
  const { reason, said } = await dial(address);
  expect([said, reason]).toEqual([0, expect.any(String)]);
  const sent = Buffer.concat(got.raw);
  expect(sent.length).toBeGreaterThan(0);
  expect([sent.includes(TOKEN), sent.includes(sharedKey(TOKEN))]).toEqual([false, false]);
});

test('a greeting that cannot be made ends the connection, and says why', async () => {
  const got: Got = { raw: [], inside: [] };
  const controller = await listen(tlsServer(withKey(TOKEN), got));
  const reason = await new Promise((closed) => {
    const unused = { receive: () => {}, active: () => {} };
    const hello = (): never => {
      throw new Error('the network is gone');
    };
    new Connection<{ type: string }, never>({
      controller,
      token: TOKEN,
      identity: 'host',
      hello,
      closed,
      ...unused,
    });
  });
  expect([reason, got.inside]).toEqual(['the network is gone', []]);
});

test('one that takes the connection and says nothing is not waited for without end', async () => {
  const quiet = createServer({ dhparam: 'auto', ...withKey(TOKEN) }, (socket) =>
    socket.on('error', () => {}),
  );
  const controller = await listen(quiet);
  const reason = await new Promise((closed) => {
    const unused = { receive: () => {}, active: () => {}, answerMs: 300 };
    const hello = () => ({ type: 'hello' });
    new Connection({ controller, token: TOKEN, identity: 'host', hello, closed, ...unused });
  });
  expect(reason).toBe('no answer');
});

test('its silence after the first answer is no reason to end a connection', async () => {
  const greeting = createServer({ dhparam: 'auto', ...withKey(TOKEN) }, (socket) => {
    socket.on('error', () => {});
    // A frame's first byte, and no more for a while.
    socket.once('data', () => socket.write(Buffer.of(1)));
  });
  const controller = await listen(greeting);
  let reason: string | null = null;
  const heard = new Promise<Connection<{ type: string }, { type: string }>>((active) => {
    const connection = new Connection<{ type: string }, { type: string }>({
      controller,
      token: TOKEN,
      identity: 'host',
      hello: () => ({ type: 'hello' }),
      closed: (why) => {
        reason = why;
      },
      receive: () => {},
      active: () => active(connection),
      answerMs: 2000,
    });
  });
  const connection = await heard;
  await sleep(3000);
  expect(reason).toBeNull();
  connection.drop('enough');
});
