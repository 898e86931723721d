import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Tokenizer as HfTokenizer } from '@huggingface/tokenizers';
import { TroupeError } from '../errors';
import { type ChatMessage, ChatTemplate } from './chat_template';

/** Options of `Tokenizer.load`. */
export interface TokenizerOptions {
  /** Replaces the chat template of the directory. */
  chatTemplate?: string | null;
}

const SPECIAL = [
  'bos_token',
  'eos_token',
  'pad_token',
  'unk_token',
  'sep_token',
  'cls_token',
  'mask_token',
] as const;

/**
 * The tokenizer of a Hugging Face directory: tokenizer.json through @huggingface/tokenizers (the reference
 * implementation's port), special tokens and chat template from tokenizer_config.json or chat_template.jinja.
 */
export class Tokenizer {
  private constructor(
    private readonly inner: HfTokenizer,
    private readonly template: ChatTemplate | null,
    readonly directory: string,
    /** One more than the largest id the tokenizer can produce. */
    readonly vocabSize: number,
    readonly eosId: number | null,
    readonly padId: number | null,
  ) {}

  /** @throws TroupeError INVALID_MODEL naming the file that is missing or unusable */
  static load(directory: string, options: TokenizerOptions = {}): Tokenizer {
    const file = path.join(directory, 'tokenizer.json');
    const definition = readJson(file);
    if (definition === null) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[data] ${directory} has no tokenizer.json: expected a directory with a fast tokenizer (set actor_rollout_ref.model.tokenizer_path)`,
      );
    }
    const configFile = path.join(directory, 'tokenizer_config.json');
    const config = readJson(configFile) ?? {};
    let inner: HfTokenizer;
    try {
      inner = new HfTokenizer(definition, config);
    } catch (cause) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[data] ${file} is not a usable tokenizer: ${(cause as Error).message}`,
        { cause },
      );
    }
    const special: Record<string, string> = {};
    for (const name of SPECIAL) {
      const text = tokenText(config[name]);
      if (text !== null) special[name] = text;
    }
    const id = (name: string): number | null => {
      const text = special[name];
      return text === undefined ? null : (inner.token_to_id(text) ?? null);
    };
    const source = options.chatTemplate ?? templateSource(directory, config);
    const template = source === null ? null : new ChatTemplate(source, directory, special);
    return new Tokenizer(
      inner,
      template,
      directory,
      largestId(definition) + 1,
      id('eos_token'),
      id('pad_token'),
    );
  }

  /** Token ids; special tokens of the post-processor (a leading <s>, ...) only when asked for. */
  encode(text: string, addSpecialTokens = false): Int32Array {
    return Int32Array.from(this.inner.encode(text, { add_special_tokens: addSpecialTokens }).ids);
  }

  decode(tokens: ArrayLike<number>, options: { skipSpecialTokens: boolean }): string {
    return this.inner.decode(Array.from(tokens), { skip_special_tokens: options.skipSpecialTokens });
  }

  get hasChatTemplate(): boolean {
    return this.template !== null;
  }

  /** The text of a conversation, ready for the assistant's turn when `addGenerationPrompt`. */
  renderChat(
    messages: readonly ChatMessage[],
    addGenerationPrompt: boolean,
    extra: Readonly<Record<string, unknown>> = {},
  ): string {
    if (this.template === null) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] the prompts are conversations, but the tokenizer of ${this.directory} has no chat template: give one ` +
          '(actor_rollout_ref.model.custom_chat_template) or write the prompts as plain strings',
      );
    }
    return this.template.render(messages, addGenerationPrompt, extra);
  }
}

/** A tokenizer that can produce ids the model has no embedding for would fail in the middle of a run. */
export function checkVocabulary(tokenizer: Tokenizer, modelVocabSize: number, modelDirectory: string): void {
  if (tokenizer.vocabSize > modelVocabSize) {
    throw new TroupeError(
      'INVALID_MODEL',
      `[data] the tokenizer of ${tokenizer.directory} produces ids up to ${tokenizer.vocabSize - 1}, but the model in ` +
        `${modelDirectory} has vocab_size ${modelVocabSize}: they do not belong together`,
    );
  }
}

function readJson(file: string): Record<string, unknown> | null {
  if (!existsSync(file)) return null;
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Record<string, unknown>;
  } catch (cause) {
    throw new TroupeError('INVALID_MODEL', `[data] ${file} is not valid JSON: ${(cause as Error).message}`, {
      cause,
    });
  }
}

/** A special token is a string, or an object with `content`. */
function tokenText(value: unknown): string | null {
  if (typeof value === 'string') return value;
  const content = (value as { content?: unknown } | null | undefined)?.content;
  return typeof content === 'string' ? content : null;
}

function templateSource(directory: string, config: Record<string, unknown>): string | null {
  const file = path.join(directory, 'chat_template.jinja');
  if (existsSync(file)) return readFileSync(file, 'utf8');
  const template = config['chat_template'];
  if (typeof template === 'string') return template;
  if (!Array.isArray(template)) return null;
  // Several named templates: the default one.
  const named = template as { name?: string; template?: string }[];
  return (named.find((entry) => entry.name === 'default') ?? named[0])?.template ?? null;
}

function largestId(definition: Record<string, unknown>): number {
  let largest = -1;
  const model = definition['model'] as { vocab?: unknown } | undefined;
  const vocabulary = model?.vocab;
  if (Array.isArray(vocabulary)) largest = vocabulary.length - 1;
  else
    for (const id of Object.values((vocabulary ?? {}) as Record<string, number>))
      largest = Math.max(largest, id);
  for (const token of (definition['added_tokens'] ?? []) as { id: number }[])
    largest = Math.max(largest, token.id);
  return largest;
}
