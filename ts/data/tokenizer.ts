import path from 'node:path';
import { Tokenizer as HfTokenizer } from '@huggingface/tokenizers';
import {
  badOption,
  checkOptionNames,
  flagOption,
  isRecord,
  requireNumbers,
  requirePath,
  requireText,
} from '../base/check_options';
import { MODEL_LIMITS } from '../base/limits';
import { printable } from '../base/printable';
import { reasonOf, show } from '../base/text';
import { TroupeError } from '../errors';
import { type ChatMessage, ChatTemplate } from './chat_template';
import { withPatterns } from './pre_tokenizer';
import { readJsonObject, specialTokens, templateSources } from './tokenizer_files';

/** Options of `Tokenizer.load`. */
export interface TokenizerOptions {
  /** Replaces the chat template of the directory. */
  chatTemplate?: string | null;
}

/**
 * The tokenizer of a Hugging Face directory: tokenizer.json through @huggingface/tokenizers (the reference
 * implementation's port), special tokens and chat template from tokenizer_config.json or the files beside it.
 */
export class Tokenizer {
  /** What renders conversations with tools; made when there is the first one. */
  private withTools: ChatTemplate | null = null;

  private constructor(
    private readonly inner: HfTokenizer,
    private readonly template: ChatTemplate | null,
    private readonly specialTokens: Readonly<Record<string, string>>,
    readonly directory: string,
    /** One more than the largest id the tokenizer can produce. */
    readonly vocabSize: number,
    readonly eosId: number | null,
    readonly padId: number | null,
    private readonly cleanUp: boolean,
    /** How the texts of its tokens stand for bytes. */
    readonly byteCoding: ByteCoding,
    /** The source of the chat template. */
    readonly chatTemplate: string | null,
    /** That of conversations with tools: the same, unless the directory has one of its own for them (`tool_use`). */
    readonly toolTemplate: string | null,
    /** Given in place of those of the directory. */
    private readonly ownTemplate: string | null,
  ) {}

  /** @throws TroupeError INVALID_MODEL naming the file that is missing or unusable, INVALID_ARGUMENT for other arguments; as all methods do */
  static load(directory: string, options: TokenizerOptions = {}): Tokenizer {
    requirePath('Tokenizer.load', 'a directory with tokenizer.json', directory);
    checkOptionNames('Tokenizer.load', options, ['chatTemplate']);
    if ((options.chatTemplate ?? null) !== null)
      requireText('Tokenizer.load', 'chatTemplate', options.chatTemplate);
    const file = path.join(directory, 'tokenizer.json');
    const definition = readJsonObject(file);
    if (definition === null) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[data] ${directory} has no tokenizer.json: expected a directory with a fast tokenizer: copy that of the model which this one was made from into it, or name its directory as tokenizer_path of the model in a configuration`,
      );
    }
    const configFile = path.join(directory, 'tokenizer_config.json');
    const config = readJsonObject(configFile) ?? {};
    checkModel(definition, file);
    const vocabSize = largestId(definition, file) + 1;
    let inner: HfTokenizer;
    try {
      inner = new HfTokenizer(withPatterns(definition), config);
      keepMarks(inner.decoder);
    } catch (cause) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[data] ${file} is not a usable tokenizer: ${printable(reasonOf(cause))}`,
        { cause },
      );
    }
    const special = specialTokens(directory, config, (id) => inner.id_to_token(id));
    const id = (name: string): number | null => {
      const text = special[name];
      return text === undefined ? null : (inner.token_to_id(text) ?? null);
    };
    const ownTemplate = options.chatTemplate ?? null;
    const { usual, toolUse } =
      ownTemplate === null ? templateSources(directory, config) : { usual: ownTemplate, toolUse: null };
    return new Tokenizer(
      inner,
      usual === null ? null : new ChatTemplate(usual, directory, special),
      special,
      directory,
      vocabSize,
      id('eos_token'),
      id('pad_token'),
      cleansUp(definition, config),
      byteCodingOf(definition),
      usual,
      toolUse ?? usual,
      ownTemplate,
    );
  }

  /** What to load it from again. */
  get source(): { directory: string; chatTemplate: string | null } {
    return { directory: this.directory, chatTemplate: this.ownTemplate };
  }

  /** Token ids; special tokens of the post-processor (a leading <s>, ...) only when asked for. */
  encode(text: string, addSpecialTokens = false): Int32Array {
    requireText('Tokenizer.encode', 'text', text);
    return this.using(() =>
      Int32Array.from(this.inner.encode(text, { add_special_tokens: addSpecialTokens }).ids),
    );
  }

  decode(tokens: ArrayLike<number>, options: { skipSpecialTokens: boolean }): string {
    requireNumbers('Tokenizer.decode', 'tokens', tokens);
    checkOptionNames('Tokenizer.decode', options, ['skipSpecialTokens']);
    const skip = flagOption('Tokenizer.decode', 'skipSpecialTokens', options.skipSpecialTokens, false);
    // Ids behind the vocabulary have no text: models have rows for more of them than there are tokens.
    const known = Array.from(tokens).filter((id) => this.tokenString(id) !== null);
    if (known.length === 0) return ''; // The library refuses it.
    return this.using(() =>
      this.inner.decode(known, {
        skip_special_tokens: skip,
        clean_up_tokenization_spaces: this.cleanUp,
      }),
    );
  }

  /** Some of what is wrong with a tokenizer.json shows in use only. */
  private using<T>(work: () => T): T {
    try {
      return work();
    } catch (cause) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[data] the tokenizer of ${this.directory} failed: ${printable(reasonOf(cause))}`,
        { cause },
      );
    }
  }

  /** As the vocabulary has it, which is not yet text; null for an id that is no token. */
  tokenString(id: number): string | null {
    if (typeof id !== 'number')
      throw badOption('Tokenizer.tokenString', `expected a token id but got ${show(id)}`);
    return this.inner.id_to_token(id) ?? null;
  }

  /** Tokens beside the model's own vocabulary, by id: ends of turns, tags of tools. `special`: they stand for no text. */
  addedTokens(): Map<number, { content: string; special: boolean }> {
    return this.inner.get_added_tokens_decoder();
  }

  get hasChatTemplate(): boolean {
    return this.chatTemplate !== null;
  }

  /** The text of a conversation, ready for the assistant's turn when `addGenerationPrompt`. `extra`: more variables, `tools` among them. */
  renderChat(
    messages: readonly ChatMessage[],
    addGenerationPrompt: boolean,
    extra: Readonly<Record<string, unknown>> = {},
  ): string {
    const given: unknown = messages;
    if (!Array.isArray(given) || !given.every(isRecord))
      throw badOption(
        'Tokenizer.renderChat',
        `messages: expected an array of {role, content} but got ${show(messages)}`,
      );
    if (!isRecord(extra))
      throw badOption(
        'Tokenizer.renderChat',
        `extra: expected an object of variables but got ${show(extra)}`,
      );
    const template = (extra['tools'] ?? null) === null ? this.template : this.toolUse();
    if (template === null) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] the prompts are conversations, but the tokenizer of ${this.directory} has no chat template: give one ` +
          '(actor_rollout_ref.model.custom_chat_template) or write the prompts as plain strings',
      );
    }
    return template.render(messages, addGenerationPrompt, extra);
  }

  private toolUse(): ChatTemplate | null {
    if (this.toolTemplate === null || this.toolTemplate === this.chatTemplate) return this.template;
    this.withTools ??= new ChatTemplate(this.toolTemplate, this.directory, this.specialTokens);
    return this.withTools;
  }
}

/** byte_level: a character per byte (GPT-2's table); byte_fallback: text, with <0x0A> for bytes; raw: text. */
export type ByteCoding = 'byte_level' | 'byte_fallback' | 'raw';

function byteCodingOf({ decoder }: Record<string, unknown>): ByteCoding {
  const steps = ((decoder as { decoders?: unknown } | null | undefined)?.decoders ?? [decoder]) as unknown[];
  const types = (Array.isArray(steps) ? steps : []).map((step) => (step as { type?: unknown } | null)?.type);
  if (types.includes('ByteLevel')) return 'byte_level';
  return types.includes('ByteFallback') ? 'byte_fallback' : 'raw';
}

/** A U+FEFF in bytes of its own is text, and no byte-order mark that the library's decoder of such bytes may leave out. */
function keepMarks(decoder: unknown): void {
  const { decoders = [decoder] } = (decoder ?? {}) as { decoders?: unknown[] };
  for (const step of decoders as ({ text_decoder?: unknown } | null)[])
    if (step?.text_decoder !== undefined) step.text_decoder = new TextDecoder('utf-8', { ignoreBOM: true });
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

/**
 * transformers' rule: only where tokenizer_config.json says so, and not for BPE, where blanks before punctuation are meant, unless
 * a key of a long name insists.
 */
function cleansUp(definition: Record<string, unknown>, config: Record<string, unknown>): boolean {
  if (config['clean_up_tokenization_spaces'] !== true) return false;
  const { type } = definition['model'] as { type?: unknown };
  const insists = 'clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output';
  return type !== 'BPE' || config[insists] === true;
}

/** Of the library of tokenizers; files of its first versions do not name theirs. */
const MODELS: readonly unknown[] = ['BPE', 'WordPiece', 'WordLevel', 'Unigram', undefined, null];

function checkModel({ model }: Record<string, unknown>, file: string): void {
  if (typeof model !== 'object' || model === null)
    throw new TroupeError('INVALID_MODEL', `[data] ${file} is not a usable tokenizer: it has no model`);
  const { type } = model as { type?: unknown };
  if (MODELS.includes(type)) return;
  throw new TroupeError(
    'INVALID_MODEL',
    `[data] ${file}: model.type: expected BPE, WordPiece, WordLevel or Unigram, got ${show(type)}`,
  );
}

/** @throws TroupeError INVALID_MODEL when an id is none */
function largestId(definition: Record<string, unknown>, file: string): number {
  let largest = -1;
  const look = (token: string, id: unknown): void => {
    if (!Number.isInteger(id) || (id as number) < 0 || (id as number) >= MODEL_LIMITS.vocabulary) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[data] ${file}: token ${show(token)}: expected an id from 0 to ${MODEL_LIMITS.vocabulary - 1}, got ${show(id)}`,
      );
    }
    largest = Math.max(largest, id as number);
  };
  const { vocab } = (definition['model'] ?? {}) as { vocab?: unknown };
  if (Array.isArray(vocab)) largest = vocab.length - 1;
  else for (const [token, id] of Object.entries((vocab ?? {}) as object)) look(token, id);
  const added = definition['added_tokens'] ?? [];
  if (!Array.isArray(added))
    throw new TroupeError(
      'INVALID_MODEL',
      `[data] ${file}: expected added_tokens to be a list, got ${show(added)}`,
    );
  for (const token of added) look(String(token?.content), token?.id);
  return largest;
}
