// Where the JavaScript of another Node process is, that answers nothing any more: asked of its debugger.
import { execFile } from 'node:child_process';

/**
 * Options of node under which a process opens its debugger at SIGUSR1, and not before: on a port of 127.0.0.1 that the system picks, and
 * for those alone who have read its stderr.
 */
export const INSPECTABLE: readonly string[] = ['--inspect-port=127.0.0.1:0', '--inspect-publish-uid=stderr'];

const LISTENING = /^Debugger listening on (ws:\/\/127\.0\.0\.1:\d+\/[\w-]+)$/;
/** A machine with much else to do takes seconds to start a process. */
const PATIENCE_MS = 10_000;

export interface Inspected {
  /** Calls back with each line of its stderr from now on. */
  listen(line: (text: string) => void): void;
  signal(signal: 'SIGUSR1'): void;
}

/** The functions that it is in, innermost first; '' when it is in none that has a line, or does not say in time. Never rejects. */
export async function scriptStack(inspected: Inspected): Promise<string> {
  const address = await new Promise<string | null>((resolve) => {
    setTimeout(() => resolve(null), PATIENCE_MS).unref();
    inspected.listen((text) => {
      const found = LISTENING.exec(text)?.[1];
      if (found !== undefined) resolve(found);
    });
    inspected.signal('SIGUSR1');
  });
  return address === null ? '' : await ask(address);
}

/** Pauses it and prints the functions that it is in. */
const CLIENT = `
const socket = new WebSocket(process.argv[1]);
const scripts = new Map();
socket.onopen = () => {
  for (const [i, method] of ['Debugger.enable', 'Debugger.pause'].entries()) socket.send(JSON.stringify({ id: i + 1, method }));
};
socket.onmessage = ({ data }) => {
  const { method, params } = JSON.parse(data);
  if (method === 'Debugger.scriptParsed') scripts.set(params.scriptId, params.url);
  if (method !== 'Debugger.paused') return;
  for (const { functionName, location: at } of params.callFrames)
    console.log('at ' + (functionName || '(anonymous)') + ' (' + scripts.get(at.scriptId) + ':' + (at.lineNumber + 1) + ')');
  process.exit();
};
socket.onerror = () => process.exit(1);
`;

/** By a process of its own, because Node 20 has a client for such connections behind an option only. */
function ask(address: string): Promise<string> {
  return new Promise((resolve) => {
    const options = { timeout: PATIENCE_MS, killSignal: 'SIGKILL' } as const;
    const args = ['--no-warnings', '--experimental-websocket', '-e', CLIENT, '--', address];
    execFile(process.execPath, args, options, (_, stdout) => resolve(stdout.trimEnd()));
  });
}
