import { show } from '../base/text';
import { TroupeError } from '../errors';
import { checkConversation, encodeConversation, type SftSample } from './conversation';
import { ChosenRows, type Dataset } from './dataset';
import type { ImageReading } from './images/image_tokens';
import { checkPrompt, encodePrompt, type TemplateVariables } from './prompt';
import { atRow, column, MEDIA_COLUMNS, type Projection, type Row, type WantedColumn } from './row';
import { RowFiles } from './row_file';
import { RowImages } from './row_images';
import { chooseRows } from './shuffle';
import type { Tokenizer } from './tokenizer';

export type { SftSample } from './conversation';

/** What examples must fit into that `maxLength` allows. */
export interface SftRoom {
  /** Fewer than `maxLength`. */
  tokens: number;
  /** What has so many, for errors: "the 128 positions of ...". */
  limit: string;
  /** What to do about it besides shorter examples. */
  remedy: string;
}

/** Where a row has its example. */
export interface SftColumns {
  /** Column with a conversation; null: promptKey and responseKey are strings. */
  messagesKey: string | null;
  promptKey: string;
  responseKey: string;
  /** Keys from the value of a column to the text inside of it, outermost first. Default: none, the value is the text. */
  promptDictKeys?: readonly string[];
  responseDictKeys?: readonly string[];
  /** A prompt of text is a turn of the user. false */
  applyChatTemplate?: boolean;
}

export interface SftDatasetOptions extends SftColumns {
  /** Columns that a conversation may have besides: tools for the template, and whether it shows reasoning. */
  toolsKey: string | null;
  enableThinkingKey: string | null;
  maxLength: number;
  /** Default: null, every example of `maxLength` tokens can be trained on. */
  room?: SftRoom | null;
  truncation: 'error' | 'left' | 'right';
  /** Use at most so many rows (-1: all), drawn by seed when shuffling. */
  maxSamples: number;
  shuffle: boolean;
  seed: number;
  chatTemplateArguments?: TemplateVariables;
  /** Column of images, `images`, and how the model reads them; null: it reads text alone. */
  imageKey?: string;
  images?: ImageReading | null;
}

/** Examples from parquet, JSON or JSONL files. Rows are read and tokenized when they are asked for. */
export class SftDataset implements Dataset<SftSample> {
  private constructor(
    readonly rows: ChosenRows,
    private readonly tokenizer: Tokenizer,
    private readonly options: SftDatasetOptions,
  ) {}

  /** @throws TroupeError IO or INVALID_DATA naming file and row: of the first example, too */
  static async open(
    paths: readonly string[],
    tokenizer: Tokenizer,
    options: SftDatasetOptions,
  ): Promise<SftDataset> {
    const dataset = await SftDataset.unchecked(paths, tokenizer, options);
    await dataset.sample(0);
    return dataset;
  }

  /** No row is looked at. `keptBytes`: as {@link RowFiles.open} has it. */
  static async unchecked(
    paths: readonly string[],
    tokenizer: Tokenizer,
    options: SftDatasetOptions,
    keptBytes?: number,
  ): Promise<SftDataset> {
    if (options.messagesKey === null) endOf(tokenizer);
    const files = await RowFiles.open(paths, projection(options), keptBytes);
    const chosen = chooseRows(files.length, options.maxSamples, options.shuffle ? options.seed : null);
    return new SftDataset(new ChosenRows(files, chosen), tokenizer, options);
  }

  get length(): number {
    return this.rows.length;
  }

  async sample(i: number): Promise<SftSample> {
    const { file, row } = this.rows.files.locate(this.rows.numbers[i] as number);
    const where = file.where(row);
    const { path } = file;
    const sample = await sampleOf(await file.row(row), this.tokenizer, this.options, { path, where });
    const { example, images } = sample;
    return fitting(cut(example, images, this.options, where), this.options.room ?? null, where);
  }
}

/** The columns that an example is made of. */
export function exampleColumns({ messagesKey, promptKey, responseKey }: SftColumns): WantedColumn[] {
  if (messagesKey !== null) return [messagesColumn(messagesKey)];
  return [pairColumn(promptKey, 'prompt'), pairColumn(responseKey, 'response')];
}

const messagesColumn = (name: string): WantedColumn => ({ name, key: 'data.messages_key' });
const pairColumn = (name: string, of: 'prompt' | 'response'): WantedColumn => ({
  name,
  key: `data.${of}_key (of conversations data.messages_key)`,
});

function projection(options: SftDatasetOptions): Projection {
  const { imageKey: images = 'images', toolsKey, enableThinkingKey } = options;
  return {
    required: exampleColumns(options),
    optional: [toolsKey, enableThinkingKey, images, ...MEDIA_COLUMNS].filter((key) => key !== null),
    images,
  };
}

/** With the images of the row in its prompt, and in no later turn: what stands for images there is text to the core. */
async function sampleOf(
  row: Row,
  tokenizer: Tokenizer,
  options: SftDatasetOptions,
  file: { path: string; where: string },
): Promise<{ example: SftSample; images: number }> {
  const { imageKey = 'images', images: reading = null } = options;
  const ofRow = RowImages.of(row, imageKey, reading, file.path, file.where);
  const sample = atRow(file.where, () => toSample(row, tokenizer, options, ofRow, file.where));
  if (reading === null) return { example: sample, images: 0 };
  if (sample.response.includes(reading.imageToken))
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${file.where}: an image after the first turn of the assistant: expected all images of a row before it`,
    );
  const images = await ofRow.read();
  const example = { ...sample, prompt: ofRow.inTokens(sample.prompt, images), images };
  return { example, images: images.length };
}

function toSample(
  row: Row,
  tokenizer: Tokenizer,
  options: SftDatasetOptions,
  images: RowImages,
  where: string,
): SftSample {
  const { messagesKey, chatTemplateArguments = {} } = options;
  if (messagesKey !== null) {
    const variables = { ...chatTemplateArguments, ...rowVariables(row, options, where) };
    return encodeConversation(
      images.inPrompt(column(row, messagesColumn(messagesKey), where)),
      tokenizer,
      where,
      variables,
    );
  }
  const { prompt: turns, response } = pairOf(row, options, where);
  const prompt = images.inPrompt(turns);
  const tokens = [...tokenizer.encode(response), endOf(tokenizer)];
  return {
    prompt: encodePrompt(prompt, tokenizer, where, chatTemplateArguments),
    response: Int32Array.from(tokens),
    lossMask: new Uint8Array(tokens.length).fill(1),
  };
}

/** What a row has as a prompt, which may be none, and as the response to it. @throws TroupeError INVALID_DATA */
function pairOf(row: Row, options: SftColumns, where: string): { prompt: unknown; response: string } {
  const { promptKey, responseKey, promptDictKeys = [], responseDictKeys = [], applyChatTemplate } = options;
  const response = inside(
    column(row, pairColumn(responseKey, 'response'), where),
    responseKey,
    responseDictKeys,
    where,
  );
  const asked = inside(column(row, pairColumn(promptKey, 'prompt'), where), promptKey, promptDictKeys, where);
  if (typeof response !== 'string') {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: expected the response to be a string, got ${show(response)}`,
    );
  }
  const turn = applyChatTemplate === true && typeof asked === 'string';
  return { prompt: turn ? [{ role: 'user', content: asked }] : asked, response };
}

/** What of an example shows without a tokenizer. @throws TroupeError INVALID_DATA naming the column */
export function checkExample(row: Row, options: SftColumns, where: string): void {
  const { messagesKey } = options;
  if (messagesKey === null) checkPrompt(pairOf(row, options, where).prompt, where);
  else checkConversation(column(row, messagesColumn(messagesKey), where), where);
}

/** A value inside of a column's. A list of one stands for what it holds, as in verl's SFTDataset. */
function inside(whole: unknown, name: string, keys: readonly string[], where: string): unknown {
  let value = whole;
  for (const [depth, key] of keys.entries()) {
    while (Array.isArray(value) && value.length === 1) value = value[0];
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key))
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${where}: expected '${[name, ...keys.slice(0, depth)].join('.')}' to have a key '${key}', got ${show(value)}`,
      );
    value = (value as Row)[key];
  }
  return value;
}

/** Without it a model would learn responses that never end. */
function endOf({ eosId, directory }: Tokenizer): number {
  if (eosId !== null) return eosId;
  throw new TroupeError(
    'INVALID_MODEL',
    `[data] responses without data.messages_key are closed with the end token, but nothing in ${directory} names one that its vocabulary ` +
      'has: set eos_token in its tokenizer_config.json, or write the examples as conversations (data.messages_key)',
  );
}

/** Variables of the template that a row brings along. */
function rowVariables(row: Row, options: SftDatasetOptions, where: string): Record<string, unknown> {
  const variables: Record<string, unknown> = {};
  const tools = options.toolsKey === null ? null : (row[options.toolsKey] ?? null);
  if (tools !== null) variables['tools'] = parsedTools(tools, where);
  const thinking = options.enableThinkingKey === null ? null : (row[options.enableThinkingKey] ?? null);
  if (thinking !== null) variables['enable_thinking'] = Boolean(thinking);
  return variables;
}

/** Schemas of several shapes do not fit one parquet column, so they often come as JSON text. */
function parsedTools(value: unknown, where: string): unknown[] {
  let tools = value;
  try {
    if (typeof value === 'string') tools = JSON.parse(value);
  } catch {
    // Said below.
  }
  if (Array.isArray(tools)) return tools;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected the tools to be a list of schemas, or JSON of one, got ${show(value)}`,
  );
}

function cut(sample: SftSample, images: number, options: SftDatasetOptions, where: string): SftSample {
  const length = sample.prompt.length + sample.response.length;
  const { maxLength, truncation } = options;
  // A first token has nothing before it to be predicted from.
  if (sample.prompt.length === 0)
    throw new TroupeError('INVALID_DATA', `[data] ${where}: the prompt is empty`);
  if (!sample.lossMask.includes(1)) {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: expected a response to learn, but all of them are empty`,
    );
  }
  if (length <= maxLength) return sample;
  if (truncation === 'error') {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: the example has ${length} tokens (prompt ${sample.prompt.length}), more than data.max_length ${maxLength}: ` +
        'raise it, or set data.truncation=left (keeps the end) or right (keeps the beginning)',
    );
  }
  if (images > 0)
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: the example has ${length} tokens (prompt ${sample.prompt.length}), more than data.max_length ${maxLength}, and with ` +
        'images it cannot be cut: raise it, or leave the row out',
    );
  const kept = truncation === 'left' ? keepEnd(sample, maxLength) : keepBeginning(sample, maxLength);
  if (kept.lossMask.includes(1)) return kept;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: the example has ${length} tokens (prompt ${sample.prompt.length}), and data.truncation=${truncation} to ` +
      `data.max_length ${maxLength} leaves none with a loss: raise it, or choose the other side`,
  );
}

/** A longer one would end the run in the step that meets it. */
function fitting(sample: SftSample, room: SftRoom | null, where: string): SftSample {
  const length = sample.prompt.length + sample.response.length;
  if (room === null || length <= room.tokens) return sample;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: the example has ${length} tokens (prompt ${sample.prompt.length}) and data.max_length allows them, but it does not fit into ` +
      `${room.limit}: ${room.remedy}, or set data.max_length=${room.tokens} with data.truncation=left (keeps the end) or right (keeps the beginning)`,
  );
}

function keepBeginning({ prompt, response, lossMask }: SftSample, length: number): SftSample {
  const kept = Math.max(0, length - prompt.length);
  return { prompt, response: response.slice(0, kept), lossMask: lossMask.slice(0, kept) };
}

/** A first token has nothing before it to be predicted from: when the whole prompt goes, it takes the prompt's place. */
function keepEnd({ prompt, response, lossMask }: SftSample, length: number): SftSample {
  const over = prompt.length + response.length - length;
  if (over < prompt.length) return { prompt: prompt.slice(over), response, lossMask };
  const from = over - prompt.length;
  return {
    prompt: response.slice(from, from + 1),
    response: response.slice(from + 1),
    lossMask: lossMask.slice(from + 1),
  };
}
