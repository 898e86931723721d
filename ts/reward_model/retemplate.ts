import { show } from '../base/text';
import { isConversation } from '../data/prompt';
import type { Tokenizer } from '../data/tokenizer';
import { TroupeError } from '../errors';

/**
 * A prompt and a response as the chat of a reward model's own tokenizer: token ids of its template over the messages of
 * the prompt and the response as the assistant's turn, without a generation prompt (verl's `_switch_chat_template`). A prompt
 * that is plain text gets no template: prompt and response are one text, with the tokenizer's special tokens.
 * @throws TroupeError INVALID_DATA when the prompt is neither, or the tokenizer has no chat template
 */
export function retemplated(
  rawPrompt: unknown,
  response: string,
  tokenizer: Tokenizer,
  where: string,
): Int32Array {
  if (typeof rawPrompt === 'string') return tokenizer.encode(rawPrompt + response, true);
  if (!isConversation(rawPrompt)) {
    throw new TroupeError(
      'INVALID_DATA',
      `[${where}] expected the prompt as a string or a list of {role, content}, got ${show(rawPrompt)}`,
    );
  }
  if (!tokenizer.hasChatTemplate) {
    throw new TroupeError(
      'INVALID_MODEL',
      `[${where}] the tokenizer of the reward model in ${tokenizer.directory} has no chat template, which another ` +
        'tokenizer than the policy’s needs: put chat_template.jinja there, or leave the input tokenizer out when the ' +
        'token ids are the same',
    );
  }
  const chat = [...rawPrompt, { role: 'assistant', content: response }];
  return tokenizer.encode(tokenizer.renderChat(chat, false));
}
