// The body of a request as text, up to a size.
import type { IncomingMessage } from 'node:http';
import { ApiError } from '../call/api_error';

/** @throws ApiError 413 when it is larger, 400 when it is not UTF-8 */
export async function readBody(request: IncomingMessage, maxBytes: number): Promise<string> {
  const declared = Number(request.headers['content-length'] ?? 0);
  if (declared > maxBytes) throw tooLarge(maxBytes);
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > maxBytes) throw tooLarge(maxBytes);
    chunks.push(chunk);
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(chunks));
  } catch {
    throw new ApiError(400, 'expected a body in UTF-8');
  }
}

const tooLarge = (maxBytes: number): ApiError =>
  new ApiError(413, `expected a body of at most ${maxBytes} bytes`, null, 'request_too_large');
