import { ignoresHangups } from '../base/nohup';
import { Requests } from './requests';
import { startWatchdog } from './watchdog';

/** What the first signal does. `saves`: there is something to save, or may be once the running phase ends. */
export const stopping = (signal: string, saves: boolean): string =>
  saves
    ? `${signal}: saving a checkpoint of what has been learnt as soon as the running phase ends`
    : `${signal}: stopping as soon as the running phase ends, there is nothing to save`;

/**
 * The first SIGINT, SIGTERM or SIGUSR2 asks `stop`, which says whether there is something to save; a later one leaves at once with 130, and worker processes end with their
 * connection. Where this process does not get round to that, its watchdog ends it. SIGHUP, of a terminal that closes, asks once and never
 * insists: several come of one end, and nobody is there to mean more by another; under nohup it does nothing. Returns a function that
 * restores the default.
 */
export function onInterrupt(stop: (reason: string) => boolean): () => void {
  const signals = ['SIGINT', 'SIGTERM', 'SIGUSR2'] as const;
  const requests = new Requests();
  const endWatchdog = startWatchdog();
  const listener = (signal: NodeJS.Signals): void => {
    const request = requests.take();
    if (request === 'first') {
      say(`${stopping(signal, stop(signal))}; once more leaves at once`);
    } else if (request === 'again') {
      say(`${signal} again: leaving at once, without a checkpoint`);
      process.exit(130);
    }
  };
  let closed = ignoresHangups();
  const onHangup = (signal: NodeJS.Signals): void => {
    if (!closed) say(stopping(signal, stop(signal)));
    closed = true;
  };
  for (const signal of signals) process.on(signal, listener);
  process.on('SIGHUP', onHangup);
  return () => {
    for (const signal of signals) process.off(signal, listener);
    process.off('SIGHUP', onHangup);
    endWatchdog();
  };
}

/** On a line of its own, also where a terminal shows ^C or a progress bar. */
function say(line: string): void {
  process.stderr.write(`${process.stderr.isTTY ? '\r\u001b[K' : ''}troupe: ${line}\n`);
}
