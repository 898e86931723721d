// The images of a conversation: from what was sent to what an engine is given, and their tokens.
import { createHash } from 'node:crypto';
import type { PromptImage } from '../../batch/prompt_image';
import { type ImageThreads, UnreadableImage } from '../../data/images/image_threads';
import { type ImageReading, placesOfImages, withImageTokens } from '../../data/images/image_tokens';
import { badField } from './api_error';
import type { SentImage } from './sent_image';

/** Its size is known; its pixels are read when it is sure that there is room for it. */
export interface ConversationImage {
  /** In which the model reads it. */
  height: number;
  width: number;
  /** Equal for equal images alone. */
  key: string;
  read(): Promise<PromptImage>;
}

/** One that has been read. Its key is made when somebody asks for it. */
export function readImageOf(image: PromptImage): ConversationImage {
  const { height, width, pixels } = image;
  let key: string | null = null;
  return {
    height,
    width,
    get key() {
      key ??= createHash('sha256').update(`${height}x${width}:`).update(pixels).digest('base64');
      return key;
    },
    read: async () => image,
  };
}

/** Pixels of all images of a request, before they are resized: what a body of a few bytes may decode to. */
const MOST_PIXELS = 2 ** 28;

/** @throws ApiError 400 naming the field of the first that is no image, or one too many */
export async function openImages(
  sent: readonly SentImage[],
  threads: ImageThreads,
  signal: AbortSignal,
): Promise<ConversationImage[]> {
  const opened = await all(sent, ({ base64, field }) => naming(field, threads.open(base64, signal)));
  let sum = 0;
  return opened.map(({ height, width, key, bytes, pixels }, i) => {
    const { field } = sent[i] as SentImage;
    sum += pixels;
    if (sum > MOST_PIXELS)
      throw badField(field, `expected images of at most ${MOST_PIXELS} pixels in all, got ${sum} up to here`);
    return { height, width, key, read: () => naming(field, threads.read({ bytes, key }, signal)) };
  });
}

/** @throws ApiError 400 naming the field of the first that cannot be read */
export const readConversationImages = (images: readonly ConversationImage[]): Promise<PromptImage[]> =>
  all(images, (image) => image.read());

/**
 * The ids of a prompt that a template has written, with as many tokens for each image as it has parts. A token for an image that somebody wrote
 * as text stands for none, and is refused.
 * @throws ApiError 400 naming `field`
 */
export function withImages(
  tokens: Int32Array,
  images: readonly ConversationImage[],
  reading: ImageReading,
  field: string,
): Int32Array {
  const places = placesOfImages(tokens, reading);
  if (places === images.length) return withImageTokens(tokens, images, reading);
  throw badField(
    field,
    `the prompt has ${places} tokens with id ${reading.imageToken}, which stands for an image, and the request has ${images.length} images: expected as ` +
      'many (it may not be written as text, and the chat template must write it for each image)',
  );
}

/** One after the other is heard of, also where a later one fails first. */
async function all<T, R>(of: readonly T[], work: (one: T) => Promise<R>): Promise<R[]> {
  const settled = await Promise.allSettled(of.map(work));
  const failed = settled.find(({ status }) => status === 'rejected');
  if (failed !== undefined) throw (failed as PromiseRejectedResult).reason;
  return settled.map((one) => (one as PromiseFulfilledResult<Awaited<R>>).value);
}

async function naming<T>(field: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw error instanceof UnreadableImage ? badField(field, error.message) : error;
  }
}
