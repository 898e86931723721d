import { type Credentials, HttpClient, RefusedError } from './http_client';
import { jsonNumber } from './json_number';
import type { MetricLogger, Metrics, RunOutcome } from './logger';
import { type RemoteRun, RemoteRunFile } from './remote_run';
import { type LoggedRun, variable } from './run';
import { type Receiver, type Sendable, Sender } from './sender';

const API = '/api/2.0/mlflow';
// Limits of one log-batch request.
const METRICS_PER_REQUEST = 1000;
const PARAMS_PER_REQUEST = 100;
/** After so many names that are refused, and none that is taken, something else is wrong. */
const MOST_REFUSED = 8;
const PARAM_LENGTH = 6000;
const KEY_LENGTH = 250;

const STATUS: Readonly<Record<RunOutcome, string>> = {
  finished: 'FINISHED',
  interrupted: 'KILLED',
  failed: 'FAILED',
};

interface Metric {
  key: string;
  value: number | string;
  timestamp: number;
  step: number;
}

interface Entry extends Sendable {
  step: number;
  metrics: Metric[];
}

/** A run of an MLflow tracking server, over its REST interface 2.0. */
export class MlflowLogger implements MetricLogger, Receiver<Entry> {
  readonly name = 'mlflow';
  private readonly client: HttpClient;
  private readonly sender: Sender<Entry>;
  private readonly file: RemoteRunFile;
  private remote: RemoteRun | null = null;
  /** Parameters cannot change: a resumed run has those of its beginning. */
  private paramsSent = false;
  /** Names that the server has refused. */
  private readonly refused = new Set<string>();

  /** Throws when no server is named, or the address is none. */
  constructor(private readonly run: LoggedRun) {
    const { mlflow, request_timeout, flush_timeout } = run.config.logging;
    const uri = mlflow.tracking_uri ?? variable(run, 'MLFLOW_TRACKING_URI');
    if (uri === null)
      throw new Error('MLFLOW_TRACKING_URI is not set: set it to the http(s) address of a server');
    const keys = 'MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD';
    this.client = new HttpClient(uri, credentials(run), keys);
    this.file = new RemoteRunFile(run, 'mlflow');
    const limits = {
      capacity: 100_000,
      batch: 20,
      timeout: request_timeout,
      flush: flush_timeout,
      pause: 1,
      maxPause: 60,
    };
    this.sender = new Sender(this.name, this, limits, run.warn);
  }

  log(metrics: Metrics, step: number): void {
    const timestamp = Date.now();
    const entries = Object.entries(metrics).map(([name, value]) => ({
      key: mlflowKey(name),
      value: jsonNumber(value),
      timestamp,
      step,
    }));
    if (entries.length > 0) this.sender.push({ step, metrics: entries, points: entries.length });
  }

  async close(outcome: RunOutcome): Promise<void> {
    await this.sender.close(outcome);
  }

  async start(signal: AbortSignal): Promise<void> {
    const { project_name, experiment_name } = this.run.config.trainer;
    const experiment = await this.experiment(project_name, signal);
    const { base } = this.client;
    const place = `${base} ${experiment}`;
    // Repeated after an error, this must not make another run.
    if (this.remote === null) {
      const known = this.file.resumed(place);
      const resumed = known !== null && (await this.reopened(known.runId, signal));
      if (resumed) this.paramsSent = true;
      this.remote = resumed
        ? known
        : { runId: await this.created(experiment, experiment_name, signal), place, lastStep: -1 };
      this.file.begin(this.remote, `${base}/#/experiments/${experiment}/runs/${this.remote.runId}`);
    }
    if (!this.paramsSent) await this.sendParams(signal);
    this.paramsSent = true;
  }

  async send(items: readonly Entry[], signal: AbortSignal): Promise<void> {
    const metrics = items
      .filter(({ step }) => step > this.file.sentBefore)
      .flatMap((item) => item.metrics)
      .filter(({ key }) => !this.refused.has(key));
    // Sent again after an error, a metric with the same time and step counts once.
    for (let at = 0; at < metrics.length; at += METRICS_PER_REQUEST) {
      await this.sendMetrics(metrics.slice(at, at + METRICS_PER_REQUEST), signal);
    }
    this.file.sent(Math.max(...items.map(({ step }) => step)));
  }

  /**
   * A server refuses a request as a whole for one name that it does not take. Halves of the names are tried until those are found;
   * they are not sent again.
   */
  private async sendMetrics(metrics: readonly Metric[], signal: AbortSignal): Promise<void> {
    const bad = new Map<string, RefusedError>();
    let taken = false;
    const send = async (part: readonly Metric[]): Promise<void> => {
      try {
        await this.post('/runs/log-batch', { run_id: this.remote?.runId, metrics: part }, signal);
        taken = true;
      } catch (error) {
        if (!(error instanceof RefusedError && error.status === 400)) throw error;
        const keys = [...new Set(part.map(({ key }) => key))];
        if (keys.length === 1) bad.set(keys[0] as string, error);
        // It is not the names.
        if (!taken && bad.size === MOST_REFUSED) throw error;
        if (keys.length === 1) return;
        const first = new Set(keys.slice(0, keys.length / 2));
        await send(part.filter(({ key }) => first.has(key)));
        await send(part.filter(({ key }) => !first.has(key)));
      }
    };
    if (metrics.length > 0) await send(metrics);
    const [reason] = bad.values();
    if (!taken && reason !== undefined) throw reason;
    for (const [key, { message }] of bad) {
      this.refused.add(key);
      this.run.warn(`mlflow: the server refuses the metric '${key}', which is not sent any more: ${message}`);
    }
  }

  async finish(outcome: RunOutcome, signal: AbortSignal): Promise<void> {
    const end = { run_id: this.remote?.runId, status: STATUS[outcome], end_time: Date.now() };
    await this.post('/runs/update', end, signal);
  }

  /** Id of the experiment of that name, which is made where there is none. */
  private async experiment(name: string, signal: AbortSignal): Promise<string> {
    const query = `${API}/experiments/get-by-name?experiment_name=${encodeURIComponent(name)}`;
    try {
      const found = (await this.client.request('GET', query, null, signal)) as {
        experiment: { experiment_id: string };
      };
      return found.experiment.experiment_id;
    } catch (error) {
      if (!(error instanceof RefusedError && error.status === 404)) throw error;
    }
    const made = (await this.post('/experiments/create', { name }, signal)) as { experiment_id: string };
    return made.experiment_id;
  }

  private async created(experiment: string, name: string, signal: AbortSignal): Promise<string> {
    const made = (await this.post(
      '/runs/create',
      { experiment_id: experiment, run_name: name, start_time: Date.now() },
      signal,
    )) as { run: { info: { run_id: string } } };
    return made.run.info.run_id;
  }

  /** False when the run has been deleted since. */
  private async reopened(runId: string, signal: AbortSignal): Promise<boolean> {
    try {
      await this.post('/runs/update', { run_id: runId, status: 'RUNNING' }, signal);
      return true;
    } catch (error) {
      if (error instanceof RefusedError && (error.status === 404 || error.status === 400)) return false;
      throw error;
    }
  }

  /** A server that takes none of the parameters may still take metrics. */
  private async sendParams(signal: AbortSignal): Promise<void> {
    const params = flatParams(this.run.record);
    try {
      for (let at = 0; at < params.length; at += PARAMS_PER_REQUEST) {
        const part = params.slice(at, at + PARAMS_PER_REQUEST);
        await this.post('/runs/log-batch', { run_id: this.remote?.runId, params: part }, signal);
      }
    } catch (error) {
      if (!(error instanceof RefusedError)) throw error;
      this.run.warn(`mlflow: the configuration was not taken: ${error.message}`);
    }
  }

  private post(path: string, body: object, signal: AbortSignal): Promise<unknown> {
    return this.client.request('POST', API + path, body, signal);
  }
}

function credentials(run: LoggedRun): Credentials {
  const token = variable(run, 'MLFLOW_TRACKING_TOKEN');
  const user = variable(run, 'MLFLOW_TRACKING_USERNAME');
  if (user !== null) return { user, password: variable(run, 'MLFLOW_TRACKING_PASSWORD') ?? '' };
  return token === null ? null : { token };
}

/** As verl: "@" is "_at_", other characters that MLflow refuses are "_", and slashes stand alone between names. */
export function mlflowKey(name: string): string {
  const key = name
    .replaceAll('@', '_at_')
    .replace(/[^/\w.\- ]/g, '_')
    .replace(/\/{2,}/g, '/')
    .replace(/^\/|\/$/g, '');
  return key.slice(0, KEY_LENGTH);
}

/** The tree as parameters "a/b/c": value, as verl sends it; lists as JSON. Values are cut to what MLflow holds. */
export function flatParams(tree: object, prefix = ''): { key: string; value: string }[] {
  return Object.entries(tree).flatMap(([key, value]: [string, unknown]) => {
    const path = prefix + key;
    if (typeof value === 'object' && value !== null && !Array.isArray(value))
      return flatParams(value, `${path}/`);
    const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? String(value));
    return [{ key: mlflowKey(path), value: text.slice(0, PARAM_LENGTH) }];
  });
}
