// The content of messages, from whichever dialect, as chat templates want it: a text, or parts where there are images among them.
import { badField } from './api_error';
import type { SentImage } from './sent_image';

/** An entry of a list of parts. */
export type Part = Readonly<Record<string, unknown>>;

/** The text of a part that has one. @throws ApiError 400 */
export function textField({ text }: Part, field: string): string {
  if (typeof text === 'string') return text;
  throw badField(`${field}.text`, 'expected a text');
}

/** How a dialect writes parts. */
export interface PartForms {
  /** The type of text, for errors. */
  text: string;
  /** null: it is of another type. @throws ApiError 400 */
  textOf(part: Part, field: string): string | null;
  /** The type of images. */
  image: string;
  /** @throws ApiError 400 */
  imageOf(part: Part, field: string): SentImage;
}

export type ShownPart = { type: 'text'; text: string } | { type: 'image' };
export type Content = string | ShownPart[];

/** Text alone is one text, whatever its parts: templates need not know parts then. */
export const joined = (parts: ShownPart[]): Content =>
  parts.every((part) => part.type === 'text') ? parts.map(({ text }) => text).join('') : parts;

/** Images of a request. */
const MOST_IMAGES = 256;

/** Reads the contents of a request one after the other, and keeps their images in order. */
export class MessageParts {
  readonly images: SentImage[] = [];

  /** `readsImages`: what the model can be shown. */
  constructor(
    private readonly forms: PartForms,
    private readonly readsImages: boolean,
  ) {}

  /**
   * `images`: whether there may be some in messages of this role.
   * @throws ApiError 400 naming the first part that is wrong
   */
  content(given: string | readonly unknown[], field: string, images: boolean): Content {
    if (typeof given === 'string') return given;
    return joined(given.map((part, i) => this.part(part, `${field}.${i}`, images)));
  }

  /** As {@link content} of one part. */
  part(given: unknown, field: string, images: boolean): ShownPart {
    if (typeof given !== 'object' || given === null || Array.isArray(given))
      throw badField(field, 'expected a part, an object with a type');
    const part = given as Part;
    const { forms } = this;
    const text = forms.textOf(part, field);
    if (text !== null) return { type: 'text', text };
    const at = `${field}.type`;
    const expected = `expected "${forms.text}"`;
    if (!this.readsImages) throw badField(at, `${expected}: this server reads text only`);
    if (part['type'] !== forms.image) throw badField(at, `${expected} or "${forms.image}"`);
    if (!images) throw badField(at, `${expected}: images are for messages of the user and of tools`);
    if (this.images.length === MOST_IMAGES)
      throw badField(field, `expected at most ${MOST_IMAGES} images in a request`);
    this.images.push(forms.imageOf(part, field));
    return { type: 'image' };
  }
}
