// Responses that later requests go on from: previous_response_id of the responses API.
import type { ChatMessage } from '../../data/chat_template';

/** What a session keeps. Messages with the response as their last one, without the instructions, which do not carry over. */
export type KeptResponses = Map<string, readonly ChatMessage[]>;
