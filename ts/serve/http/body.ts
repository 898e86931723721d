// The body of a request as text, up to a size, or dropped.
import type { IncomingMessage } from 'node:http';
import { ApiError } from '../call/api_error';

/** What is left of a body that was refused may take so long to come. */
const DROP_MS = 30_000;

/**
 * Of a body that is refused the rest is for {@link dropRest}.
 * @throws ApiError 413 when it is larger, 415 when it is compressed, 400 when it is not UTF-8
 */
export async function readBody(request: IncomingMessage, maxBytes: number): Promise<string> {
  const { 'content-length': declared = 0, 'content-encoding': encoding = 'identity' } = request.headers;
  if (encoding.toLowerCase() !== 'identity')
    throw new ApiError(
      415,
      `expected a body that is not compressed, got content-encoding: ${encoding.slice(0, 100)}`,
    );
  if (Number(declared) > maxBytes) throw tooLarge(maxBytes);
  const body = await bytesOf(request, maxBytes);
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(body);
  } catch {
    throw new ApiError(400, 'expected a body in UTF-8');
  }
}

function bytesOf(request: IncomingMessage, maxBytes: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    let chunks: Buffer[] = [];
    let size = 0;
    request.on('data', (chunk: Buffer) => {
      size += chunk.length;
      if (size <= maxBytes) chunks.push(chunk);
      else {
        chunks = [];
        reject(tooLarge(maxBytes));
      }
    });
    request.on('end', () => resolve(Buffer.concat(chunks)));
    request.on('error', reject);
  });
}

/**
 * What is left of the body of a request that is refused is dropped as it comes, not cut off: a client that is told so only while it sends
 * would find its connection broken, and not why. Who sends on without end is cut off.
 */
export function dropRest(request: IncomingMessage): void {
  if (request.complete) return;
  const { socket } = request;
  const late = setTimeout(() => socket.destroy(), DROP_MS).unref();
  request.once('close', () => clearTimeout(late));
  request.resume();
}

const tooLarge = (maxBytes: number): ApiError =>
  new ApiError(413, `expected a body of at most ${maxBytes} bytes`, null, 'request_too_large');
