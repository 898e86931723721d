// Reads images beside the thread that asks: decoding a large one and resizing it takes a second or more.
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { LRUCache } from 'lru-cache';
import pLimit from 'p-limit';
import { ThreadCalls } from '../../base/thread_calls';
import type { PromptImage } from '../../batch/prompt_image';
import { TroupeError } from '../../errors';
import { packageRoot } from '../../install/package_root';
import type { ImageReading } from './image_tokens';
import type {
  ImageThreadOptions,
  ImageThreadReply,
  ImageThreadRequest,
  OpenedImage,
} from './thread_protocol';

/** An image of the most pixels takes up to 0.6 GB while it is read. */
const MOST_THREADS = 2;
const MOST_PIXELS = 2 ** 26;
/** Of what was read last: a conversation sends its images with every turn. */
const KEPT_BYTES = 256 * 2 ** 20;

/** What is wrong with an image, in words that do not name it. */
export class UnreadableImage extends Error {}

type Thread = ThreadCalls<ImageThreadRequest, ImageThreadReply>;
type Asked = Parameters<Thread['ask']>[0];

/** The threads start when there is the first image; those that nobody waits for any more are not read. */
export class ImageThreads {
  private readonly idle: Thread[] = [];
  private readonly all = new Set<Thread>();
  private readonly kept = new LRUCache<string, PromptImage>({
    maxSize: KEPT_BYTES,
    sizeCalculation: ({ pixels }) => pixels.length,
  });
  private readonly limit = pLimit(Math.min(MOST_THREADS, availableParallelism()));

  constructor(readonly reading: ImageReading) {}

  /**
   * What an image is, of which nothing is decoded yet.
   * @throws UnreadableImage: no base64, no image, or one that is too large or too oblong; the signal's reason
   */
  open(base64: string, signal: AbortSignal): Promise<OpenedImage> {
    return this.limit(async () => {
      signal.throwIfAborted();
      return (await this.ask({ kind: 'open', base64 })).opened as OpenedImage;
    });
  }

  /** @throws UnreadableImage where its pixels cannot be read; the signal's reason */
  async read({ bytes, key }: Pick<OpenedImage, 'bytes' | 'key'>, signal: AbortSignal): Promise<PromptImage> {
    return (
      this.kept.get(key) ??
      (await this.limit(async () => {
        signal.throwIfAborted();
        // Somebody else may have waited for the same one.
        const kept = this.kept.get(key);
        if (kept !== undefined) return kept;
        const image = (await this.ask({ kind: 'read', bytes })).image as PromptImage;
        this.kept.set(key, image);
        return image;
      }))
    );
  }

  async close(): Promise<void> {
    await Promise.all(Array.from(this.all, (thread) => thread.end()));
  }

  private async ask(request: Asked): Promise<ImageThreadReply> {
    const thread = this.idle.pop() ?? this.start();
    const reply = await thread.ask(request).catch((cause: unknown) => {
      this.all.delete(thread);
      const { message } = cause as Error;
      throw new TroupeError('IO', `[data] reading an image failed: ${message}`, { cause });
    });
    this.idle.push(thread);
    if (reply.refused !== undefined) throw new UnreadableImage(reply.refused);
    return reply;
  }

  private start(): Thread {
    const file = path.join(packageRoot, 'dist', 'data', 'images', 'image_thread.js');
    const options: ImageThreadOptions = { processor: this.reading, mostPixels: MOST_PIXELS };
    const thread: Thread = new ThreadCalls(file, options, 'images');
    this.all.add(thread);
    return thread;
  }
}
