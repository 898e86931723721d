// Tools of MCP servers, started as programs (stdio) or reached by URL (streamable HTTP).
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import {
  StreamableHTTPClientTransport,
  StreamableHTTPError,
} from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { ErrorCode, McpError } from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';
import { printable } from '../../base/printable';
import { reasonOf, toJson } from '../../base/text';
import { ConfigError, TroupeError } from '../../errors';
import { packageVersion } from '../../install/package_root';
import { type Tool, type ToolContext, ToolResult } from './tool';

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
/** Whose servers they are, to those who read errors, and what they may need to start. */
export interface McpServerPlace {
  /** What the server is called. */
  title: string;
  /** The key of the configuration. */
  key: string;
  connectMs: number;
  /** Whether what a program writes to its standard error is shown. */
  showsErrors: boolean;
}
const placeOf = (name: string): McpServerPlace => ({
  title: `MCP server ${name}`,
  key: KEY,
  connectMs: 30_000,
  showsErrors: false,
});
const PING_MS = 5_000;
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

/** A client of the server, from the moment that it begins. */
interface Session {
  client: Client;
  ready: Promise<void>;
}

/** One server; a session that is lost is begun anew: at the next call, or, where the server says that it is, by the call that was told so. */
export class McpServer {
  private current: Session | null = null;
  private readonly clients = new Set<Client>();
  /** Whose servers are being asked whether they are there. */
  private readonly doubted = new WeakSet<Client>();

  constructor(
    readonly name: string,
    private readonly options: McpServerSettings,
    private readonly place: McpServerPlace = placeOf(name),
  ) {}

  /** @throws TroupeError IO when the server does not start or answer */
  async tools(): Promise<Tool[]> {
    const wanted = this.options.tools ?? null;
    try {
      const tools = await this.ask((client) => allTools(client, this.place.connectMs));
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
          call: (args, context) => this.call(name, args, context),
        }));
    } catch (cause) {
      const reason = reasonOf(cause).replace(/^MCP error -?\d+: /, '');
      const { title, key } = this.place;
      throw new TroupeError('IO', `[agent] ${title}: ${printable(reason, { max: 1000 })}: check ${key}`, {
        cause,
      });
    }
  }

  /** The answer; the metadata of call and answer carry what the protocol has no place for, for servers of ours. */
  async call(
    name: string,
    args: unknown,
    { signal, createKwargs }: ToolContext,
  ): Promise<string | ToolResult> {
    const params = {
      name,
      arguments: args as Record<string, unknown>,
      ...(Object.keys(createKwargs).length > 0 ? { _meta: { create_kwargs: createKwargs } } : {}),
    };
    // Its own time-out never comes first: the toolbox counts.
    const options = { signal, timeout: 2 ** 31 - 1 };
    const result = await this.ask((client) => client.callTool(params, undefined, options));
    const text = textOf(result as McpResult).slice(0, MAX_ANSWER);
    if (result.isError) throw new Error(text);
    const reward = result._meta?.['reward'];
    return typeof reward === 'number' ? new ToolResult(text, reward) : text;
  }

  async close(): Promise<void> {
    this.current = null;
    await Promise.allSettled([...this.clients].map((client) => client.close()));
  }

  /** Once more in a new session, when the server does not know the one that it was asked in. */
  private async ask<Result>(question: (client: Client) => Promise<Result>): Promise<Result> {
    const session = this.session();
    await session.ready;
    try {
      return await question(session.client);
    } catch (error) {
      if (!isLost(session.client, error)) throw error;
      // Not closed here: other calls wait in it, and each is to hear for itself that it is lost.
      this.forget(session.client);
      const next = this.session();
      await next.ready;
      return question(next.client);
    }
  }

  private session(): Session {
    this.current ??= this.begin();
    return this.current;
  }

  private begin(): Session {
    const client = new Client({ name: 'troupe', version: packageVersion() });
    client.onclose = () => {
      this.clients.delete(client);
      this.forget(client);
    };
    client.onerror = () => this.doubt(client);
    this.clients.add(client);
    const ready = client
      .connect(this.transport(), { timeout: this.place.connectMs })
      .catch((error: unknown) => {
        this.forget(client);
        throw error;
      });
    return { client, ready };
  }

  /** Over HTTP nobody tells a call that the stream its answer was to come in is cut. Where its server is gone no answer will come, and the calls that wait are told. */
  private doubt(client: Client): void {
    if (!(client.transport instanceof StreamableHTTPClientTransport) || this.doubted.has(client)) return;
    this.doubted.add(client);
    client
      .ping({ timeout: PING_MS })
      .catch((error: unknown) => {
        const answered = error instanceof McpError && error.code !== ErrorCode.RequestTimeout;
        return answered ? undefined : client.close();
      })
      .finally(() => this.doubted.delete(client));
  }

  /** A client may end long after the next one began. */
  private forget(client: Client): void {
    if (this.current?.client === client) this.current = null;
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
      stderr: this.place.showsErrors ? 'inherit' : 'ignore',
      ...(cwd ? { cwd } : {}),
    });
  }
}

/** What a call gave, as far as it is text here. */
interface McpResult {
  content?: readonly McpPart[];
  structuredContent?: unknown;
}
interface McpPart {
  type: string;
  text?: string;
  /** Of a resource link. */
  uri?: string;
  /** A file that comes along: its text, or bytes. */
  resource?: { text?: string };
}

/** A server should, but need not, give an answer that has a schema as text, too. */
function textOf({ content = [], structuredContent }: McpResult): string {
  if (content.length === 0 && structuredContent !== undefined) return toJson(structuredContent);
  return content
    .map(({ type, text, uri, resource }) => text ?? resource?.text ?? uri ?? `(${type})`)
    .join('\n');
}

/** By the protocol a server answers 404 to a session that it does not know; its own package says 400 as long as none has begun. */
function isLost(client: Client, error: unknown): boolean {
  return (
    client.transport?.sessionId !== undefined &&
    error instanceof StreamableHTTPError &&
    (error.code === 404 || error.code === 400)
  );
}

/** Of all pages: a server decides how many it tells at a time. */
async function allTools(
  client: Client,
  timeout: number,
): Promise<Awaited<ReturnType<Client['listTools']>>['tools']> {
  const tools = [];
  const seen = new Set<string>();
  let cursor: string | undefined;
  do {
    const page = await client.listTools(cursor === undefined ? undefined : { cursor }, { timeout });
    tools.push(...page.tools);
    cursor = page.nextCursor;
    if (cursor !== undefined && seen.has(cursor))
      throw new Error(`its list of tools has no end: page ${cursor} comes again`);
    if (cursor !== undefined) seen.add(cursor);
  } while (cursor !== undefined);
  return tools;
}
