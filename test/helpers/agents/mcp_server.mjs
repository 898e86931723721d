// An MCP server over stdio, or with a port as its argument over HTTP, with tools that behave and one that does not.
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
  return server;
}

if (process.argv[2] === undefined) {
  await made().connect(new StdioServerTransport());
} else {
  const http = createServer(async (request, response) => {
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, id: randomUUID() });
    await made().connect(transport);
    await transport.handleRequest(request, response);
  });
  http.listen(Number(process.argv[2]), '127.0.0.1', () => console.log(http.address().port));
}
