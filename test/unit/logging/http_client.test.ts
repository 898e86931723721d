import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { HttpClient, RefusedError } from '../../../ts/logging/http_client';

test('a server that has moved is named with where it is now, without what says who is asking', async () => {
  const server = createServer((request, response) => {
    const authorization = String(request.headers.authorization);
    response.writeHead(308, { location: `https://there/?from=${authorization}` }).end();
  });
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  try {
    const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const client = new HttpClient(base, { token: 'secret' }, 'THE_KEY');
    const error = await client
      .request('POST', '/api', {}, AbortSignal.timeout(10_000))
      .catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(RefusedError);
    expect((error as Error).message).toBe(
      `${base}/api answered 308 and sends to https://there/?from=Bearer ***: give the address there`,
    );
  } finally {
    server.close();
  }
});
