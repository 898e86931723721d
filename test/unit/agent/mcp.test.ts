// Tools of MCP servers: the real protocol, with servers in processes of their own.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { McpServer, mcpSettings } from '../../../ts/agent/tools/mcp';
import { Toolbox } from '../../../ts/agent/tools/toolbox';
import { until } from '../../helpers/counting_servers';

const program = join(__dirname, '../../helpers/agents/mcp_server.mjs');
let url: string;
const servers: McpServer[] = [];
const processes: ChildProcess[] = [];

/** A server over HTTP, and the port that it has. */
async function listening(...args: string[]): Promise<{ http: ChildProcess; port: string }> {
  const http = spawn(process.execPath, [program, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  processes.push(http);
  const port = await new Promise<string>((resolve) =>
    http.stdout?.once('data', (part) => resolve(String(part).trim())),
  );
  return { http, port };
}

beforeAll(async () => {
  url = `http://127.0.0.1:${(await listening('0')).port}/mcp`;
});
afterAll(async () => {
  await Promise.all(servers.map((server) => server.close()));
  for (const one of processes) one.kill();
});

const open = (settings: Record<string, unknown>): McpServer => {
  const [[name, options]] = mcpSettings({ test: settings }) as [[string, never]];
  const server = new McpServer(name, options);
  servers.push(server);
  return server;
};
const boxOf = async (server: McpServer, timeout = 60): Promise<Toolbox> =>
  new Toolbox(
    await server.tools(),
    { timeout, maxResponseLength: 100, truncateSide: 'right' },
    new AbortController().signal,
    () => 0,
  );

describe.each([
  ['stdio', () => ({ command: process.execPath, args: [program] })],
  ['HTTP', () => ({ url })],
])('an MCP server over %s', (kind, settings) => {
  test('gives its tools with their schemas, and answers', async () => {
    const server = open(settings());
    const box = await boxOf(server);
    const names = ['add', 'die', 'fail', 'hang', 'flood', 'count', 'read'];
    expect(box.schemas.map(({ function: { name } }) => name)).toEqual(names);
    expect(box.schemas[0]?.function.parameters).toMatchObject({ type: 'object', required: ['a', 'b'] });
    expect(await box.call('add', { a: 17, b: 25 })).toMatchObject({ text: '42', error: null });
    expect(await box.call('fail', {})).toMatchObject({ error: 'no luck' });
    expect((await (await boxOf(server, 0.5)).call('hang', {})).error).toMatch(/no answer within 0.5 s/);
    expect((await box.call('flood', {})).text).toBe(`${'x'.repeat(100)}...(truncated)`);
    expect(await box.call('add', { a: 1, b: 2 })).toMatchObject({ text: '3' });
    expect(await box.call('count', {})).toMatchObject({ text: '{"sum":3}', error: null });
    const files = ['of 2:', 'alpha', '(resource)', 'file:///a.txt'];
    expect(await box.call('read', {})).toMatchObject({ text: files.join('\n'), error: null });
  });

  if (kind === 'stdio') {
    test('that ends its process costs one call; the next starts it again', async () => {
      const box = await boxOf(open(settings()));
      expect((await box.call('die', {})).error).toMatch(/closed/i);
      expect(await box.call('add', { a: 1, b: 2 })).toMatchObject({ text: '3', error: null });
    });
  }
});

test.each(['404', '400'])(
  'a server over HTTP that was started again, and answers %s to sessions of before, is asked in a new one',
  async (status) => {
    const { http, port } = await listening('0', status);
    const box = await boxOf(open({ url: `http://127.0.0.1:${port}/mcp` }));
    expect(await box.call('add', { a: 1, b: 2 })).toMatchObject({ text: '3', error: null });
    const ended = once(http, 'exit');
    http.kill();
    await ended;
    await listening(port, status);
    const answers = await Promise.all([1, 2, 3].map((a) => box.call('add', { a, b: 1 })));
    expect(answers).toMatchObject([2, 3, 4].map((sum) => ({ text: String(sum), error: null })));
  },
);

test('a call whose server over HTTP dies is told at once', async () => {
  const { http, port } = await listening('0');
  const box = await boxOf(open({ url: `http://127.0.0.1:${port}/mcp` }));
  const hung = box.call('hang', {});
  // By the time that this is answered, the stream of the first is open.
  await box.call('add', { a: 1, b: 2 });
  const ended = once(http, 'exit');
  expect((await box.call('die', {})).error).toMatch(/closed|fetch failed/i);
  expect((await hung).error).toMatch(/closed|fetch failed/i);
  await ended;
  await listening(port);
  expect(await box.call('add', { a: 1, b: 2 })).toMatchObject({ text: '3', error: null });
});

test('an address that answers 404 to everybody is asked once', async () => {
  let asked = 0;
  const none = createServer((_, response) => {
    asked++;
    response.writeHead(404).end('no such page');
  });
  await new Promise<void>((resolve) => none.listen(0, '127.0.0.1', resolve));
  const { port } = none.address() as AddressInfo;
  await expect(open({ url: `http://127.0.0.1:${port}/mcp` }).tools()).rejects.toThrow(/no such page/);
  expect(asked).toBe(1);
  none.close();
});

test('a client that ends late does not take the newer one with it', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-mcp-'));
  // The first start refuses to begin, and ends a while after it is told to. Each start is a line of the file, each end another one.
  const code = `
    import { appendFileSync, existsSync } from 'node:fs';
    const first = !existsSync('starts');
    appendFileSync('starts', 'start\\n');
    if (!first) await import(${JSON.stringify(program)});
    else {
      process.stdin.once('data', (line) => {
        const error = { code: -32000, message: 'not yet' };
        console.log(JSON.stringify({ jsonrpc: '2.0', id: JSON.parse(line).id, error }));
      });
      process.stdin.on('end', () => setTimeout(() => appendFileSync('starts', 'end\\n'), 300));
    }`;
  const server = open({
    command: process.execPath,
    args: ['--input-type=module', '-e', code],
    cwd: directory,
  });
  await expect(server.tools()).rejects.toThrow(/not yet/);
  const box = await boxOf(server);
  const told = (): string => readFileSync(join(directory, 'starts'), 'utf8');
  await until('end of the first', () => told().includes('end'), told);
  // Time to hear of it; with less this test passes in any case.
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(await box.call('add', { a: 1, b: 2 })).toMatchObject({ text: '3', error: null });
  expect(told().match(/start/g)).toHaveLength(2);
  rmSync(directory, { recursive: true });
});

test('only the tools that are named are taken', async () => {
  const settings = { command: process.execPath, args: [program], tools: ['add'] };
  expect((await open(settings).tools()).map(({ name }) => name)).toEqual(['add']);
  await expect(open({ ...settings, tools: ['sub'] }).tools()).rejects.toThrow(
    /it has no tool sub, but add, die/,
  );
});

test.each([
  ['no such program', { command: '/no/such/program' }, /MCP server test: .*ENOENT/],
  [
    'a program that is no server',
    { command: process.execPath, args: ['-e', ''] },
    /MCP server test: .*closed/i,
  ],
])('%s is an error that names the server', async (_, settings, message) => {
  await expect(open(settings).tools()).rejects.toThrow(message);
});

test.each([[{}], [{ command: 1 }], [{ url: 'x' }], [{ command: 'x', arg: [] }]])(
  'settings %j are refused',
  (settings) => {
    expect(() => mcpSettings({ files: settings })).toThrow(/mcp_servers\.files: expected \{command/);
  },
);

test.each([
  [3, ['t0', 't1', 't2'], null],
  [Number.POSITIVE_INFINITY, null, /no end: page 1 comes again/],
])('a server that tells its tools page by page (%d)', async (pages, names, error) => {
  const code = `
    import { Server } from '@modelcontextprotocol/sdk/server/index.js';
    import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
    import { ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';
    const server = new Server({ name: 'pages', version: '1' }, { capabilities: { tools: {} } });
    server.setRequestHandler(ListToolsRequestSchema, ({ params }) => {
      const page = Number(params?.cursor ?? 0);
      const next = ${pages} === Infinity ? 1 : page + 1;
      return {
        tools: [{ name: 't' + page, inputSchema: { type: 'object' } }],
        ...(next < ${pages} ? { nextCursor: String(next) } : {}),
      };
    });
    await server.connect(new StdioServerTransport());`;
  const settings = { command: process.execPath, args: ['--input-type=module', '-e', code] };
  const told = open({ ...settings, cwd: join(__dirname, '../../..') }).tools();
  if (error !== null) await expect(told).rejects.toThrow(error);
  else expect((await told).map(({ name }) => name)).toEqual(names);
});
