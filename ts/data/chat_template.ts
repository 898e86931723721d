import { Template } from '@huggingface/jinja';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { stripFunctions, usePythonStrip } from './python_strip';

export interface ChatMessage {
  role: string;
  content: unknown;
  [key: string]: unknown;
}

/** A chat template as Hugging Face renders it: `messages`, `add_generation_prompt` and the special tokens are in scope (and the library's raise_exception, strftime_now, range). */
export class ChatTemplate {
  private readonly template: Template;

  constructor(
    source: string,
    private readonly where: string,
    private readonly specialTokens: Readonly<Record<string, string>>,
  ) {
    try {
      this.template = new Template(source);
      usePythonStrip(this.template);
    } catch (cause) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[data] ${where}: the chat template does not parse: ${reasonOf(cause)}`,
        { cause },
      );
    }
  }

  render(
    messages: readonly ChatMessage[],
    addGenerationPrompt: boolean,
    extra: Readonly<Record<string, unknown>> = {},
  ): string {
    const scope = {
      ...stripFunctions,
      ...this.specialTokens,
      ...extra,
      messages,
      add_generation_prompt: addGenerationPrompt,
    };
    try {
      return this.template.render(scope);
    } catch (cause) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${this.where}: the chat template failed: ${reasonOf(cause)}`,
        { cause },
      );
    }
  }
}
