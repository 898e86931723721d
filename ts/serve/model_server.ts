// A model behind the OpenAI API: its routes, health and metrics.
import { packageVersion } from '../install/package_root';
import type { Dialect } from './call/answer';
import { ApiError } from './call/api_error';
import type { RunningCall } from './call/model_call';
import type { ServedModel } from './call/served_model';
import { type HttpOptions, HttpServer, type Route } from './http/http_server';
import { answerChat } from './openai/chat';
import { answerCompletions } from './openai/completions';
import { parseJson } from './openai/fields';
import { errorBody } from './openai/usage';
import { ServeMetrics } from './serve_metrics';

export type ModelServerOptions = Omit<HttpOptions, 'onDone'>;

export class ModelServer {
  private readonly http: HttpServer;
  private readonly metrics: ServeMetrics;

  constructor(
    private readonly model: ServedModel,
    options: ModelServerOptions,
  ) {
    this.metrics = new ServeMetrics(model.engine);
    this.http = new HttpServer(this.routes(), { ...options, onDone: (done) => this.metrics.done(done) });
  }

  /** Resolves to its URL. @throws TroupeError IO when the port is not to be had */
  listen(): Promise<string> {
    return this.http.listen();
  }

  /** Requests that run have a while to end. The engine stays open. */
  close(): Promise<void> {
    return this.http.close();
  }

  private routes(): Route[] {
    const get = (path: string, open: boolean, answer: Route['answer']): Route => ({
      method: 'GET',
      path,
      open,
      answer,
      errorBody,
    });
    const post = (path: string, dialect: Dialect): Route => ({
      method: 'POST',
      path,
      answer: ({ body, signal }) =>
        dialect(this.model, parseJson(body), signal, { onCall: (call) => this.count(call, signal) }),
      errorBody,
    });
    return [
      post('/v1/chat/completions', answerChat),
      post('/v1/completions', answerCompletions),
      get('/v1/models', false, async () => ({ body: { object: 'list', data: [this.entry()] } })),
      get('/v1/models/', false, async ({ path }) => ({ body: this.entryOf(path) })),
      get('/health', true, () => this.health()),
      get('/version', true, async () => ({ body: { version: packageVersion() } })),
      get('/metrics', true, async () => this.metrics.text()),
    ];
  }

  /** When its request is over, also where its client has left. What the engine failed at counts for nothing. */
  private count(call: RunningCall, signal: AbortSignal): void {
    const over = new Promise<void>((resolve) => {
      if (signal.aborted) resolve();
      else signal.addEventListener('abort', () => resolve(), { once: true });
    });
    void over
      .then(() => call.cost())
      .then(
        (cost) => this.metrics.record(cost),
        () => undefined,
      );
  }

  private entry(): object {
    const { name, created, engine } = this.model;
    return { id: name, object: 'model', created, owned_by: 'troupe', max_model_len: engine.maxTokens };
  }

  private entryOf(path: string): object {
    const asked = unescaped(path.slice('/v1/models/'.length));
    if (asked === this.model.name) return this.entry();
    throw new ApiError(404, `there is no model ${JSON.stringify(asked)} here`, 'model', 'model_not_found');
  }

  private async health(): Promise<{ body: unknown }> {
    try {
      const { version } = await this.model.engine.stats();
      return { body: { status: 'ok', weight_version: version } };
    } catch (error) {
      throw new ApiError(503, `the engine does not answer: ${(error as Error).message}`);
    }
  }
}

function unescaped(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
