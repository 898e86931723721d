/** npm and npx pass a Ctrl-C on to programs that the terminal has sent it to already: that is one request, not two. */
const SAME_REQUEST_MS = 200;

/**
 * The first SIGINT or SIGTERM asks `stop`; a later one leaves at once with 130, and worker processes end with their
 * connection. Returns a function that restores the default.
 */
export function onInterrupt(stop: (reason: string) => void): () => void {
  const signals = ['SIGINT', 'SIGTERM'] as const;
  let askedAt: number | null = null;
  const listener = (signal: NodeJS.Signals): void => {
    const now = performance.now();
    if (askedAt === null) {
      askedAt = now;
      say(`${signal}: saving a checkpoint as soon as the running phase ends; once more leaves at once`);
      stop(signal);
    } else if (now - askedAt > SAME_REQUEST_MS) {
      say(`${signal} again: leaving at once, without a checkpoint`);
      process.exit(130);
    }
  };
  for (const signal of signals) process.on(signal, listener);
  return () => {
    for (const signal of signals) process.off(signal, listener);
  };
}

/** On a line of its own, also where a terminal shows ^C or a progress bar. */
function say(line: string): void {
  process.stderr.write(`${process.stderr.isTTY ? '\r\u001b[K' : ''}troupe: ${line}\n`);
}
