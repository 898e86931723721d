// An MCP server over stdio, or with a port as its argument over HTTP, with tools that behave and one that does not. With a status
// as its second argument it keeps sessions, and answers those that it does not know with that.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

const text = (value) => ({ content: [{ type: 'text', text: String(value) }] });

function made() {
  const server = new McpServer({ name: 'test', version: '1' });
  const numbers = { a: z.number(), b: z.number() };
  server.registerTool('add', { description: 'Adds two numbers', inputSchema: numbers }, async ({ a, b }) =>
    text(a + b),
  );
  server.registerTool('die', { description: 'Ends its process' }, async () => process.exit(1));
  server.registerTool('fail', { description: 'Fails' }, async () => ({ ...text('no luck'), isError: true }));
  server.registerTool(
    'hang',
    { description: 'Never answers' },
    async () => await new Promise(() => undefined),
  );
  server.registerTool('flood', { description: 'Tells 4 MB' }, async () => text('x'.repeat(4 * 2 ** 20)));
  server.registerTool(
    'count',
    { description: 'Tells what has a schema', outputSchema: { sum: z.number() } },
    async () => ({ content: [], structuredContent: { sum: 3 } }),
  );
  const [uri, name] = ['file:///a.txt', 'a.txt'];
  server.registerTool('read', { description: 'Gives files' }, async () => ({
    content: [
      { type: 'text', text: 'of 2:' },
      { type: 'resource', resource: { uri, text: 'alpha' } },
      { type: 'resource', resource: { uri, blob: 'AAAA' } },
      { type: 'resource_link', uri, name },
    ],
  }));
  return server;
}

const sessions = new Map();

/** The transport of the session that a request names, or of a new one. null: it names one that nobody knows. */
async function transportOf(request, status) {
  if (status === undefined) {
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, id: randomUUID() });
    await made().connect(transport);
    return transport;
  }
  const id = request.headers['mcp-session-id'];
  if (id !== undefined) return sessions.get(id) ?? null;
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (made) => sessions.set(made, transport),
  });
  await made().connect(transport);
  return transport;
}

const [port, status] = process.argv.slice(2);
if (port === undefined) {
  await made().connect(new StdioServerTransport());
} else {
  const http = createServer(async (request, response) => {
    const transport = await transportOf(request, status);
    if (transport !== null) await transport.handleRequest(request, response);
    else response.writeHead(Number(status)).end();
  });
  http.listen(Number(port), '127.0.0.1', () => console.log(http.address().port));
}
