// The server of the page: who may look, under which name, at what; and that it only reads.
import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { request } from 'node:http';
import { hostname, networkInterfaces, tmpdir } from 'node:os';
import { join } from 'node:path';
import { Access } from '../../../ts/ui/access';
import { UiServer } from '../../../ts/ui/server';
import { writeRun } from '../../helpers/synthetic_runs.mjs';

const TOKEN = 'a-token-of-tests';
const root = mkdtempSync(join(tmpdir(), 'ui-server-'));
const page = mkdtempSync(join(tmpdir(), 'ui-page-'));
let server: UiServer;

beforeAll(async () => {
  writeRun(join(root, 'a'), { steps: 60 });
  writeRun(join(root, 'b c'), { steps: 60, seed: 2 });
  writeFileSync(join(root, 'secret'), 'secret');
  mkdirSync(join(page, 'assets'));
  writeFileSync(join(page, 'index.html'), '<!doctype html><title>page</title>');
  writeFileSync(join(page, 'assets', 'x.js'), 'export {}');
  server = await UiServer.open({ directory: root, host: '127.0.0.1', port: 0, token: TOKEN, page });
});
afterAll(() => server.close());

interface Answer {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  text: string;
}

/** As it is written: fetch would put paths in order, and has a Host of its own. */
function get(
  path: string,
  headers: Record<string, string> = {},
  method = 'GET',
  of = server,
): Promise<Answer> {
  const { port } = new URL(of.origin);
  return new Promise((resolve, reject) => {
    request({ host: '127.0.0.1', port, path, method, headers }, (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (part) => {
        text += part;
      });
      response.on('end', () =>
        resolve({ status: response.statusCode ?? 0, headers: response.headers, text }),
      );
    })
      .on('error', reject)
      .end();
  });
}
const bearer = { authorization: `Bearer ${TOKEN}` };
// biome-ignore lint/suspicious/noExplicitAny: what comes is what is tested.
const json = async (path: string): Promise<any> => JSON.parse((await get(path, bearer)).text);

describe('access', () => {
  test.each([
    ['nothing', {}],
    ['another token', { authorization: 'Bearer wrong' }],
    ['an empty one', { authorization: 'Bearer ' }],
    ['another cookie', { cookie: 'troupe_ui_1=x' }],
  ])('with %s: 401 for everything', async (_, headers) => {
    for (const path of ['/', '/api/runs', '/api/live', '/assets/x.js', '/none'])
      expect([path, (await get(path, headers as Record<string, string>)).status]).toEqual([path, 401]);
  });

  test('a wrong token in the address: 401 and no cookie', async () => {
    const { status, headers } = await get('/?token=wrong');
    expect([status, headers['set-cookie']]).toEqual([401, undefined]);
  });

  test('the right one becomes a cookie and leaves the address', async () => {
    const { status, headers } = await get(`/?token=${TOKEN}`);
    expect([status, headers['location'], headers['referrer-policy']]).toEqual([303, '/', 'no-referrer']);
    const [cookie] = headers['set-cookie'] as string[];
    expect(cookie).toMatch(/; HttpOnly; SameSite=Strict; Path=\/$/);
    expect(cookie).not.toContain(TOKEN);
    const [value] = (cookie as string).split(';');
    expect((await get('/', { cookie: `other=1; ${value}` })).text).toContain('page');
    expect((await get('/', { cookie: `${value}x` })).status).toBe(401);
  });

  test('a page whose name has been pointed here is not answered', async () => {
    for (const host of ['evil.example', 'evil.example:80', '127.0.0.1.evil.example', 'a b'])
      expect([host, (await get('/api/runs', { ...bearer, host })).status]).toEqual([host, 421]);
    for (const host of ['localhost:1', '127.0.0.1', '[::1]:9'])
      expect([host, (await get('/api/runs', { ...bearer, host })).status]).toEqual([host, 200]);
  });

  test('on another address: numbers and the name of the machine, too', () => {
    const access = new Access({ host: '0.0.0.0', token: TOKEN });
    expect(
      ['10.0.0.7:8420', `${hostname()}:1`, 'localhost', 'evil.example'].map((host) => access.knowsHost(host)),
    ).toEqual([true, true, true, false]);
    const domains = [
      `${hostname().toUpperCase()}.cluster.example:1`,
      `${hostname()}x.example`,
      `x.${hostname()}`,
    ];
    expect(domains.map((host) => access.knowsHost(host))).toEqual([true, false, false]);
    const near = new Access({ host: '127.0.0.1', token: TOKEN });
    expect(near.knowsHost(`${hostname()}.cluster.example`)).toBe(false);
  });

  test.each(['0.0.0.0', '::'])(
    'that of %s is one that others reach it at, where there is one',
    async (host) => {
      const everywhere = await UiServer.open({ directory: root, host, port: 0, token: TOKEN, page });
      try {
        const { hostname: shown } = new URL(everywhere.address);
        const outward = Object.values(networkInterfaces())
          .flatMap((list = []) => list)
          .filter(({ internal }) => !internal)
          .map(({ address, family }) => (family === 'IPv6' ? `[${address}]` : address));
        expect(outward.length === 0 ? ['127.0.0.1'] : outward).toContain(shown);
        const answer = await fetch(`${everywhere.origin}/api/runs`, { headers: bearer });
        expect([answer.status, (await answer.text()).length > 0]).toEqual([200, true]);
        expect((await fetch(`${everywhere.origin}/api/runs`)).status).toBe(401);
      } finally {
        await everywhere.close();
      }
    },
  );

  test('without a token on loopback addresses only', async () => {
    const open = await UiServer.open({ directory: root, host: '127.0.0.1', port: 0, token: null, page });
    expect((await get('/api/runs', {}, 'GET', open)).status).toBe(200);
    expect(open.address).toBe(`${open.origin}/`);
    await open.close();
    await expect(
      UiServer.open({ directory: root, host: '0.0.0.0', port: 0, token: null, page }),
    ).rejects.toThrow(/loopback/);
  });

  test('tokens are long and never the same', () => {
    const tokens = Array.from({ length: 50 }, () => Access.newToken());
    expect(new Set(tokens).size).toBe(50);
    expect(Math.min(...tokens.map(({ length }) => length))).toBeGreaterThanOrEqual(32);
  });
});

/** The first news that `wanted` takes, of what is written while a page is open. */
function news(wanted: RegExp, path: string): Promise<string> {
  const { port } = new URL(server.origin);
  return new Promise((resolve, reject) => {
    let text = '';
    const asked = request({ host: '127.0.0.1', port, path, headers: bearer }, (response) => {
      response.setEncoding('utf8');
      response.on('error', () => undefined);
      response.on('data', (part) => {
        text += part;
        const [found] = wanted.exec(text) ?? [];
        if (found === undefined) return;
        resolve(found);
        asked.destroy();
      });
    });
    asked.on('error', reject).end();
  });
}

describe('runs that come and go', () => {
  const idsOf = (runs: { id: string }[]): string[] => runs.map(({ id }) => id).sort();

  test('are listed as they are, also while no page is open', async () => {
    writeRun(join(root, 'later'), { steps: 3 });
    expect(idsOf(await json('/api/runs'))).toEqual(['a', 'b c', 'later']);
    rmSync(join(root, 'later'), { recursive: true });
    expect(idsOf(await json('/api/runs'))).toEqual(['a', 'b c']);
  });

  test('one that goes is told to pages, though somebody else has looked before', async () => {
    writeRun(join(root, 'going'), { steps: 3 });
    expect(idsOf(await json('/api/runs'))).toEqual(['a', 'b c', 'going']);
    const told = news(/"gone":\["going"\]/, '/api/live');
    await news(/hello/, '/api/live');
    rmSync(join(root, 'going'), { recursive: true });
    expect(idsOf(await json('/api/runs'))).toEqual(['a', 'b c']);
    expect(await told).toBe('"gone":["going"]');
  });

  test('what a run stands at is told to a page that listens later than another one', async () => {
    writeRun(join(root, 'shared'), { steps: 3 });
    await json('/api/run?run=shared');
    const first = news(/"step":78,/, '/api/live?run=shared');
    await news(/"id":"shared".*"stamp":\{/, '/api/live?run=shared');
    // It has had its answer, and the first page hears before it listens.
    await json('/api/run?run=shared');
    appendFileSync(join(root, 'shared', 'metrics.jsonl'), '{"step":78}\n');
    expect(await first).toBe('"step":78,');
    expect(await news(/"id":"shared".*"stamp":\{/, '/api/live?run=shared')).toContain('"step":78,');
    rmSync(join(root, 'shared'), { recursive: true });
  });

  test('one with a sample that cannot be read does not end the server', async () => {
    writeRun(join(root, 'deep'), { steps: 3 });
    expect((await json('/api/samples?run=deep')).total).toBeGreaterThan(0);
    const told = news(/"step":77,/, '/api/live?run=a&run=deep');
    const nested = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
    writeFileSync(join(root, 'deep', 'samples', '4.jsonl'), `{"step":4,"input":${nested}}\n`);
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    rmSync(join(root, 'deep'), { recursive: true });
    appendFileSync(join(root, 'a', 'metrics.jsonl'), '{"step":77}\n');
    expect(await told).toBe('"step":77,');
    expect(idsOf(await json('/api/runs'))).toEqual(['a', 'b c']);
  });

  test('one whose directory becomes a file does not end the server', async () => {
    writeRun(join(root, 'odd'), { steps: 3 });
    await json('/api/run?run=odd');
    const told = news(/"gone":\["odd"\]/, '/api/live?run=odd');
    await news(/"stamp":\{/, '/api/live?run=odd');
    rmSync(join(root, 'odd'), { recursive: true });
    writeFileSync(join(root, 'odd'), '');
    expect(await told).toBe('"gone":["odd"]');
    rmSync(join(root, 'odd'));
  });
});

describe('what it answers', () => {
  test('only reads', async () => {
    for (const method of ['POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS'])
      expect([method, (await get('/api/runs', bearer, method)).status]).toEqual([method, 405]);
  });

  test('HEAD is answered with the headers alone, and is no page that is open', async () => {
    for (const path of ['/', '/api/runs', '/api/csv?run=a&name=critic/score/mean', '/api/live?run=a']) {
      const { status, text } = await get(path, bearer, 'HEAD');
      expect([path, status, text]).toEqual([path, 200, '']);
    }
    const { headers } = await get('/api/live', bearer, 'HEAD');
    expect([headers['content-type'], server.watched]).toEqual(['text/event-stream', false]);
  });

  test('every answer forbids what the page does not need', async () => {
    for (const path of ['/', '/none', '/api/runs']) {
      const { headers } = await get(path, bearer);
      const policy = String(headers['content-security-policy']);
      expect(policy).toContain("default-src 'none'; script-src 'self'; style-src 'self'");
      expect(policy).not.toContain('unsafe');
      expect(headers['x-content-type-options']).toBe('nosniff');
      expect(headers['access-control-allow-origin']).toBeUndefined();
    }
  });

  test('no way out of the directory: 404', async () => {
    symlinkSync('/etc', join(root, 'etc'));
    const paths = [
      '/../secret',
      '/%2e%2e/secret',
      '/assets/../../secret',
      '/assets/..%2f..%2fsecret',
      '/secret',
      '//etc/passwd',
      '/api/../secret',
      '/api/__proto__',
      '/api/constructor',
    ];
    for (const path of paths) expect([path, (await get(path, bearer)).status]).toEqual([path, 404]);
    for (const id of ['..', '../..', '/etc', 'etc', 'a/..', 'a/../a', '.', 'a\0', '%2e%2e', 'a/samples'])
      for (const what of ['run', 'config', 'samples', 'tokens', 'trace', 'plan', 'events'])
        expect([id, what, (await get(`/api/${what}?run=${encodeURIComponent(id)}`, bearer)).status]).toEqual([
          id,
          what,
          404,
        ]);
    const key = encodeURIComponent('../../secret@0');
    expect((await get(`/api/sample?run=a&key=${key}`, bearer)).status).toBe(404);
  });

  test('runs, one run, its curves and the rest', async () => {
    expect((await json('/api/runs')).map(({ id }: { id: string }) => id).sort()).toEqual(['a', 'b c']);
    expect(await json('/api/run?run=b%20c')).toMatchObject({ summary: { step: 60 }, hasPlan: true });
    const [first, second] = await json(
      '/api/series?run=a&run=b%20c&run=none&name=critic/score/mean&name=none&points=20',
    );
    expect([first.run, second.run, first.series[0].x.length]).toEqual(['a', 'b c', expect.any(Number)]);
    expect(first.series[0].x.length).toBeLessThanOrEqual(20);
    expect((await json('/api/samples?run=a&kind=train&limit=3')).rows).toHaveLength(3);
    expect((await json('/api/sparklines?run=a&run=none')).map(({ id }: { id: string }) => id)).toEqual(['a']);
    expect((await json('/api/trace?run=a&from=30&to=31')).lines).toHaveLength(2);
    expect((await json('/api/events?run=a')).length).toBeGreaterThan(2);
  });

  test('a metric as a file: every value of every run, exact, in the range', async () => {
    const { headers, text } = await get(
      '/api/csv?run=a&run=b%20c&run=none&name=critic/score/mean&from=3&to=59.5&smoothing=0.5',
      bearer,
    );
    expect(headers['content-disposition']).toBe('attachment; filename="critic_score_mean.csv"');
    const lines = text.trim().split('\r\n');
    expect(lines[0]).toBe('run,step,value,smoothed');
    expect(lines.length).toBe(1 + 2 * 57);
    const [run, step, value, smooth] = (lines[1] as string).split(',');
    const written = readFileSync(join(root, 'a/metrics.jsonl'), 'utf8').split('\n')[2] as string;
    expect([run, step, value]).toEqual(['a', '3', String(JSON.parse(written)['critic/score/mean'])]);
    expect(Number(smooth)).not.toBe(Number(value));
    expect(lines.at(-1)).toMatch(/^b c,59,/);
  });

  test.each([
    'csv?run=a',
    'csv?run=a&name=x&name=y',
    'series?run=a',
    'series?run=a&name=x&points=-1',
    'series?run=a&name=x&smoothing=2',
    'samples?run=a&limit=100000',
    'samples?run=a&order=no',
    'tokens?run=a&step=Infinity',
  ])('what makes no sense is a 400 with a reason: %s', async (path) => {
    const { status, text } = await get(`/api/${path}`, bearer);
    expect([status, text.length > 5]).toEqual([400, true]);
  });
});

test('a directory that is none, a port in use and a page that is not built say so', async () => {
  const options = { directory: root, host: '127.0.0.1', port: 0, page };
  await expect(UiServer.open({ ...options, directory: join(root, 'none') })).rejects.toThrow(
    /expected a directory with runs/,
  );
  await expect(UiServer.open({ ...options, directory: __filename })).rejects.toThrow(
    /server\.test\.ts: expected a directory with runs: .* is not a directory/,
  );
  await expect(UiServer.open({ ...options, port: Number(new URL(server.origin).port) })).rejects.toThrow(
    /is in use/,
  );
  await expect(UiServer.open({ ...options, page: root })).rejects.toThrow(/npm run build/);
});
