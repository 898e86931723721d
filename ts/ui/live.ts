// What has changed, pushed to the pages that are open. Nothing is looked at while there is none.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { LiveMessage } from './protocol';
import type { Runs } from './runs';

/** Milliseconds between two looks at the runs that are open in a page. */
const WATCHED = 250;
/** Between two looks at the ends of all runs, and at which there are: so many looks. */
const ALL = 4;
const SCAN = 12;
/** So that proxies and browsers keep the connection. */
const SIGN_OF_LIFE = 60;

interface Client {
  response: ServerResponse;
  watched: readonly string[];
}

export class Live {
  private readonly clients = new Set<Client>();
  private timer: NodeJS.Timeout | null = null;
  private looks = 0;
  /** Runs that the pages know of, so far as the last look at which there are. */
  private found: readonly string[] = [];

  constructor(private readonly runs: Runs) {}

  /** Pages that are open. */
  get size(): number {
    return this.clients.size;
  }

  /** Who asks for the headers alone (HEAD) has no page open. */
  add({ method }: IncomingMessage, response: ServerResponse, watched: readonly string[]): void {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
    if (method === 'HEAD') {
      response.end();
      return;
    }
    response.write('retry: 1000\n\nevent: hello\ndata: {}\n\n');
    const client = { response, watched };
    this.clients.add(client);
    // What was told to others after this page had its answers, and before it listened, it has not heard.
    this.runs.tellAnew(watched);
    response.on('close', () => {
      this.clients.delete(client);
      if (this.clients.size === 0) this.stop();
    });
    if (this.timer === null) this.found = this.runs.list.found;
    this.timer ??= setInterval(() => this.tryLook(), WATCHED);
  }

  close(): void {
    this.stop();
    for (const { response } of this.clients) response.end();
    this.clients.clear();
  }

  private stop(): void {
    if (this.timer !== null) clearInterval(this.timer);
    this.timer = null;
  }

  /** As with an answer: what one run has must not end the server of all. */
  private tryLook(): void {
    try {
      this.look();
    } catch {
      // Whoever asks for it is told; the next look tries again.
    }
  }

  private look(): void {
    this.looks++;
    const gone = this.looks % SCAN === 0 ? this.gone() : [];
    const changed = new Map<string, LiveMessage['runs'][number]>();
    if (this.looks % ALL === 0)
      for (const summary of this.runs.list.changed())
        changed.set(summary.id, { id: summary.id, summary, stamp: null });
    for (const id of new Set([...this.clients].flatMap(({ watched }) => watched))) {
      const stamp = this.runs.newStamp(id);
      if (stamp !== null) changed.set(id, { id, summary: this.runs.list.summary(id), stamp });
    }
    if (changed.size > 0 || gone.length > 0) {
      const message: LiveMessage = { runs: [...changed.values()], gone };
      this.send(`event: change\ndata: ${JSON.stringify(message)}\n\n`);
    } else if (this.looks % SIGN_OF_LIFE === 0) this.send(': alive\n\n');
  }

  /** Those that are not there any more, whoever has looked before. */
  private gone(): string[] {
    const { list } = this.runs;
    const before = this.found;
    list.scan();
    this.found = list.found;
    return before.filter((id) => !list.has(id));
  }

  private send(text: string): void {
    // A page that does not read must not fill this process: it asks anew when it is back.
    for (const { response } of this.clients) {
      if (response.writableLength > 1 << 20) response.destroy();
      else response.write(text);
    }
  }
}
