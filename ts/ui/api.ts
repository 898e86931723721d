// What the server answers with when it is asked. Loaded with the first question: most servers that runs start are never asked, and what
// reads and checks files takes longer to load than all the rest.
import type { Inside } from './inside';
import { Live } from './live';
import { csvOf, routesOf } from './routes';
import { Runs } from './runs';

export class Api {
  readonly runs: Runs;
  readonly live: Live;
  private readonly routes: ReturnType<typeof routesOf>;

  constructor(inside: Inside) {
    this.runs = new Runs(inside);
    this.live = new Live(this.runs);
    this.routes = routesOf(this.runs);
  }

  /** What becomes JSON, by the path below /api/; undefined: there is no such thing to ask for. @throws RequestError */
  answer(path: string, params: URLSearchParams): unknown {
    return this.routes.get(path)?.(params);
  }

  /** @throws RequestError */
  csv(params: URLSearchParams): ReturnType<typeof csvOf> {
    return csvOf(this.runs, params);
  }
}
