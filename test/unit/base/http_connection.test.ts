import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type AddressInfo, createServer as createTcpServer } from 'node:net';
import { AnswerTooLong, HttpConnection, NoAnswer } from '../../../ts/base/http_connection';

const ways: Record<string, (request: IncomingMessage, response: ServerResponse) => void> = {
  '/echo': async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    const { method, headers, socket } = request;
    response.statusCode = 418;
    response.end(JSON.stringify({ method, headers, body, port: socket.remotePort }));
  },
  '/moved': (_, response) => response.writeHead(307, { location: '/echo' }).end('there'),
  '/long': (_, response) => response.end('x'.repeat(1001)),
  '/breaks': (_, response) => {
    response.writeHead(200, { 'content-length': '10' });
    response.write('12345', () => response.destroy());
  },
  '/silent': () => undefined,
};

let server: Server;
let url: string;
beforeAll(async () => {
  server = createServer((request, response) => ways[request.url ?? '']?.(request, response));
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterAll(() => {
  server.closeAllConnections();
  server.close();
});

const ask = (path: string, signal?: AbortSignal) =>
  new HttpConnection(url).ask({ method: 'POST', path, body: '{"a":"ü"}', signal }, 1000);

test('what is sent arrives, whatever the status is, and one connection serves again', async () => {
  const connection = new HttpConnection(url);
  const request = { method: 'POST', path: '/echo', body: '{"a":"ü"}', headers: { accept: 'x/y' } } as const;
  const first = await connection.ask(request, 1000);
  const echo = JSON.parse(first.text);
  expect(first.status).toBe(418);
  expect(echo).toMatchObject({
    method: 'POST',
    body: '{"a":"ü"}',
    headers: { accept: 'x/y', 'content-type': 'application/json', 'content-length': '10' },
  });
  const { text } = await connection.ask({ method: 'GET', path: '/echo', body: null }, 1000);
  const again = JSON.parse(text);
  expect(again).toMatchObject({ method: 'GET', body: '', port: echo.port });
  expect(again.headers).not.toHaveProperty('content-type');
  connection.close();
});

test('a kept connection that the server closes as a request comes is no loss; one that was new is', async () => {
  const asked: number[] = [];
  let open = 0;
  // Every connection is good for one answer.
  const once = createTcpServer((socket) => {
    const connection = open++;
    let answered = false;
    socket.on('error', () => undefined);
    socket.on('data', () => {
      asked.push(connection);
      if (answered || connection > 1) return socket.destroy();
      answered = true;
      return socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok');
    });
  });
  await new Promise<void>((done) => once.listen(0, '127.0.0.1', done));
  const connection = new HttpConnection(`http://127.0.0.1:${(once.address() as AddressInfo).port}`);
  const request = { method: 'POST', body: '{}' } as const;
  expect(await connection.ask(request, 10)).toMatchObject({ status: 200, text: 'ok' });
  expect(await connection.ask(request, 10)).toMatchObject({ status: 200, text: 'ok' });
  expect(asked).toEqual([0, 0, 1]);
  await expect(connection.ask(request, 10)).rejects.toThrow(/hang up|ECONNRESET/);
  expect(asked).toEqual([0, 0, 1, 1, 2]);
  connection.close();
  await new Promise((done) => once.close(done));
});

test('a redirection is an answer', async () => {
  expect(await ask('/moved')).toEqual({ status: 307, location: '/echo', text: 'there' });
});

test('an answer that is too long is not read to its end', async () => {
  const error = await ask('/long').catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(AnswerTooLong);
  expect((error as Error).message).toBe('an answer of more than 1000 bytes');
});

test.each([
  ['breaks off', () => ask('/breaks'), /^aborted$|terminated|hang up/],
  ['is silent', () => ask('/silent', AbortSignal.timeout(100)), /The operation was aborted due to timeout$/],
  ['is given up', () => ask('/silent', AbortSignal.abort(new Error('enough'))), /^enough$/],
  [
    'is not there',
    () => new HttpConnection('http://127.0.0.1:1').ask({ method: 'GET', body: null }, 10),
    /^connect ECONNREFUSED 127\.0\.0\.1:1$/,
  ],
  [
    'is not there under any address of its name',
    () => new HttpConnection('http://localhost:1').ask({ method: 'GET', body: null }, 10),
    /ECONNREFUSED/,
  ],
])('a server that %s: no answer, and why', async (_, attempt, reason) => {
  const error = await attempt().catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(NoAnswer);
  expect((error as Error).message).toMatch(reason);
});

test.each(['', 'host:80', 'ftp://host', '/path'])('%j is no server', (bad) => {
  expect(() => new HttpConnection(bad)).toThrow(/not a URL of http or https/);
});
