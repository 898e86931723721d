// One run as the page looks at it: its files read as far as they go, and what is new since.
import { eventSchema, planFileSchema, tokensSchema, traceSchema } from '../records/schema';
import { type Inside, readAt } from './inside';
import { jsonObject, LineTail } from './line_tail';
import type { PlanPage, RunDetail, RunEvent, RunStamp, RunSummary, TokensPage, TracePage } from './protocol';
import { SampleIndex } from './sample_index';
import { SeriesStore } from './series_store';

const MOST_EVENTS = 20_000;
/** Lines of a trace that one answer has. */
const MOST_TRACE = 60;
const TOKENS = /^(\d{1,12})\.jsonl$/;

/** Keys that may name a folder with samples. */
const DUMP_KEYS = ['rollout_data_dir', 'validation_data_dir'];

interface TraceEntry {
  step: number;
  offset: number;
  bytes: number;
}

export class RunView {
  readonly series = new SeriesStore();
  private readonly index: SampleIndex;
  private indexed = false;
  events: RunEvent[] = [];
  private traces: TraceEntry[] = [];
  private readonly peaks = new Map<string, PlanPage['measured'][number]>();
  private readonly tails: { tail: LineTail; kind: 'metrics' | 'events' | 'trace' }[];
  private readonly stamps: RunStamp = { metrics: 0, samples: 0, events: 0, trace: 0, tokens: 0 };
  private steps: number[] = [];
  private resetMetrics = false;
  private refreshed = Number.NEGATIVE_INFINITY;
  private tokensFolder = '';
  private configStamp = '';
  private dumps: string[] = [];

  constructor(
    private readonly inside: Inside,
    readonly id: string,
  ) {
    const tail = (
      name: string,
      kind: 'metrics' | 'events' | 'trace',
      line: (text: string, offset: number) => void,
    ) => ({
      kind,
      tail: new LineTail(inside, this.path(name), { line, reset: () => this.reset(kind) }),
    });
    this.index = new SampleIndex(inside, id === '' ? '.' : id, () => this.dumpFolders());
    const metric = (text: string): void => {
      const line = jsonObject(text);
      if (line) this.series.add(line);
    };
    this.tails = [
      tail('metrics.jsonl', 'metrics', metric),
      tail('timings.jsonl', 'metrics', metric),
      tail('events.jsonl', 'events', (text) => this.addEvent(text)),
      tail('trace.jsonl', 'trace', (text, offset) => this.addTrace(text, offset)),
    ];
  }

  /** Reads what is new; within `age` milliseconds of the last time nothing is. */
  refresh(age = 0): void {
    const now = performance.now();
    if (now - this.refreshed < age) return;
    this.refreshed = now;
    for (const { tail, kind } of this.tails) {
      if (!tail.poll()) continue;
      this.stamps[kind]++;
    }
    if (this.resetMetrics) {
      // One of the two files that it is from is another one: both are read again.
      this.resetMetrics = false;
      this.series.clear();
      for (const one of this.tails.filter(({ kind }) => kind === 'metrics')) one.tail.rewind();
      for (const one of this.tails.filter(({ kind }) => kind === 'metrics')) one.tail.poll();
      this.stamps.metrics++;
    }
    if (this.indexed && this.index.refresh()) this.stamps.samples++;
    const folder = this.inside.stamp(this.path('tokens'));
    if (folder === this.tokensFolder) return;
    this.tokensFolder = folder;
    this.steps = this.listTokens();
    this.stamps.tokens++;
  }

  get stamp(): RunStamp {
    return { ...this.stamps };
  }

  detail(summary: RunSummary): RunDetail {
    const [first, last] = [this.traces[0], this.traces.at(-1)];
    return {
      summary,
      metrics: this.series.metrics(),
      tokenSteps: this.steps,
      traceSteps: first && last ? { first: first.step, last: last.step, count: this.traces.length } : null,
      hasPlan: this.plan() !== null,
      warnings: this.events.filter(({ kind }) => kind === 'warning' || kind === 'error').length,
      stamp: this.stamp,
    };
  }

  /** Read when they are first asked for: most pages show none, and there may be many. */
  get samples(): SampleIndex {
    if (!this.indexed) this.index.refresh();
    this.indexed = true;
    return this.index;
  }

  /** Records of a step; of the last that has some where it is null. */
  tokens(step: number | null): TokensPage {
    const chosen = step ?? this.steps.at(-1) ?? null;
    const text = chosen === null ? null : this.inside.text(this.path(`tokens/${chosen}.jsonl`), 64 << 20);
    const records = (text ?? '').split('\n').flatMap((line) => {
      const parsed = tokensSchema.safeParse(jsonObject(line));
      return parsed.success ? [parsed.data] : [];
    });
    return { steps: this.steps, step: chosen, records };
  }

  hasTokens(step: number, index: number): boolean {
    return this.steps.includes(step) && this.tokens(step).records.some((record) => record.index === index);
  }

  trace(from: number | null, to: number | null): TracePage {
    const last = this.traces.at(-1)?.step ?? 0;
    const [first, end] = [from ?? Math.max(1, last - 4), to ?? last];
    const chosen = this.traces.filter(({ step }) => step >= first && step <= end).slice(0, MOST_TRACE);
    const lines = this.inside.with(this.path('trace.jsonl'), ({ fd }) =>
      chosen.flatMap(({ offset, bytes }) => {
        const parsed = traceSchema.safeParse(jsonObject(readAt(fd, offset, bytes).toString('utf8')));
        return parsed.success ? [parsed.data] : [];
      }),
    );
    return { first: this.traces[0]?.step ?? 0, last, lines: lines ?? [] };
  }

  planPage(): PlanPage {
    const measured = [...this.peaks.values()].sort((a, b) => a.pool.localeCompare(b.pool) || a.rank - b.rank);
    return { plan: this.plan(), measured };
  }

  config(): Record<string, unknown> {
    return jsonObject(this.inside.text(this.path('config.json')) ?? '') ?? {};
  }

  private path(name: string): string {
    return this.id === '' ? name : `${this.id}/${name}`;
  }

  private plan(): PlanPage['plan'] {
    const parsed = planFileSchema.safeParse(jsonObject(this.inside.text(this.path('plan.json')) ?? ''));
    return parsed.success ? parsed.data : null;
  }

  private reset(kind: 'metrics' | 'events' | 'trace'): void {
    if (kind === 'metrics') this.resetMetrics = true;
    else if (kind === 'events') this.events = [];
    else {
      this.traces = [];
      this.peaks.clear();
    }
  }

  private addEvent(text: string): void {
    const parsed = eventSchema.safeParse(jsonObject(text));
    if (!parsed.success) return;
    this.events.push(parsed.data);
    if (this.events.length > MOST_EVENTS) this.events.splice(0, this.events.length - MOST_EVENTS);
  }

  private addTrace(text: string, offset: number): void {
    const line = jsonObject(text);
    const step = line?.['step'];
    if (typeof step !== 'number') return;
    this.traces.push({ step, offset, bytes: Buffer.byteLength(text) });
    const parsed = traceSchema.shape.ranks.safeParse(line?.['ranks']);
    for (const { rank, pool = '', memory } of parsed.data ?? []) {
      if (memory === undefined) continue;
      const key = `${pool}/${rank}`;
      const before = this.peaks.get(key);
      this.peaks.set(key, {
        pool,
        rank,
        peakRss: Math.max(memory.peakRss, before?.peakRss ?? 0),
        maxAllocated: Math.max(memory.maxAllocated, before?.maxAllocated ?? 0),
      });
    }
  }

  private listTokens(): number[] {
    return this.inside
      .list(this.path('tokens'))
      .flatMap((entry) => {
        const name = TOKENS.exec(entry.name);
        return name && entry.isFile() ? [Number(name[1])] : [];
      })
      .sort((a, b) => a - b);
  }

  /** Names of folders of the run that its configuration sends samples to, wherever the run has been copied to. */
  private dumpFolders(): readonly string[] {
    const stamp = this.inside.stamp(this.path('config.json'));
    if (stamp === this.configStamp) return this.dumps;
    this.configStamp = stamp;
    const trainer = this.config()['trainer'] as Record<string, unknown> | undefined;
    this.dumps = DUMP_KEYS.flatMap((key) => {
      const path = trainer?.[key];
      const name = typeof path === 'string' ? path.split('/').filter(Boolean).at(-1) : undefined;
      return name === undefined || name.startsWith('.') ? [] : [name];
    });
    return this.dumps;
  }
}
