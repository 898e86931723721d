// Where the images of a prompt are, in its messages.
import type { ChatMessage } from './chat_template';

/** What stands in the text of a message for the next image of the row, as in verl. */
export const PLACEHOLDER = '<image>';

/** How many parts of these messages are images. */
export const imageParts = (messages: readonly ChatMessage[]): number =>
  messages.reduce(
    (count, { content }) => count + (Array.isArray(content) ? content.filter(isImage).length : 0),
    0,
  );

/** With each `<image>` in a text as a part of its own, as in verl's RLHFDataset. Messages with parts are what they were. */
export function withImageParts(messages: readonly ChatMessage[]): ChatMessage[] {
  return messages.map((message) => {
    const { content } = message;
    if (typeof content !== 'string') return message;
    const parts = content
      .split(PLACEHOLDER)
      .flatMap((text, i) => [
        ...(i === 0 ? [] : [{ type: 'image' }]),
        ...(text === '' ? [] : [{ type: 'text', text }]),
      ]);
    return { ...message, content: parts };
  });
}

const isImage = (part: unknown): boolean => (part as { type?: unknown } | null)?.type === 'image';
