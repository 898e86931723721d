// Tools of MCP servers, started as programs (stdio) or reached by URL (streamable HTTP).
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { z } from 'zod';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import { ConfigError, TroupeError } from '../../errors';
import { packageVersion } from '../../install/package_root';
import type { Tool } from './tool';

const common = {
  /** Names of the tools to take; default: all. */
  tools: z.array(z.string()).nullish(),
  /** Seconds for one call; default: rollout.agent.tool_timeout. */
  timeout: z.number().gt(0).nullish(),
};
const settings = z.union([
  z.strictObject({
    command: z.string().min(1),
    args: z.array(z.string()).default([]),
    env: z.record(z.string(), z.string()).default({}),
    cwd: z.string().nullish(),
    ...common,
  }),
  z.strictObject({ url: z.url(), headers: z.record(z.string(), z.string()).default({}), ...common }),
]);
export type McpServerSettings = z.infer<typeof settings>;

const KEY = 'actor_rollout_ref.rollout.agent.mcp_servers';
const CONNECT_MS = 30_000;
/** What one answer may hold; what the model is told is cut again. */
const MAX_ANSWER = 8 * 2 ** 20;

/** @throws ConfigError naming the server */
export function mcpSettings(given: Readonly<Record<string, unknown>>): [string, McpServerSettings][] {
  return Object.entries(given).map(([name, value]) => {
    const parsed = settings.safeParse(value);
    if (parsed.success) return [name, parsed.data];
    throw new ConfigError(
      `${KEY}.${name}: expected {command, args?, env?, cwd?, tools?, timeout?} or {url, headers?, tools?, timeout?}: ` +
        `${parsed.error.issues[0]?.message}`,
      `${KEY}.${name}`,
    );
  });
}

/** One server; a connection that is lost is made anew at the next call. */
export class McpServer {
  private client: Promise<Client> | null = null;
  private readonly clients = new Set<Client>();

  constructor(
    readonly name: string,
    private readonly options: McpServerSettings,
  ) {}

  /** @throws TroupeError IO when the server does not start or answer */
  async tools(): Promise<Tool[]> {
    const wanted = this.options.tools ?? null;
    try {
      const client = await this.connected();
      const tools = await allTools(client);
      const missing = wanted?.find((name) => !tools.some((tool) => tool.name === name));
      if (missing !== undefined) {
        throw new Error(`it has no tool ${missing}, but ${tools.map(({ name }) => name).join(', ')}`);
      }
      return tools
        .filter(({ name }) => wanted === null || wanted.includes(name))
        .map(({ name, description = '', inputSchema }) => ({
          name,
          description,
          parameters: inputSchema as Record<string, unknown>,
          timeout: this.options.timeout ?? null,
          call: (args, { signal }) => this.call(name, args, signal),
        }));
    } catch (cause) {
      throw new TroupeError(
        'IO',
        `[agent] MCP server ${this.name}: ${printable(reasonOf(cause), { max: 1000 })}: check ${KEY}`,
        {
          cause,
        },
      );
    }
  }

  async close(): Promise<void> {
    this.client = null;
    await Promise.allSettled([...this.clients].map((client) => client.close()));
  }

  private async call(name: string, args: unknown, signal: AbortSignal): Promise<string> {
    const client = await this.connected();
    // Its own time-out never comes first: the toolbox counts.
    const result = await client.callTool({ name, arguments: args as Record<string, unknown> }, undefined, {
      signal,
      timeout: 2 ** 31 - 1,
    });
    const content = (result.content ?? []) as { type: string; text?: string }[];
    const text = content
      .map((part) => (part.type === 'text' ? (part.text ?? '') : `(${part.type})`))
      .join('\n')
      .slice(0, MAX_ANSWER);
    if (result.isError) throw new Error(text);
    return text;
  }

  private connected(): Promise<Client> {
    this.client ??= this.connect().catch((error: unknown) => {
      this.client = null;
      throw error;
    });
    return this.client;
  }

  private async connect(): Promise<Client> {
    const client = new Client({ name: 'troupe', version: packageVersion() });
    client.onclose = () => {
      this.clients.delete(client);
      this.client = null;
    };
    this.clients.add(client);
    await client.connect(this.transport(), { timeout: CONNECT_MS });
    return client;
  }

  private transport(): Transport {
    const { options } = this;
    if ('url' in options) {
      const http = new StreamableHTTPClientTransport(new URL(options.url), {
        requestInit: { headers: options.headers },
      });
      return http as Transport;
    }
    const { command, args, env, cwd } = options;
    return new StdioClientTransport({
      command,
      args,
      env: { ...(process.env as Record<string, string>), ...env },
      stderr: 'ignore',
      ...(cwd ? { cwd } : {}),
    });
  }
}

/** Of all pages: a server decides how many it tells at a time. */
async function allTools(client: Client): Promise<Awaited<ReturnType<Client['listTools']>>['tools']> {
  const tools = [];
  const seen = new Set<string>();
  let cursor: string | undefined;
  do {
    const page = await client.listTools(cursor === undefined ? undefined : { cursor }, {
      timeout: CONNECT_MS,
    });
    tools.push(...page.tools);
    cursor = page.nextCursor;
    if (cursor !== undefined && seen.has(cursor))
      throw new Error(`its list of tools has no end: page ${cursor} comes again`);
    if (cursor !== undefined) seen.add(cursor);
  } while (cursor !== undefined);
  return tools;
}
