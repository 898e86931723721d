// What a signal asks for, which the one before it says.
import { ignoresHangups } from '../base/nohup';

/** npm and npx pass a Ctrl-C on to programs that the terminal has sent it to already: that is one request, not two. */
const SAME_REQUEST_MS = 200;

/** The signals that ask one process to end. */
export class Requests {
  private firstAt: number | null = null;

  /** Of the signal that has come now: the first, one that insists, or the same request once more. */
  take(): 'first' | 'again' | 'same' {
    const now = performance.now();
    if (this.firstAt === null) {
      this.firstAt = now;
      return 'first';
    }
    return now - this.firstAt > SAME_REQUEST_MS ? 'again' : 'same';
  }
}

/**
 * Settles with the first SIGINT or SIGTERM from now on; a later one leaves at once with 130. SIGHUP, of a terminal that closes, asks as well,
 * but where nohup says otherwise, and never insists. To be called before a program says that it runs: who reads that may signal it before
 * its next statement.
 */
export function askedToEnd(): Promise<NodeJS.Signals> {
  const requests = new Requests();
  return new Promise((done) => {
    const listener = (signal: NodeJS.Signals): void => {
      const request = requests.take();
      if (request === 'first') done(signal);
      else if (request === 'again') process.exit(130);
    };
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, listener);
    const ignored = ignoresHangups();
    process.on('SIGHUP', () => {
      if (!ignored) done('SIGHUP');
    });
  });
}
