// The images of a row: from what the row has to what a model is given, and into its prompt.
import { show } from '../base/text';
import type { PromptImage } from '../batch/prompt_image';
import { TroupeError } from '../errors';
import { imageParts, PLACEHOLDER, withImageParts } from './image_places';
import { imageSize } from './images/decode';
import { imageBytes } from './images/image_source';
import { type ImageReading, placesOfImages, tokensOfImage, withImageTokens } from './images/image_tokens';
import { readImage, sizeToRead } from './images/read_image';
import { isConversation } from './prompt';
import { type Row, refuseMedia } from './row';

/** Errors are TroupeError INVALID_DATA, or IO for files that cannot be read, and name row and image. */
export class RowImages {
  private constructor(
    private readonly values: readonly unknown[],
    private readonly reading: ImageReading | null,
    private readonly dataFile: string,
    private readonly where: string,
  ) {}

  /** `reading` null: the model reads text alone, and a row with images is refused. */
  static of(row: Row, key: string, reading: ImageReading | null, dataFile: string, where: string): RowImages {
    refuseMedia(row, where, reading === null ? null : key);
    return new RowImages(reading === null ? [] : valuesOf(row[key], key, where), reading, dataFile, where);
  }

  get count(): number {
    return this.values.length;
  }

  /**
   * A prompt with the images in it: each `<image>` in the text of a message becomes a part of its own, as in verl's RLHFDataset. Without images it
   * is what it was. There must be as many places as images.
   */
  inPrompt(prompt: unknown): unknown {
    if (this.count === 0) return prompt;
    if (!isConversation(prompt))
      throw this.invalid(
        `expected the prompt of a row with images to be a list of {role, content}, got ${show(prompt)}`,
      );
    const given = withImageParts(prompt);
    const places = imageParts(given);
    if (places === this.count) return given;
    throw this.invalid(
      `the prompt has a place (${PLACEHOLDER}) for ${places} images, and the row has ${this.count}: expected as many`,
    );
  }

  /** In the size in which the model reads them. */
  async read(): Promise<PromptImage[]> {
    const images: PromptImage[] = [];
    for (const [i, value] of this.values.entries()) {
      const at = `${this.where}, image ${i}`;
      images.push(
        await readImage(await imageBytes(value, this.dataFile, at), this.reading as ImageReading, at),
      );
    }
    return images;
  }

  /** How many tokens stand for all of them, from their sizes alone. */
  async countTokens(): Promise<number> {
    const reading = this.reading as ImageReading;
    let tokens = 0;
    for (const [i, value] of this.values.entries()) {
      const at = `${this.where}, image ${i}`;
      const { height, width } = await imageSize(await imageBytes(value, this.dataFile, at), at);
      const [tall, wide] = sizeToRead(height, width, reading, at);
      tokens += tokensOfImage({ height: tall, width: wide }, reading);
    }
    return tokens;
  }

  /** The ids of a prompt in which a token stands for each image, with as many as each has parts. */
  inTokens(tokens: Int32Array, images: readonly PromptImage[]): Int32Array {
    if (this.reading === null) return tokens;
    const places = placesOfImages(tokens, this.reading);
    if (places !== images.length)
      throw this.invalid(
        `the tokens of the prompt have ${places} with id ${this.reading.imageToken}, which stands for an image, and the row has ${images.length} images: ` +
          'expected as many (is the chat template that of a model which reads images?)',
      );
    return withImageTokens(tokens, images, this.reading);
  }

  private invalid(message: string): TroupeError {
    return new TroupeError('INVALID_DATA', `[data] ${this.where}: ${message}`);
  }
}

/** A list, one, or nothing. */
function valuesOf(value: unknown, key: string, where: string): readonly unknown[] {
  if (value === undefined || value === null) return [];
  if (Array.isArray(value)) return value;
  if (typeof value === 'object' || typeof value === 'string') return [value];
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected '${key}' to be a list of images, got ${show(value)}`,
  );
}
