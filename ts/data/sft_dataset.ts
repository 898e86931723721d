import { TroupeError } from '../errors';
import { show } from '../text';
import type { ChatMessage } from './chat_template';
import { column, encodePrompt, isConversation } from './rl_dataset';
import { openRowFile, type Row, type RowFile } from './row_file';
import { chooseRows } from './shuffle';
import type { Tokenizer } from './tokenizer';

/** One example: the loss is on response tokens whose `lossMask` is 1. */
export interface SftSample {
  prompt: Int32Array;
  response: Int32Array;
  lossMask: Uint8Array; // [R]
}

export interface SftDatasetOptions {
  /** Column with a conversation; null: promptKey and responseKey are strings. */
  messagesKey: string | null;
  promptKey: string;
  responseKey: string;
  maxLength: number;
  truncation: 'error' | 'left' | 'right';
  /** Use at most so many rows (-1: all), drawn by seed when shuffling. */
  maxSamples: number;
  shuffle: boolean;
  seed: number;
  chatTemplateArguments?: Readonly<Record<string, unknown>>;
}

/** All examples of the files, tokenized. */
export async function readSftDataset(
  paths: readonly string[],
  tokenizer: Tokenizer,
  options: SftDatasetOptions,
): Promise<SftSample[]> {
  const files = await Promise.all(paths.map(openRowFile));
  const rows = files.flatMap((file) => Array.from({ length: file.length }, (_, row) => ({ file, row })));
  if (rows.length === 0)
    throw new TroupeError('INVALID_DATA', `[data] ${paths.join(', ')}: the data set is empty`);
  const samples: SftSample[] = [];
  for (const i of chooseRows(rows.length, options.maxSamples, options.shuffle ? options.seed : null)) {
    const { file, row } = rows[i] as { file: RowFile; row: number };
    const where = file.where(row);
    samples.push(cut(toSample(await file.row(row), tokenizer, options, where), options, where));
  }
  return samples;
}

function toSample(row: Row, tokenizer: Tokenizer, options: SftDatasetOptions, where: string): SftSample {
  if (options.messagesKey !== null) {
    return fromMessages(column(row, options.messagesKey, where), tokenizer, where, options);
  }
  const prompt = column(row, options.promptKey, where);
  const response = column(row, options.responseKey, where);
  return fromPair(prompt, response, tokenizer, where, options);
}

function fromPair(
  prompt: unknown,
  response: unknown,
  tokenizer: Tokenizer,
  where: string,
  options: SftDatasetOptions,
): SftSample {
  if (typeof response !== 'string') {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: expected the response to be a string, got ${show(response)}`,
    );
  }
  const tokens = Array.from(tokenizer.encode(response));
  if (tokenizer.eosId !== null) tokens.push(tokenizer.eosId);
  return {
    prompt: encodePrompt(prompt, tokenizer, where, options.chatTemplateArguments),
    response: Int32Array.from(tokens),
    lossMask: new Uint8Array(tokens.length).fill(1),
  };
}

/**
 * A conversation, with loss on the assistant's turns only. Everything up to the first assistant turn is the prompt. The
 * tokens of a turn are those by which the rendered conversation grows, so a template whose earlier text changes when a turn
 * is added (some strip old reasoning) cannot be used, and is refused.
 */
function fromMessages(
  value: unknown,
  tokenizer: Tokenizer,
  where: string,
  options: SftDatasetOptions,
): SftSample {
  const extra = options.chatTemplateArguments ?? {};
  if (!isConversation(value)) {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: expected a list of {role, content}, got ${show(value)}`,
    );
  }
  const messages: ChatMessage[] = value;
  const first = messages.findIndex((message) => message.role === 'assistant');
  if (first < 1) {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: expected an assistant turn after at least one other turn`,
    );
  }
  let text = tokenizer.renderChat(messages.slice(0, first), true, extra);
  const prompt = tokenizer.encode(text);
  const response: number[] = [];
  const lossMask: number[] = [];
  for (let turn = first; turn < messages.length; turn++) {
    const assistant = messages[turn]?.role === 'assistant';
    // Before an assistant's turn comes the template's opening of it, which is not the assistant's doing.
    const open = messages[turn + 1]?.role === 'assistant';
    const grown = tokenizer.renderChat(messages.slice(0, turn + 1), open && !assistant, extra);
    if (!grown.startsWith(text)) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${where}: the chat template rewrites earlier turns when turn ${turn} is added`,
      );
    }
    const tokens = tokenizer.encode(grown.slice(text.length));
    for (const token of tokens) {
      response.push(token);
      lossMask.push(assistant ? 1 : 0);
    }
    text = grown;
  }
  return { prompt, response: Int32Array.from(response), lossMask: Uint8Array.from(lossMask) };
}

function cut(sample: SftSample, { maxLength, truncation }: SftDatasetOptions, where: string): SftSample {
  const length = sample.prompt.length + sample.response.length;
  if (length <= maxLength) return sample;
  const over = length - maxLength;
  if (truncation === 'right' && over < sample.response.length) {
    const keep = sample.response.length - over;
    return {
      prompt: sample.prompt,
      response: sample.response.slice(0, keep),
      lossMask: sample.lossMask.slice(0, keep),
    };
  }
  if (truncation === 'left' && over < sample.prompt.length)
    return { ...sample, prompt: sample.prompt.slice(over) };
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: the example has ${length} tokens (prompt ${sample.prompt.length}), more than data.max_length ${maxLength}: ` +
      'raise it, or set data.truncation=left (cuts the prompt) or right (cuts the response)',
  );
}
