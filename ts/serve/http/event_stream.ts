// Server-sent events to one reader.
import type { ServerResponse } from 'node:http';
import type { ServerEvent } from '../call/answer';
import type { Reader } from './reader';

/**
 * Writes the events until they end or the reader has left. What the engine makes meanwhile waits as tokens, not as text, so a reader that
 * is slow costs a few bytes per token.
 */
export async function writeEvents(
  response: ServerResponse,
  events: AsyncIterable<ServerEvent>,
  reader: Reader,
): Promise<void> {
  response.writeHead(200, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache',
    'x-accel-buffering': 'no',
  });
  response.flushHeaders();
  for await (const { event, data } of events) {
    const name = event === undefined ? '' : `event: ${event}\n`;
    if (!(await reader.write(`${name}data: ${data}\n\n`))) return;
  }
  response.end();
}
