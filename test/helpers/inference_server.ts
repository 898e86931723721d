// An inference server whose answers are given, for what talks to servers.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface Call {
  method: string;
  path: string;
  // biome-ignore lint/suspicious/noExplicitAny: bodies are looked at field by field.
  body: any;
}

export type Respond = (call: Call, response: ServerResponse) => unknown;

export class FakeInferenceServer {
  readonly calls: Call[] = [];
  /** That were ever opened. */
  connections = 0;

  private constructor(
    private readonly server: Server,
    readonly url: string,
  ) {}

  /** What `respond` returns is sent as JSON; undefined: it has answered by itself. */
  static async start(respond: Respond, port = 0): Promise<FakeInferenceServer> {
    let fake: FakeInferenceServer;
    const server = createServer((request, response) => {
      void read(request).then(async (body) => {
        const call = { method: request.method as string, path: request.url as string, body };
        fake.calls.push(call);
        const answer = await respond(call, response);
        if (answer !== undefined) response.end(JSON.stringify(answer));
      });
    });
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', () => resolve()));
    server.on('connection', () => fake.connections++);
    fake = new FakeInferenceServer(server, `http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    return fake;
  }

  paths(): string[] {
    return this.calls.map(({ path }) => path);
  }

  /** As if its machine had lost its power. */
  async kill(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }
}

export function sendEvents(response: ServerResponse, events: readonly unknown[]): void {
  for (const event of events) response.write(`data: ${JSON.stringify(event)}\n\n`);
}

async function read(request: IncomingMessage): Promise<unknown> {
  let text = '';
  request.setEncoding('utf8');
  for await (const chunk of request) text += chunk;
  return text === '' ? null : JSON.parse(text);
}
