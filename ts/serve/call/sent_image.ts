// An image as a request has it: nothing of it is decoded yet.
import { printable } from '../../base/printable';
import { badField } from './api_error';

export interface SentImage {
  base64: string;
  /** Of the body, for errors. */
  field: string;
}

const KINDS = ['png', 'jpeg', 'jpg', 'webp', 'gif', 'tiff'];
const MOST_PARAMETERS = 16;
const EXPECTED = `expected image/${KINDS.slice(0, -1).join(', image/')} or image/${KINDS.at(-1)}`;

/** A data: address. What else strangers name is not fetched. @throws ApiError 400 */
export function imageAt(url: unknown, field: string): SentImage {
  if (typeof url !== 'string') throw badField(field, 'expected the data: address of an image');
  if (!/^data:/i.test(url))
    throw badField(
      field,
      `this server fetches no images: expected data:image/png;base64,... with the image itself, got ${shown(url)}`,
    );
  const comma = url.indexOf(',');
  const [type = '', ...parameters] = url
    .slice('data:'.length, Math.max(comma, 0))
    .split(';', MOST_PARAMETERS);
  if (parameters.at(-1)?.toLowerCase() !== 'base64')
    throw badField(field, `expected a data: address in base64, got ${shown(url)}`);
  return imageOf(type, url.slice(comma + 1), field);
}

/** @throws ApiError 400 */
export function imageOf(type: string, base64: string, field: string): SentImage {
  const [kind, name = ''] = type.toLowerCase().split('/');
  if (kind !== 'image' || !KINDS.includes(name)) throw badField(field, `${EXPECTED}, got ${shown(type)}`);
  return { base64, field };
}

const shown = (text: string): string => JSON.stringify(printable(text, { max: 100 }));
