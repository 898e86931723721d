// News from the server: one connection for the page, which says what to ask for again.
import { useEffect, useState } from 'preact/hooks';
import type { LiveMessage, RunStamp, RunSummary } from '../../../ts/ui/protocol';

type Listener = () => void;

class LiveStore {
  readonly summaries = new Map<string, RunSummary>();
  readonly stamps = new Map<string, RunStamp>();
  /** By answers, where no news have come yet. */
  readonly answers = new Map<string, RunStamp>();
  readonly gone = new Set<string>();
  connected = false;
  /** Grows with all that is told. */
  told = 0;
  /** How often the connection has been there again after it was lost. */
  regained = 0;
  private lost = false;
  private source: EventSource | null = null;
  private watched: readonly string[] = [];
  private readonly listeners = new Set<Listener>();

  watch(ids: readonly string[]): void {
    if (this.source !== null && ids.join('\n') === this.watched.join('\n')) return;
    this.watched = ids;
    this.source?.close();
    const params = new URLSearchParams(ids.map((id) => ['run', id]));
    const source = new EventSource(`/api/live?${params}`);
    this.source = source;
    source.addEventListener('hello', () => {
      if (this.lost) this.askAnew();
      this.set(true);
    });
    source.addEventListener('error', () => {
      this.lost = true;
      this.set(false);
    });
    source.addEventListener('change', (event) => {
      const { runs, gone } = JSON.parse((event as MessageEvent<string>).data) as LiveMessage;
      for (const { id, summary, stamp } of runs) {
        this.gone.delete(id);
        this.summaries.set(id, summary);
        if (stamp) this.stamps.set(id, stamp);
      }
      for (const id of gone) this.gone.add(id);
      this.tell();
    });
  }

  /** What another answer said of a run. */
  know(summary: RunSummary): void {
    this.summaries.set(summary.id, summary);
    this.tell();
  }

  /** What a run stood at, by an answer: what is asked after it holds that, too. Tells nobody. */
  answered(id: string, stamp: RunStamp): void {
    this.answers.set(id, stamp);
  }

  subscribe(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** What was told meanwhile has been told to others: nothing that is known here is sure to hold. */
  private askAnew(): void {
    this.lost = false;
    this.regained++;
    for (const known of [this.summaries, this.stamps, this.answers, this.gone]) known.clear();
  }

  private set(connected: boolean): void {
    if (this.connected === connected) return;
    this.connected = connected;
    this.tell();
  }

  private tell(): void {
    this.told++;
    for (const listener of this.listeners) listener();
  }
}

export const live = new LiveStore();

/** What the metrics of runs stand at, by news or answers; null: nothing is known of the first one. */
export function useMetricsStamp(ids: readonly string[]): string | null {
  const { stamps, answers, regained } = useLive();
  const stood = ids.map((id) => (stamps.get(id) ?? answers.get(id))?.metrics);
  return stood[0] === undefined ? null : [regained, ...stood].join();
}

/** Draws the component again with every news. */
export function useLive(): LiveStore {
  const [, redraw] = useState(0);
  useEffect(() => live.subscribe(() => redraw((count) => count + 1)), []);
  return live;
}

/** What a run stands at, as one value to compare: of one part of it, or of all. */
export function useStamp(ids: readonly string[], part?: keyof RunStamp): string {
  const { stamps, regained } = useLive();
  const stood = ids.map((id) => {
    const stamp = stamps.get(id);
    return stamp === undefined ? '' : part ? stamp[part] : JSON.stringify(stamp);
  });
  return [regained, ...stood].join();
}
