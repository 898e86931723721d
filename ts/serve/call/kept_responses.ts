// Responses that later requests go on from: previous_response_id of the responses API.
import type { ChatMessage } from '../../data/chat_template';
import type { SentImage } from './sent_image';

/** Messages, and their images in order. */
export interface KeptMessages {
  messages: readonly ChatMessage[];
  images: readonly SentImage[];
}

/** What a session keeps: with the response as the last message, without the instructions, which do not carry over. */
export type KeptResponses = Map<string, KeptMessages>;
