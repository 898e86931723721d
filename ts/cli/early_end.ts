import { printable } from '../base/printable';
import { type Place, placeOf } from '../base/thrown_at';
import { TroupeError } from '../errors';
import { reportError } from './report';

/** Calls between `process.exit` and code of the user's, which may lie in a package that it calls. */
const STACK = 100;

/** What `process.exit` calls when everybody has been told; who calls it alone ends the process without a word. */
interface Leaves {
  reallyExit(this: NodeJS.Process, code?: number): void;
}

/**
 * Makes an error of an end of this process that its command has not come to, whatever the exit code: most often code of the user's that was loaded
 * into it called `process.exit`. Ends by a signal, `process.abort` among them, are none: nothing runs then, and who waits for the process is
 * told of the signal. Returns what says that the command has come to its end.
 */
export function watchEnd(debug: boolean): () => void {
  let idle = false;
  const onIdle = (): void => {
    idle = true;
  };
  const node = process as unknown as Leaves;
  const { reallyExit } = node;
  const onExit = (code: number, by = 'process.exit'): void => {
    node.reallyExit = reallyExit;
    const caller = exitCaller();
    // Another code of nobody's is ours: of a second signal, or of Node, which has said why.
    if (caller === null && code !== 0) return;
    if (code === 0) process.exitCode = 1;
    reportError(new TroupeError('ABORTED', earlyEnd(code, caller, by, idle)), debug);
  };
  const listener = (code: number): void => onExit(code);
  process.on('beforeExit', onIdle);
  process.on('exit', listener);
  node.reallyExit = (code = 0) => {
    onExit(code, 'process.reallyExit');
    reallyExit.call(process, code === 0 ? 1 : code);
  };
  return () => {
    node.reallyExit = reallyExit;
    process.off('beforeExit', onIdle);
    process.off('exit', listener);
  };
}

/** `exit` is told to listeners within the call of process.exit. */
function exitCaller(): Place | null {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = STACK;
  const here = new Error();
  Error.stackTraceLimit = stackTraceLimit;
  return placeOf(here);
}

function earlyEnd(code: number, caller: Place | null, by: string, idle: boolean): string {
  const before = `the program was ended with exit code ${code} before it was done`;
  if (caller !== null) {
    const place = printable(`${caller.file}:${caller.line}`, { max: 1000 });
    return `${before}: ${by} was called at ${place}. Code that this process loads has to throw or return instead`;
  }
  const suspects =
    'actor_rollout_ref.model.external_lib, a reward manager, a registered reward function, loss or estimator, the module of an agent or of its tools';
  return idle
    ? `${before}: it waits for a promise that nothing is left to settle. Look for one that never settles in code that this process has loaded (${suspects})`
    : `${before}: code that it loaded into this process (${suspects}) called process.exit`;
}
