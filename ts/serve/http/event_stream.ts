// Server-sent events to one reader, no faster than it reads.
import type { ServerResponse } from 'node:http';
import type { ServerEvent } from '../call/answer';

/**
 * Writes the events until they end or the reader is gone. What the engine makes meanwhile waits as tokens, not as text, so a reader that
 * is slow costs a few bytes per token; one that takes nothing for `stallMs` is given up. `gone` aborts when the reader leaves.
 */
export async function writeEvents(
  response: ServerResponse,
  events: AsyncIterable<ServerEvent>,
  stallMs: number,
  gone: AbortSignal,
): Promise<void> {
  response.writeHead(200, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache',
    'x-accel-buffering': 'no',
  });
  response.flushHeaders();
  for await (const { event, data } of events) {
    if (gone.aborted || response.destroyed) return;
    const name = event === undefined ? '' : `event: ${event}\n`;
    if (response.write(`${name}data: ${data}\n\n`)) continue;
    if (!(await taken(response, 'drain', stallMs, gone))) return;
  }
  response.end();
}

/**
 * Resolves when the reader has taken what was written (drain) or everything (finish); false: it is gone, or was given up. A response that
 * waits for the one before it on its connection hears nothing of the end of that: `gone` does.
 */
export function taken(
  response: ServerResponse,
  event: 'drain' | 'finish',
  stallMs: number,
  gone: AbortSignal,
): Promise<boolean> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      response.off(event, end);
      gone.removeEventListener('abort', end);
      resolve(!gone.aborted && !response.destroyed);
    };
    const timer = setTimeout(() => {
      response.destroy();
      end();
    }, stallMs);
    response.on(event, end);
    gone.addEventListener('abort', end);
    // It may have happened before anybody listened.
    if (gone.aborted || (event === 'finish' && response.writableFinished)) end();
  });
}
