// A run as loggers see it, with what they say and warn of, and a real HTTP server for those that send.
import { mkdtempSync } from 'node:fs';
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { resolve } from '../../ts/config/reading/resolve';
import type { Tree } from '../../ts/config/reading/tree';
import { loggingSection } from '../../ts/config/schema/logging_section';
import type { LoggedRun, LoggingConfig } from '../../ts/logging/run';

export const temporary = (): string => mkdtempSync(join(tmpdir(), 'logging-'));

export interface TestRun extends LoggedRun {
  said: string[];
  warned: string[];
}

interface RunOptions {
  directory?: string;
  firstStep?: number;
  logger?: string[];
  logging?: Tree;
  generations?: number;
  environment?: Record<string, string>;
  /** Of the record, beside what loggers look at. */
  record?: object;
}

export function loggingConfig(options: RunOptions = {}): LoggingConfig {
  const { tree } = resolve({ logging: loggingSection }, { logging: options.logging ?? {} });
  return {
    trainer: {
      logger: options.logger ?? [],
      project_name: 'sums',
      experiment_name: 'grpo-1',
      log_val_generations: options.generations ?? 0,
    },
    ...(tree as unknown as Pick<LoggingConfig, 'logging'>),
  };
}

export function loggedRun(options: RunOptions = {}): TestRun {
  const said: string[] = [];
  const warned: string[] = [];
  return {
    config: loggingConfig(options),
    record: { ...loggingConfig(options), ...options.record },
    directory: options.directory ?? temporary(),
    length: { firstStep: options.firstStep ?? 0, totalSteps: 10 },
    say: (line) => said.push(line),
    warn: (line) => warned.push(line),
    environment: options.environment ?? {},
    said,
    warned,
  };
}

export interface Recorded {
  method: string;
  path: string;
  headers: IncomingHttpHeaders;
  // biome-ignore lint/suspicious/noExplicitAny: what was sent is what the tests look into
  body: any;
}

/** `undefined`: the connection hangs until the server closes. */
export type Reply = { status?: number; json?: unknown; text?: string } | undefined;

export interface TestServer {
  url: string;
  /** All requests, in the order of their arrival. */
  requests: Recorded[];
  to(path: RegExp): Recorded[];
  close(): Promise<void>;
}

/** `reply` sees each request and how many came before it on the same path. */
export async function serve(reply: (request: Recorded, before: number) => Reply): Promise<TestServer> {
  const requests: Recorded[] = [];
  const server = createServer((request, response) => {
    let text = '';
    request.setEncoding('utf8');
    request.on('data', (part: string) => {
      text += part;
    });
    request.on('end', () => {
      const { method = '', url = '', headers } = request;
      const recorded = { method, path: url, headers, body: text === '' ? null : JSON.parse(text) };
      const before = requests.filter(({ path }) => path === url).length;
      requests.push(recorded);
      answer(response, reply(recorded, before));
    });
  });
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    to: (path) => requests.filter((request) => path.test(request.path)),
    close: () =>
      new Promise((done) => {
        server.close(() => done());
        server.closeAllConnections();
      }),
  };
}

function answer(response: ServerResponse, reply: Reply): void {
  if (reply === undefined) return;
  response.writeHead(reply.status ?? 200, { 'content-type': 'application/json' });
  response.end(reply.text ?? JSON.stringify(reply.json ?? {}));
}
