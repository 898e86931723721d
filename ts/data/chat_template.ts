import { printable } from '../base/printable';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { JinjaTemplate } from './jinja/template';

export interface ChatMessage {
  role: string;
  content: unknown;
  [key: string]: unknown;
}

/** What a message's reasoning may be called; templates read the first of them, and those of gpt-oss the second. */
const REASONING = ['reasoning_content', 'thinking', 'reasoning'] as const;

/**
 * A message as transformers (5.24) gives it to a template: without what is null, such as `content` beside calls of tools or the
 * `tool_calls` that a parquet column has in every message, and with its reasoning under the names that templates read.
 */
function templateMessage(message: ChatMessage): Record<string, unknown> {
  const given = Object.fromEntries(
    Object.entries(message).filter(([, value]) => value !== null && value !== undefined),
  );
  const name = REASONING.find((key) => Object.hasOwn(given, key));
  if (name === undefined) return given;
  const reasoning = given[name];
  return { thinking: reasoning, ...given, reasoning_content: reasoning };
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
      // The parser looks at the piece behind the last one.
      const why =
        cause instanceof TypeError
          ? 'it ends within a statement or a block: is an end, such as {% endfor %}, missing?'
          : printable(reasonOf(cause));
      throw new TroupeError('INVALID_MODEL', `[data] ${where}: the chat template does not parse: ${why}`, {
        cause,
      });
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
      messages: messages.map(templateMessage),
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
