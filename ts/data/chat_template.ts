import { printable } from '../base/printable';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { JinjaTemplate } from './jinja/template';

export interface ChatMessage {
  role: string;
  content: unknown;
  [key: string]: unknown;
}

/**
 * A chat template as Hugging Face renders it: `messages`, `add_generation_prompt`, the special tokens, raise_exception, strftime_now
 * and range are in scope; `tools` and `documents` are none unless they are given.
 */
export class ChatTemplate {
  private readonly template: JinjaTemplate;

  constructor(
    source: string,
    private readonly where: string,
    private readonly specialTokens: Readonly<Record<string, string>>,
  ) {
    try {
      this.template = new JinjaTemplate(source);
    } catch (cause) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[data] ${where}: the chat template does not parse: ${printable(reasonOf(cause))}`,
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
      tools: null,
      documents: null,
      ...this.specialTokens,
      ...extra,
      messages: messages.map(asRendered),
      add_generation_prompt: addGenerationPrompt,
    };
    try {
      return this.template.render(scope);
    } catch (cause) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${this.where}: the chat template failed: ${printable(reasonOf(cause))}`,
        { cause },
      );
    }
  }
}

/** The first one is the name that most templates read. */
const REASONING = ['reasoning_content', 'thinking', 'reasoning'];

function asRendered(message: ChatMessage): ChatMessage {
  const given = Object.entries(message).filter(([, value]) => value !== null && value !== undefined);
  const there = Object.fromEntries(given) as ChatMessage;
  const reasoning = REASONING.map((name) => there[name]).find((value) => value !== undefined);
  return reasoning === undefined ? there : { thinking: reasoning, ...there, reasoning_content: reasoning };
}
