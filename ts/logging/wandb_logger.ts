import { randomBytes } from 'node:crypto';
import { show } from '../base/text';
import { HttpClient, RefusedError } from './http_client';
import { jsonNumber } from './json_number';
import type { MetricLogger, Metrics, RunOutcome } from './logger';
import { type RemoteRun, RemoteRunFile } from './remote_run';
import { type LoggedRun, variable } from './run';
import { type Receiver, type Sendable, Sender } from './sender';

const CLOUD = 'https://api.wandb.ai';
/** Seconds of silence after which the server is told that the run is alive. */
const HEARTBEAT = 30;
/** Values of WANDB_MODE, the older names and those of runs with several writers among them. */
const ONLINE = ['online', 'run', 'shared'];
const OFFLINE = ['offline', 'dryrun'];
const HISTORY = 'wandb-history.jsonl';
const SUMMARY = 'wandb-summary.json';

const UPSERT = `mutation UpsertBucket(
  $name: String, $project: String, $entity: String, $displayName: String, $config: JSONString
) {
  upsertBucket(input: {
    name: $name, modelName: $project, entityName: $entity, displayName: $displayName, config: $config
  }) {
    bucket { name historyLineCount summaryMetrics project { name entity { name } } }
  }
}`;

interface Upserted {
  data?: {
    upsertBucket?: {
      bucket?: {
        historyLineCount?: number | null;
        /** JSON. */
        summaryMetrics?: string | null;
        project?: { name: string; entity: { name: string } };
      };
    };
  };
  errors?: { message?: string }[];
}

/** All metrics of a step; null: a sign of life. */
interface Line extends Sendable {
  step: number;
  values: Record<string, number | string> | null;
}

/** Whoever asks the Python client to send nothing means this logger, too. @throws Error where nothing is to be sent */
function checkMode(mode: string | null): void {
  if (mode === null || ONLINE.includes(mode)) return;
  if (mode === 'disabled') throw new Error('WANDB_MODE is disabled');
  if (OFFLINE.includes(mode))
    throw new Error(
      `WANDB_MODE is ${mode}, and runs that are sent later are not available: metrics.jsonl has all values`,
    );
  throw new Error(`WANDB_MODE: expected online, offline or disabled, got ${show(mode)}`);
}

/**
 * Weights & Biases over its HTTP interface: the run by GraphQL, the history by the file stream, as its own client does
 * it. The metrics of a step go out when the next one begins.
 */
export class WandbLogger implements MetricLogger, Receiver<Line> {
  readonly name = 'wandb';
  private readonly client: HttpClient;
  private readonly sender: Sender<Line>;
  private readonly file: RemoteRunFile;
  private readonly began = Date.now();
  private readonly heartbeat: NodeJS.Timeout;
  private pending: { step: number; values: Record<string, number | string> } | null = null;
  private remote: RemoteRun | null = null;
  private stream = '';
  /** Lines of the history that the server has. */
  private lines = 0;
  /** The newest value of each metric; of a resumed run those of earlier sessions, too, because the file is sent as a whole. */
  private summary: Record<string, unknown> = {};

  /** Throws when there is no API key, or the address is none. */
  constructor(private readonly run: LoggedRun) {
    const { wandb, request_timeout, flush_timeout } = run.config.logging;
    checkMode(variable(run, 'WANDB_MODE'));
    const password = variable(run, 'WANDB_API_KEY');
    if (password === null) throw new Error('WANDB_API_KEY is not set: set it to your API key');
    const base = wandb.base_url ?? variable(run, 'WANDB_BASE_URL') ?? CLOUD;
    this.client = new HttpClient(base, { user: 'api', password }, 'WANDB_API_KEY');
    this.file = new RemoteRunFile(run, 'wandb');
    const limits = {
      capacity: 100_000,
      batch: 100,
      timeout: request_timeout,
      flush: flush_timeout,
      pause: 1,
      maxPause: 60,
    };
    this.sender = new Sender(this.name, this, limits, run.warn);
    this.heartbeat = setInterval(() => {
      if (this.sender.idle) this.sender.push({ points: 0, step: -1, values: null });
    }, HEARTBEAT * 1000).unref();
  }

  log(metrics: Metrics, step: number): void {
    if (this.pending?.step !== step) this.pushPending();
    this.pending ??= {
      step,
      values: { _step: step, _timestamp: Date.now() / 1000, _runtime: (Date.now() - this.began) / 1000 },
    };
    for (const [name, value] of Object.entries(metrics)) this.pending.values[name] = jsonNumber(value);
  }

  async close(outcome: RunOutcome): Promise<void> {
    clearInterval(this.heartbeat);
    this.pushPending();
    await this.sender.close(outcome);
  }

  async start(signal: AbortSignal): Promise<void> {
    const { trainer, logging } = this.run.config;
    const entity = logging.wandb.entity ?? variable(this.run, 'WANDB_ENTITY');
    const project = logging.wandb.project ?? variable(this.run, 'WANDB_PROJECT') ?? trainer.project_name;
    const { base } = this.client;
    const place = `${base} ${entity ?? ''}/${project}`;
    // Repeated after an error, this must not make another run.
    this.remote ??= this.file.resumed(place) ?? { runId: newRunId(), place, lastStep: -1 };
    const { remote } = this;
    const config = Object.fromEntries(
      Object.entries(this.run.record).map(([key, value]) => [key, { desc: null, value }]),
    );
    const variables = {
      name: remote.runId,
      project,
      entity,
      displayName: trainer.experiment_name,
      config: JSON.stringify(config),
    };
    const answer = (await this.client.request(
      'POST',
      '/graphql',
      { query: UPSERT, variables },
      signal,
    )) as Upserted;
    const bucket = answer.data?.upsertBucket?.bucket;
    if (!bucket?.project) {
      const reason = answer.errors?.map(({ message }) => message).join('; ') ?? 'the answer holds no run';
      throw new RefusedError(200, `${base}: cannot make a run in project ${project}: ${reason}`);
    }
    const where = [bucket.project.entity.name, bucket.project.name].map(encodeURIComponent).join('/');
    this.stream = `/files/${where}/${remote.runId}/file_stream`;
    this.lines = bucket.historyLineCount ?? 0;
    this.summary = summaryOf(bucket.summaryMetrics);
    this.file.begin(remote, `${base.replace('//api.', '//')}/${where}/runs/${remote.runId}`);
  }

  async send(items: readonly Line[], signal: AbortSignal): Promise<void> {
    const lines = items.filter(({ step, values }) => values !== null && step > this.file.sentBefore);
    for (const { values } of lines) Object.assign(this.summary, values);
    const files = {
      // Sent again after an error, lines take the same place.
      [HISTORY]: { offset: this.lines, content: lines.map(({ values }) => JSON.stringify(values)) },
      [SUMMARY]: { offset: 0, content: [JSON.stringify(this.summary)] },
    };
    await this.client.request('POST', this.stream, lines.length > 0 ? { files } : {}, signal);
    this.lines += lines.length;
    const last = lines.at(-1);
    if (last) this.file.sent(last.step);
  }

  async finish(outcome: RunOutcome, signal: AbortSignal): Promise<void> {
    const exitcode = outcome === 'failed' ? 1 : 0;
    await this.client.request('POST', this.stream, { complete: true, exitcode }, signal);
  }

  private pushPending(): void {
    if (this.pending === null) return;
    const { step, values } = this.pending;
    this.pending = null;
    this.sender.push({ step, values, points: Object.keys(values).length - 3 });
  }
}

/** What is no object is no summary. */
function summaryOf(text: string | null | undefined): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text ?? '{}');
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? { ...value } : {};
  } catch {
    return {};
  }
}

/** Eight characters, as its own client draws them. */
function newRunId(): string {
  return Array.from(randomBytes(8), (byte) => (byte % 36).toString(36)).join('');
}
