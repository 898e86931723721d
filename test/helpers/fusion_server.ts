import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { PythonSandbox } from '../../ts/reward/code/python_sandbox';

export interface FusionRequest {
  code: string;
  language: string;
  stdin: string;
  run_timeout: number;
  compile_timeout: number;
  memory_limit_MB: number;
}

/** Answers one request in its own way; null: as a sound server does. */
export type Misbehaviour = (response: ServerResponse, count: number) => boolean;

/** Speaks the API of Sandbox Fusion, POST /run_code, over a real sandbox; counts what it is asked. */
export class FusionServer {
  readonly requests: FusionRequest[] = [];
  /** The most requests that were open at once. */
  most = 0;
  misbehave: Misbehaviour = () => false;
  private open = 0;
  private constructor(
    private readonly server: Server,
    private readonly sandbox: PythonSandbox,
  ) {}

  static async start(sandbox: PythonSandbox): Promise<FusionServer> {
    const server = createServer();
    const fusion = new FusionServer(server, sandbox);
    server.on('request', (request, response) => void fusion.serve(request, response));
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    return fusion;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((done) => this.server.close(done));
  }

  private async serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.most = Math.max(this.most, ++this.open);
    response.once('close', () => this.open--);
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    if (request.method !== 'POST' || request.url !== '/run_code') {
      response.writeHead(404).end('not found');
      return;
    }
    const body = JSON.parse(Buffer.concat(chunks).toString()) as FusionRequest;
    this.requests.push(body);
    if (this.misbehave(response, this.requests.length)) return;
    const { status, stdout, stderr } = await this.sandbox.run(body);
    const timeout = status === 'timeout';
    const answer = {
      status: status === 'finished' ? 'Success' : 'Failed',
      message: '',
      compile_result: null,
      run_result: {
        status: timeout ? 'TimeLimitExceeded' : 'Finished',
        execution_time: 0.1,
        return_code: timeout ? null : status === 'finished' ? 0 : 1,
        stdout,
        stderr,
      },
      files: {},
    };
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(answer));
  }
}
