import { Requests } from './requests';
import { startWatchdog } from './watchdog';

/**
 * The first SIGINT, SIGTERM or SIGUSR2 asks `stop`; a later one leaves at once with 130, and worker processes end with their
 * connection. Where this process does not get round to that, its watchdog ends it. Returns a function that restores the default.
 */
export function onInterrupt(stop: (reason: string) => void): () => void {
  const signals = ['SIGINT', 'SIGTERM', 'SIGUSR2'] as const;
  const requests = new Requests();
  const endWatchdog = startWatchdog();
  const listener = (signal: NodeJS.Signals): void => {
    const request = requests.take();
    if (request === 'first') {
      say(`${signal}: saving a checkpoint as soon as the running phase ends; once more leaves at once`);
      stop(signal);
    } else if (request === 'again') {
      say(`${signal} again: leaving at once, without a checkpoint`);
      process.exit(130);
    }
  };
  for (const signal of signals) process.on(signal, listener);
  return () => {
    for (const signal of signals) process.off(signal, listener);
    endWatchdog();
  };
}

/** On a line of its own, also where a terminal shows ^C or a progress bar. */
function say(line: string): void {
  process.stderr.write(`${process.stderr.isTTY ? '\r\u001b[K' : ''}troupe: ${line}\n`);
}
