// Messages between a process and its threads that read images.
import type { PromptImage } from '../../batch/prompt_image';
import type { ImageProcessor } from '../../model/image_processor';

/** What a thread is started with. */
export interface ImageThreadOptions {
  processor: ImageProcessor;
  /** Of one image, before it is resized. */
  mostPixels: number;
}

/** An image file whose size is known. */
export interface OpenedImage {
  bytes: Uint8Array<ArrayBuffer>;
  /** In which the model reads it. */
  height: number;
  width: number;
  /** Of the file, before it is resized. */
  pixels: number;
  /** Equal for equal files alone. */
  key: string;
}

export type ImageThreadRequest = { id: number } & (
  | { kind: 'open'; base64: string }
  | { kind: 'read'; bytes: Uint8Array }
);

/** What was asked for, or what is wrong with the image. */
export interface ImageThreadReply {
  id: number;
  opened?: OpenedImage;
  image?: PromptImage;
  refused?: string;
  error?: string;
}
