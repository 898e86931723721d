// node -r register_ts.js starved_sessions.ts: opens a session without a file descriptor left, and another one after; says what came of each.
import { closeSync, openSync } from 'node:fs';
import { type Session, SessionServer } from '../../../ts/agent/endpoint/session_server';

const sessions = new SessionServer();
const open = (): Promise<string> =>
  sessions.open({} as Session).then(
    () => 'open',
    (error: Error) => error.message,
  );

async function main(): Promise<void> {
  const taken: number[] = [];
  try {
    for (;;) taken.push(openSync('/dev/null', 'r'));
  } catch {
    // It has them all.
  }
  const starved = await Promise.all([open(), open()]);
  for (const file of taken) closeSync(file);
  console.log(JSON.stringify([...starved, await open()]));
  await sessions.close();
}

void main();
