// Server-sent events to one reader, no faster than it reads.
import type { ServerResponse } from 'node:http';
import type { ServerEvent } from '../call/answer';

/**
 * Writes the events until they end or the reader is gone. What the engine makes meanwhile waits as tokens, not as text, so a reader that
 * is slow costs a few bytes per token; one that takes nothing for `stallMs` is given up.
 */
export async function writeEvents(
  response: ServerResponse,
  events: AsyncIterable<ServerEvent>,
  stallMs: number,
): Promise<void> {
  response.writeHead(200, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache',
    'x-accel-buffering': 'no',
  });
  response.flushHeaders();
  for await (const { event, data } of events) {
    if (response.destroyed) return;
    const name = event === undefined ? '' : `event: ${event}\n`;
    if (response.write(`${name}data: ${data}\n\n`)) continue;
    if (!(await taken(response, 'drain', stallMs))) return;
  }
  response.end();
}

/** Resolves when the reader has taken what was written (drain) or everything (finish); false: it is gone, or was given up. */
export function taken(
  response: ServerResponse,
  event: 'drain' | 'finish',
  stallMs: number,
): Promise<boolean> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      response.off(event, end);
      response.off('close', end);
      resolve(!response.destroyed);
    };
    const timer = setTimeout(() => {
      response.destroy();
      end();
    }, stallMs);
    response.on(event, end);
    response.on('close', end);
    // It may have happened before anybody listened.
    if (response.destroyed || (event === 'finish' && response.writableFinished)) end();
  });
}
