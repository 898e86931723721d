// A thread that reads images: from base64 to what a model is given.
import { createHash } from 'node:crypto';
import { parentPort, workerData } from 'node:worker_threads';
import { reasonOf } from '../../base/text';
import { imageSize } from './decode';
import { readImage, sizeToRead } from './read_image';
import type {
  ImageThreadOptions,
  ImageThreadReply,
  ImageThreadRequest,
  OpenedImage,
} from './thread_protocol';

/** In errors, which whoever asks has a better name for. */
const WHERE = 'image';
const PREFIX = `[data] ${WHERE}: `;

const { processor, mostPixels } = workerData as ImageThreadOptions;

/** Node's own decoder passes over what is no base64. */
function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const wrong = base64.search(/[^A-Za-z0-9+/]/);
  const end = wrong < 0 ? base64.length : wrong;
  if (base64.length % 4 !== 0 || !/^={0,2}$/.test(base64.slice(end)))
    throw new Error(
      `expected base64, got ${base64.length} characters, ` +
        (wrong < 0 ? 'which is no multiple of 4' : `of which one at ${wrong} is none of it`),
    );
  if (base64 === '') throw new Error('expected the bytes of an image in base64, got none');
  return new Uint8Array(Buffer.from(base64, 'base64'));
}

async function opened(base64: string): Promise<OpenedImage> {
  const bytes = bytesOf(base64);
  const size = await imageSize(bytes, WHERE, mostPixels);
  const [height, width] = sizeToRead(size.height, size.width, processor, WHERE);
  const key = createHash('sha256').update(bytes).digest('base64');
  return { bytes, height, width, pixels: size.height * size.width, key };
}

async function answer(request: ImageThreadRequest): Promise<[ImageThreadReply, ArrayBuffer]> {
  const { id } = request;
  if (request.kind === 'open') {
    const found = await opened(request.base64);
    return [{ id, opened: found }, found.bytes.buffer];
  }
  const image = await readImage(request.bytes, processor, WHERE, mostPixels);
  return [{ id, image }, image.pixels.buffer as ArrayBuffer];
}

const port = parentPort as NonNullable<typeof parentPort>;
port.on('message', (request: ImageThreadRequest) => {
  answer(request).then(
    ([reply, bytes]) => port.postMessage(reply, [bytes]),
    (error: unknown) => {
      const refused = reasonOf(error);
      port.postMessage({ id: request.id, refused: refused.replace(PREFIX, '') } satisfies ImageThreadReply);
    },
  );
});
