import { once } from 'node:events';
import { connect } from 'node:net';

/** Reads nothing before all is sent, as Python's clients do. Resolves to the first line of the answer. */
export async function sendAll(url: string, head: string, body: Buffer): Promise<string> {
  const socket = connect(Number(new URL(url).port), '127.0.0.1').pause();
  try {
    await once(socket, 'connect');
    await new Promise<void>((sent, failed) => {
      socket.on('error', failed);
      socket.write(head);
      socket.write(body, () => sent());
    });
    const closed = once(socket, 'close').then(() => ['(no answer)']);
    const [answer] = await Promise.race([once(socket.resume(), 'data'), closed]);
    return String(answer).split('\r\n')[0] as string;
  } finally {
    socket.destroy();
  }
}
