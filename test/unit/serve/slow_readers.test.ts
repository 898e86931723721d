import type { Server } from 'node:http';
import { Duplex } from 'node:stream';
import { HttpServer, type Route } from '../../../ts/serve/http/http_server';

const STALL_MS = 1000;
const TEXT = '~'.repeat(1 << 20);

/** A connection whose other end takes what was written when it is told to. */
class HeldConnection extends Duplex {
  text = '';
  private release: (() => void) | null = null;

  constructor(...requests: string[]) {
    super();
    for (const path of requests) this.push(`GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`);
  }

  override _read(): void {}

  override _write(chunk: Buffer, _: BufferEncoding, done: () => void): void {
    this._writev([{ chunk }], done);
  }

  override _writev(chunks: { chunk: Buffer }[], done: () => void): void {
    this.release = () => {
      for (const { chunk } of chunks) this.text += chunk.toString();
      done();
    };
  }

  /** What was written at once; false: nothing was. */
  takeOne(): boolean {
    const { release } = this;
    this.release = null;
    release?.();
    return release !== null;
  }
}

const lettersOf = ({ text }: HeldConnection): number => text.match(/~/g)?.length ?? 0;

const settle = async (): Promise<void> => {
  for (let i = 0; i < 5; i++) await new Promise((resolve) => setImmediate(resolve));
};

/** A server without a port, and the paths and statuses of what is over. */
function serverOf(answers: Record<string, Route['answer']>) {
  const routes = Object.entries(answers).map(
    ([path, answer]): Route => ({ method: 'GET', path, answer, errorBody: ({ message }) => ({ message }) }),
  );
  const done: [string, number][] = [];
  const limits = { apiKeys: [], maxBodyBytes: 1, maxRequests: 9, stallMs: STALL_MS, graceMs: 1 };
  const onDone = ({ path, status }: { path: string; status: number }) => done.push([path, status]);
  const http = new HttpServer(routes, { host: '', port: 0, ...limits, onDone });
  const connect = (connection: Duplex) =>
    (http as unknown as { server: Server }).server.emit('connection', connection);
  return { connect, done };
}

const answers: Record<string, Route['answer']> = {
  '/whole': async () => ({ body: { text: TEXT } }),
  '/event': async () => ({
    events: (async function* () {
      yield { data: TEXT };
    })(),
  }),
};

beforeEach(() => {
  jest.useFakeTimers({ doNotFake: ['setImmediate', 'nextTick', 'queueMicrotask', 'setInterval'] });
});
afterEach(() => {
  jest.useRealTimers();
});

test.each(['/whole', '/event'])('%s: a reader that takes on has all the time that it needs', async (path) => {
  const { connect, done } = serverOf(answers);
  const connection = new HeldConnection(path);
  connect(connection);
  await settle();
  let waited = 0;
  while (connection.takeOne()) {
    await settle();
    jest.advanceTimersByTime(0.9 * STALL_MS);
    waited += 0.9 * STALL_MS;
    await settle();
  }
  expect(waited).toBeGreaterThan(10 * STALL_MS);
  expect(lettersOf(connection)).toBe(TEXT.length);
  expect(done).toEqual([[path, 200]]);
  connection.destroy();
});

test.each(['/whole', '/event'])('%s: a reader that pauses in the middle is given up', async (path) => {
  const { connect, done } = serverOf(answers);
  const connection = new HeldConnection(path);
  connect(connection);
  await settle();
  for (let i = 0; i < 5; i++) {
    expect(connection.takeOne()).toBe(true);
    await settle();
  }
  jest.advanceTimersByTime(STALL_MS - 1);
  await settle();
  expect([connection.destroyed, done]).toEqual([false, []]);
  jest.advanceTimersByTime(1);
  await settle();
  expect([connection.destroyed, done]).toEqual([true, [[path, 499]]]);
});

test('an answer that waits for the one before it on its connection has not been refused', async () => {
  let finish = (): void => undefined;
  const long = new Promise<void>((resolve) => {
    finish = resolve;
  });
  const { connect, done } = serverOf({
    ...answers,
    '/long': async () => {
      await long;
      return { text: 'at last', type: 'text/plain' };
    },
  });
  const connection = new HeldConnection('/long', '/whole');
  connect(connection);
  await settle();
  for (let i = 0; i < 5; i++) {
    jest.advanceTimersByTime(STALL_MS);
    await settle();
  }
  finish();
  do await settle();
  while (connection.takeOne());
  expect([connection.text.includes('at last'), lettersOf(connection)]).toEqual([true, TEXT.length]);
  expect(done).toEqual([
    ['/long', 200],
    ['/whole', 200],
  ]);
  connection.destroy();
});
