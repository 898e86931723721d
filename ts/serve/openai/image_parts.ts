// Parts of messages in the dialects of the OpenAI API.
import { badField } from '../call/api_error';
import { type Part, type PartForms, textField } from '../call/message_parts';
import { imageAt } from '../call/sent_image';

/** Of chat completions. */
export const CHAT_PARTS: PartForms = {
  text: 'text',
  textOf: (part, field) => (part['type'] === 'text' ? textField(part, field) : null),
  image: 'image_url',
  imageOf: (part, field) => {
    const { image_url: image } = part;
    const at = `${field}.image_url`;
    if (typeof image !== 'object' || image === null) return imageAt(image, at);
    checkDetail(image as Part, at);
    return imageAt((image as Part)['url'], `${at}.url`);
  },
};

const RESPONSE_TEXTS: readonly unknown[] = ['input_text', 'output_text', 'text', 'refusal'];

/** Of responses; the words of a refusal are none of the conversation. */
export const RESPONSE_PARTS: PartForms = {
  text: 'input_text',
  textOf: (part, field) => {
    if (!RESPONSE_TEXTS.includes(part['type'])) return null;
    return part['text'] === undefined ? '' : textField(part, field);
  },
  image: 'input_image',
  imageOf: (part, field) => {
    checkDetail(part, field);
    return imageAt(part['image_url'], `${field}.image_url`);
  },
};

/** Every image is read in the one size that the model's directory says. @throws ApiError 400 */
function checkDetail({ detail }: Part, field: string): void {
  if (detail === undefined || detail === null || detail === 'auto') return;
  throw badField(
    `${field}.detail`,
    'expected "auto": the size in which an image is read is that of the model\'s image processor',
  );
}
