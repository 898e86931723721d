import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Bm25Index } from '../../../ts/agent/search_r1/bm25_index';
import { RetrieverClient } from '../../../ts/agent/search_r1/retriever_client';
import { RetrieverServer } from '../../../ts/agent/search_r1/retriever_server';
import { sendAll } from '../../helpers/send_all';

const directory = mkdtempSync(join(tmpdir(), 'troupe-retriever-'));
afterAll(() => rmSync(directory, { recursive: true }));

const passages = [
  { id: 'a', contents: '"Arvel"\nThe mayor of Arvel is Anna Weil.' },
  { id: 'b', contents: '"Brunsk"\nThe mayor of Brunsk is Otto Çelik. Otto is old.' },
  {
    id: 'c',
    contents:
      '"Bridges"\nArvel has a bridge, and a longer text about salt and other goods that are sold there.',
  },
];
const corpus = (rows: readonly unknown[], name = 'corpus.jsonl'): string => {
  const path = join(directory, name);
  writeFileSync(path, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  return path;
};

describe('BM25', () => {
  test('the scores are those of the formula', () => {
    const index = new Bm25Index();
    for (const passage of passages) index.add(passage);
    // Robertson and Zaragoza: idf * f (k + 1) / (f + k (1 - b + b * length / mean length)), idf = ln(1 + (N - n + .5) / (n + .5)).
    const words = (text: string): string[] => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
    const lengths = passages.map(({ contents }) => new Set(words(contents)).size);
    const mean = lengths.reduce((a, b) => a + b) / 3;
    const score = (i: number, term: string): number => {
      const f = words(passages[i]?.contents as string).filter((word) => word === term).length;
      const n = passages.filter(({ contents }) => words(contents).includes(term)).length;
      const idf = Math.log(1 + (3 - n + 0.5) / (n + 0.5));
      return (idf * f * 1.9) / (f + 0.9 * (0.6 + (0.4 * (lengths[i] as number)) / mean));
    };
    const hits = index.search('mayor Otto', 10);
    expect(hits.map(({ document }) => document.id)).toEqual(['b', 'a']);
    expect(hits[0]?.score).toBeCloseTo(score(1, 'mayor') + score(1, 'otto'), 6);
    expect(hits[1]?.score).toBeCloseTo(score(0, 'mayor'), 6);
  });

  test('case and diacritics do not matter; unknown words and empty queries find nothing', async () => {
    const index = await Bm25Index.open([corpus(passages)]);
    expect(index.search('CELIK', 3).map(({ document }) => document.id)).toEqual(['b']);
    expect(index.search('zebra', 3)).toEqual([]);
    expect(index.search('  \n', 3)).toEqual([]);
    expect(index.search('arvel mayor', 1)).toHaveLength(1);
  });

  test('rows with title and text become contents', async () => {
    const index = await Bm25Index.open([corpus([{ title: 'T', text: 'words here' }], 'titles.jsonl')]);
    expect(index.search('words', 1)[0]?.document).toEqual({ id: '0', contents: '"T"\nwords here' });
  });

  test('a row without a text is an error with its place', async () => {
    const path = corpus([passages[0], { id: 1 }], 'bad.jsonl');
    await expect(Bm25Index.open([path])).rejects.toThrow(/bad\.jsonl.*2.*expected \{id, contents\}/);
  });
});

describe('the server', () => {
  let server: RetrieverServer;
  beforeAll(async () => {
    const index = await Bm25Index.open([corpus(passages)]);
    server = await RetrieverServer.start(index, { host: '127.0.0.1', port: 0, topk: 2 });
  });
  afterAll(() => server.close());
  const post = async (body: string): Promise<{ status: number; body: unknown }> => {
    const response = await fetch(server.url, { method: 'POST', body });
    return { status: response.status, body: await response.json() };
  };

  test('answers as the one of Search-R1: with scores, and without', async () => {
    const scored = await post(
      JSON.stringify({ queries: ['bridge', 'nobody'], topk: 1, return_scores: true }),
    );
    expect(scored).toEqual({
      status: 200,
      body: { result: [[{ document: passages[2], score: expect.any(Number) }], []] },
    });
    const bare = await post(JSON.stringify({ queries: ['mayor'] }));
    expect(bare.body).toEqual({
      result: [[expect.objectContaining({ id: 'a' }), expect.objectContaining({ id: 'b' })]],
    });
  });

  test('our client reads it', async () => {
    const client = new RetrieverClient({ url: server.url, topk: 1 });
    expect(await Promise.all([client.search('otto'), client.search('salt')])).toEqual([
      [passages[1]],
      [passages[2]],
    ]);
  });

  test.each([
    ['no JSON', 400, '{'],
    ['no queries', 422, '{}'],
    ['a query that is no text', 422, '{"queries":[1]}'],
    ['topk 0', 422, '{"queries":[],"topk":0}'],
  ])('%s is refused with %i', async (_, status, body) => {
    expect((await post(body)).status).toBe(status);
  });

  test('a body that is too large is refused with 413, however it comes', async () => {
    const body = Buffer.alloc(30_000_000, 'x');
    const head = (length: string): string => `POST /retrieve HTTP/1.1\r\nhost: x\r\n${length}\r\n\r\n`;
    const whole = head(`content-length: ${body.length}`);
    expect(await sendAll(server.url, whole, body)).toBe('HTTP/1.1 413 Payload Too Large');
    const chunk = [`${body.length.toString(16)}\r\n`, body, '\r\n0\r\n\r\n'].map((part) => Buffer.from(part));
    expect(await sendAll(server.url, head('transfer-encoding: chunked'), Buffer.concat(chunk))).toBe(
      'HTTP/1.1 413 Payload Too Large',
    );
  });

  test.each([
    ['GET //', 400],
    ['GET /', 404],
    ['GET /retrieve', 405],
    ['POST /health', 404],
  ])('%s is answered with %i', async (line, status) => {
    const answer = await sendAll(server.url, `${line} HTTP/1.1\r\nhost: x\r\n\r\n`, Buffer.alloc(0));
    expect(answer).toMatch(`HTTP/1.1 ${status} `);
  });

  test('a port that is taken is an error', async () => {
    const { port } = new URL(server.url);
    const second = RetrieverServer.start(new Bm25Index(), { host: '127.0.0.1', port: Number(port), topk: 1 });
    await expect(second).rejects.toThrow(/cannot listen on .*EADDRINUSE/);
  });
});
