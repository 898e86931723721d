// An API server of Kubernetes as far as kubectl needs it to bring a run to a cluster, watch it and take it away: HTTPS with a certificate and
// a bearer token of its own, over objects in memory. It does what it is told: what becomes of the objects is up to its controllers.
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import yaml from 'js-yaml';
import { admit } from './admission';
import {
  ApiError,
  type Change,
  type Draft,
  type KubeObject,
  labelSelector,
  type ObjectStore,
} from './objects';
import { apiVersionOf, describeApi, openApiV2, RESOURCES, type Resource } from './resources';

/** What a pod has said. */
export interface PodLogs {
  /** @throws ApiError while it has not said anything and cannot yet */
  text(pod: KubeObject): string;
  /** Calls `say` with all that it has said and says; resolves when it has ended, or `signal` aborts. */
  follow(pod: KubeObject, say: (text: string) => void, signal: AbortSignal): Promise<void>;
}

/** A request to a resource. */
interface Target {
  resource: Resource;
  namespace: string | null;
  name: string | null;
  sub: string | null;
  query: URLSearchParams;
}

const PATH =
  /^\/(?:api|apis\/([^/]+))\/(v[^/]+)(?:\/namespaces\/([^/]+))?\/([^/]+)(?:\/([^/]+))?(?:\/([^/]+))?$/;

export class ApiServer {
  readonly token = randomBytes(16).toString('hex');
  /** What was asked for, for those who want to know why something did not come. */
  readonly requests: string[] = [];
  private readonly server: Server;

  /** `directory`: for its key and certificate. */
  static async start(directory: string, store: ObjectStore, logs: PodLogs): Promise<ApiServer> {
    const api = new ApiServer(directory, store, logs);
    await new Promise<void>((done) => api.server.listen(0, '127.0.0.1', done));
    return api;
  }

  private constructor(
    private readonly directory: string,
    private readonly store: ObjectStore,
    private readonly logs: PodLogs,
  ) {
    const [key, certificate] = [join(directory, 'key.pem'), this.certificate];
    const made = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2'];
    const named = ['-subj', '/CN=troupe-test', '-addext', 'subjectAltName=IP:127.0.0.1'];
    execFileSync('openssl', ['req', '-x509', ...made, ...named, '-keyout', key, '-out', certificate], {
      stdio: 'ignore',
    });
    this.server = createServer(
      { key: readFileSync(key), cert: readFileSync(certificate) },
      (request, response) => {
        this.serve(request, response).catch((error: unknown) => {
          const { code, reason, message } =
            error instanceof ApiError ? error : new ApiError(500, 'InternalError', String(error));
          this.requests.push(`  ${code} ${message}`);
          if (response.headersSent) response.destroy();
          else
            answer(
              response,
              { kind: 'Status', apiVersion: 'v1', status: 'Failure', code, reason, message },
              code,
            );
        });
      },
    );
  }

  /** The file of the certificate, which signs itself. */
  get certificate(): string {
    return join(this.directory, 'certificate.pem');
  }

  get url(): string {
    return `https://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  stop(): void {
    this.server.close();
    this.server.closeAllConnections();
  }

  private async serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname, searchParams: query } = new URL(request.url as string, this.url);
    this.requests.push(`${request.method} ${request.url}`);
    if (request.headers.authorization !== `Bearer ${this.token}`)
      throw new ApiError(401, 'Unauthorized', 'Unauthorized');
    if (request.method === 'GET' && pathname === '/openapi/v2') {
      response.setHeader('content-type', 'application/com.github.proto-openapi.spec.v2.v1.0+protobuf');
      response.end(openApiV2());
      return;
    }
    const described = request.method === 'GET' ? describeApi(pathname) : null;
    if (described !== null) return answer(response, described);
    const target = targetOf(pathname, query);
    if (request.method !== 'GET')
      return answer(response, ...this.write(target, request, await bodyOf(request)));
    if (target.sub === 'log') return this.log(target, response);
    if (target.name !== null) return answer(response, this.get(target));
    if (query.get('watch') === 'true' || query.get('watch') === '1') return this.watch(target, response);
    answer(response, {
      kind: `${target.resource.kind}List`,
      apiVersion: apiVersionOf(target.resource),
      metadata: { resourceVersion: String(this.store.version) },
      items: this.store.list(target.resource.kind, chosenBy(target)),
    });
  }

  private get({ resource, namespace, name }: Target): KubeObject {
    const found = this.store.find(resource.kind, namespace ?? '', name ?? '');
    if (found !== null) return found;
    throw new ApiError(404, 'NotFound', `${resource.plural} "${name}" not found`);
  }

  private write(target: Target, request: IncomingMessage, body: Draft): [answer: unknown, code: number] {
    const dryRun = target.query.get('dryRun') === 'All';
    const { resource, namespace, name } = target;
    if (request.method === 'POST' && name === null) {
      if (body.kind !== resource.kind || body.apiVersion !== apiVersionOf(resource))
        throw new ApiError(
          400,
          'BadRequest',
          `expected a ${resource.kind}, got ${body.apiVersion} ${body.kind}`,
        );
      const object = this.store.draft(body, namespace ?? 'default');
      admit(object, this.store);
      return [dryRun ? object : this.store.add(object), 201];
    }
    if (request.method === 'PATCH' && name !== null) {
      const found = this.get(target);
      const next = merged(found, body) as KubeObject;
      admit(next, this.store);
      if (dryRun) return [next, 200];
      return [this.store.update(found, (object) => Object.assign(object, next)), 200];
    }
    if (request.method === 'DELETE' && name !== null) {
      const found = this.get(target);
      const grace = (body as { gracePeriodSeconds?: number }).gracePeriodSeconds;
      if (!dryRun) this.store.requestDeletion(found, grace ?? null);
      return [
        this.store.find(resource.kind, namespace ?? '', name) ?? { kind: 'Status', status: 'Success' },
        200,
      ];
    }
    throw new ApiError(405, 'MethodNotAllowed', `${request.method} of ${resource.plural}`);
  }

  /** A line for each change from the version that is asked for, until the one who watches goes. */
  private watch(target: Target, response: ServerResponse): void {
    const chosen = chosenBy(target);
    const tell = ({ type, object }: Pick<Change, 'type' | 'object'>): void => {
      if (object.kind === target.resource.kind && chosen(object))
        response.write(`${JSON.stringify({ type, object })}\n`);
    };
    response.setHeader('content-type', 'application/json');
    // Its headers say that it has begun.
    response.flushHeaders();
    const from = target.query.get('resourceVersion');
    if (from === null || from === '0')
      for (const object of this.store.list(target.resource.kind)) tell({ type: 'ADDED', object });
    else for (const change of this.store.changes) if (change.version > Number(from)) tell(change);
    const end = this.store.subscribe(tell);
    response.once('close', end);
    const seconds = Number(target.query.get('timeoutSeconds') ?? 0);
    if (seconds > 0) setTimeout(() => response.end(), 1000 * seconds).unref();
  }

  private async log(target: Target, response: ServerResponse): Promise<void> {
    const pod = this.get(target);
    const first = this.logs.text(pod);
    response.setHeader('content-type', 'text/plain');
    if (target.query.get('follow') !== 'true') {
      response.end(first);
      return;
    }
    response.flushHeaders();
    const gone = new AbortController();
    response.once('close', () => gone.abort());
    await this.logs.follow(pod, (text) => response.write(text), gone.signal);
    response.end();
  }
}

function targetOf(path: string, query: URLSearchParams): Target {
  const [, group = '', version, namespace = null, plural, name = null, sub = null] = PATH.exec(path) ?? [];
  const resource = RESOURCES.find(
    (one) => one.group === group && one.version === version && one.plural === plural,
  );
  if (resource === undefined)
    throw new ApiError(404, 'NotFound', 'the server could not find the requested resource');
  return { resource, namespace, name, sub, query };
}

function chosenBy({ namespace, query }: Target): (object: KubeObject) => boolean {
  const labels = labelSelector(query.get('labelSelector') ?? '');
  const field = query.get('fieldSelector') ?? '';
  const name = field === '' ? undefined : /^metadata\.name==?(\S+)$/.exec(field)?.[1];
  if (field !== '' && name === undefined)
    throw new ApiError(400, 'BadRequest', `field selector ${field}: only metadata.name`);
  return ({ metadata }) =>
    (namespace === null || metadata.namespace === namespace) &&
    (name === undefined || metadata.name === name) &&
    labels(metadata.labels ?? {});
}

function answer(response: ServerResponse, body: unknown, code = 200): void {
  response.writeHead(code, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
}

async function bodyOf(request: IncomingMessage): Promise<Draft> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const text = Buffer.concat(chunks).toString();
  return (text === '' ? {} : yaml.load(text)) as Draft;
}

/** A merge patch. Lists are replaced also where a strategic one would merge them; its directives ($...) are passed over. */
function merged(old: unknown, patch: unknown): unknown {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch;
  const base = old !== null && typeof old === 'object' && !Array.isArray(old) ? old : {};
  const next: Record<string, unknown> = { ...base };
  for (const [key, value] of Object.entries(patch)) {
    if (key.startsWith('$')) continue;
    if (value === null) delete next[key];
    else next[key] = merged(next[key], value);
  }
  return next;
}
