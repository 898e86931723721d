// What a server tells Prometheus: requests, times, tokens, and what its engine says of itself.
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { RolloutEngine, RolloutStats } from '../rollout/engine';
import type { CallCost } from './call/model_call';

const SECONDS = [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300];

/** Gauges of the engine, by the field of its stats. */
const GAUGES: readonly [keyof RolloutStats, string, string][] = [
  ['running', 'requests_running', 'Requests that the engine works on'],
  ['waiting', 'requests_waiting', 'Requests that wait for room'],
  ['cachePositions', 'cache_positions', 'Positions of keys and values that there is room for'],
  ['cachePositionsUsed', 'cache_positions_used', 'Positions of keys and values in use'],
  ['draftedTokens', 'drafted_tokens', 'Tokens that were drafted, since the start'],
  ['acceptedTokens', 'accepted_tokens', 'Tokens of drafts that were then sampled, since the start'],
  ['hostChoices', 'host_choices', 'Tokens that were chosen on the host, though the model is on a GPU'],
  ['preemptions', 'preemptions', 'Requests that had to make room, since the start'],
  ['version', 'weight_version', 'Version of the weights'],
];

export class ServeMetrics {
  private readonly registry = new Registry();
  private readonly requests: Counter<'path' | 'status'>;
  private readonly seconds: Histogram<'path'>;
  private readonly tokens: Counter<'kind'>;
  private readonly finishes: Counter<'reason'>;
  private readonly gauges: [keyof RolloutStats, Gauge][];

  constructor(private readonly engine: RolloutEngine) {
    const registers = [this.registry];
    const name = (text: string): string => `troupe_serve_${text}`;
    this.requests = new Counter({
      name: name('requests_total'),
      help: 'Requests that were answered, by path and status',
      labelNames: ['path', 'status'],
      registers,
    });
    this.seconds = new Histogram({
      name: name('request_seconds'),
      help: 'From a request to the end of its answer',
      labelNames: ['path'],
      buckets: SECONDS,
      registers,
    });
    this.tokens = new Counter({
      name: name('tokens_total'),
      help: 'Tokens of prompts, of prompts found in the cache, and of responses',
      labelNames: ['kind'],
      registers,
    });
    this.finishes = new Counter({
      name: name('responses_total'),
      help: 'Responses by what ended them',
      labelNames: ['reason'],
      registers,
    });
    this.gauges = GAUGES.map(([field, own, help]) => [
      field,
      new Gauge({ name: name(own), help, registers }),
    ]);
  }

  done({ path, status, seconds }: { path: string; status: number; seconds: number }): void {
    this.requests.inc({ path, status });
    this.seconds.observe({ path }, seconds);
  }

  record({ promptIds, tokens, cachedTokens, finish }: CallCost): void {
    this.tokens.inc({ kind: 'prompt' }, promptIds.length);
    this.tokens.inc({ kind: 'cached' }, cachedTokens);
    this.tokens.inc({ kind: 'response' }, tokens.length);
    this.finishes.inc({ reason: finish });
  }

  /** In the text format of Prometheus. */
  async text(): Promise<{ text: string; type: string }> {
    const stats = await this.engine.stats();
    for (const [field, gauge] of this.gauges) gauge.set(stats[field]);
    return { text: await this.registry.metrics(), type: this.registry.contentType };
  }
}
