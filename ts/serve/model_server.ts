// A model behind the APIs of OpenAI and Anthropic: its routes, health and metrics.
import { packageVersion } from '../install/package_root';
import { answerMessages, countTokens, messagesError } from './anthropic/messages';
import type { Dialect } from './call/answer';
import { ApiError } from './call/api_error';
import type { RunningCall } from './call/model_call';
import type { ServedModel } from './call/served_model';
import { type HttpOptions, HttpServer, type Route } from './http/http_server';
import { answerChat } from './openai/chat';
import { answerCompletions } from './openai/completions';
import { parseJson } from './openai/fields';
import { modelEntry, modelList } from './openai/models';
import { answerResponses } from './openai/responses';
import { errorBody } from './openai/usage';
import { ServeMetrics } from './serve_metrics';

const MODELS = '/v1/models/';

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
    const post = (path: string, dialect: Dialect, error: Route['errorBody'] = errorBody): Route => ({
      method: 'POST',
      path,
      answer: ({ body, signal }) =>
        dialect(this.model, parseJson(body), signal, { onCall: (call) => this.count(call, signal) }),
      errorBody: error,
    });
    return [
      post('/v1/chat/completions', answerChat),
      post('/v1/completions', answerCompletions),
      post('/v1/responses', answerResponses),
      post('/v1/messages', answerMessages, messagesError),
      post('/v1/messages/count_tokens', countTokens, messagesError),
      get('/v1/models', false, async () => ({ body: modelList(this.model) })),
      get(MODELS, false, async ({ path }) => ({ body: modelEntry(this.model, path.slice(MODELS.length)) })),
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

  private async health(): Promise<{ body: unknown }> {
    try {
      const { version } = await this.model.engine.stats();
      return { body: { status: 'ok', weight_version: version } };
    } catch (error) {
      throw new ApiError(503, `the engine does not answer: ${(error as Error).message}`);
    }
  }
}
