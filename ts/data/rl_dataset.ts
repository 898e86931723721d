import type { PromptImage, PromptImages } from '../batch/prompt_image';
import { TroupeError } from '../errors';
import { ChosenRows, type Dataset, type Usable } from './dataset';
import type { ImageReading } from './images/image_tokens';
import { dataSourceColumn, type Labels, labelsOf } from './labels';
import { checkPrompt, encodePrompt, promptText, type TemplateVariables } from './prompt';
import { atRow, column, MEDIA_COLUMNS, promptColumn, type Row, type RowPath } from './row';
import { RowFiles } from './row_file';
import { RowImages } from './row_images';
import { chooseRows } from './shuffle';
import type { Tokenizer } from './tokenizer';

/** One prompt of verl's schema, tokenized. */
export interface RlSample extends Labels {
  tokens: Int32Array;
  /** The prompt as the row has it: text, or messages. */
  rawPrompt: unknown;
  /** Of the row; of a model that reads images. */
  images?: PromptImages;
}

export interface RlDatasetOptions {
  promptKey: string;
  /** Column that names the data source (reward_fn_key). */
  dataSourceKey: string;
  maxPromptLength: number;
  /** What says so, for errors; default: data.max_prompt_length with that number. */
  lengthLimit?: string;
  /** Leave out prompts that are too long, instead of truncating them or failing. */
  filterOverlongPrompts: boolean;
  truncation: 'error' | 'left' | 'right' | 'middle';
  /** Keep at most so many rows (-1: all), drawn by seed when shuffling. */
  maxSamples: number;
  shuffle: boolean;
  seed: number;
  chatTemplateArguments?: TemplateVariables;
  /** Tools that the agent shows the model with every prompt: `filterOverlongPrompts` counts them, too. Default: it sees the prompt alone. */
  tools?: readonly unknown[] | null;
  /** Column of images, `images`, and how the model reads them; null: it reads text alone. */
  imageKey?: string;
  images?: ImageReading | null;
}

/** Tokens that a tokenizer may add to a text whatever it is: a prefix space, an end token. */
const SLACK = 8;
const isAscii = (text: string): boolean => /^\p{ASCII}*$/u.test(text);

/**
 * Prompts from parquet, JSON or JSONL files in verl's schema: {data_source, prompt, reward_model: {ground_truth}, extra_info}.
 * Rows are read and tokenized when they are asked for.
 */
export class RlDataset implements Dataset<RlSample> {
  /** Of all rows that are in memory, and of the first row of any other file. */
  readonly dataSources = new Set<string>();

  private constructor(
    readonly rows: ChosenRows,
    private readonly tokenizer: Tokenizer,
    private readonly options: RlDatasetOptions,
  ) {}

  /** Rows, those that `filterOverlongPrompts` leaves out included: they are met when they are read. */
  get length(): number {
    return this.rows.length;
  }

  /** @throws TroupeError IO or INVALID_DATA naming file and row */
  static async open(
    paths: readonly RowPath[],
    tokenizer: Tokenizer,
    options: RlDatasetOptions,
  ): Promise<RlDataset> {
    const dataset = await RlDataset.unchecked(paths, tokenizer, options);
    await dataset.checkColumns();
    return dataset;
  }

  /** Of files that have been opened once: no row is looked at. `keptBytes`: as {@link RowFiles.open} has it. */
  static async unchecked(
    paths: readonly RowPath[],
    tokenizer: Tokenizer,
    options: RlDatasetOptions,
    keptBytes?: number,
  ): Promise<RlDataset> {
    const { promptKey, dataSourceKey, maxSamples, shuffle, seed } = options;
    const { imageKey: images = 'images' } = options;
    const required = [promptColumn(promptKey), dataSourceColumn(dataSourceKey), 'reward_model'];
    const optional = ['extra_info', images, ...MEDIA_COLUMNS];
    const files = await RowFiles.open(paths, { required, optional, images }, keptBytes);
    const chosen = chooseRows(files.length, maxSamples, shuffle ? seed : null);
    return new RlDataset(new ChosenRows(files, chosen), tokenizer, options);
  }

  /** Shows wrong columns before any work starts: in every row that is in memory, in the first one of any other file. */
  private async checkColumns(): Promise<void> {
    const seen = new Set<unknown>();
    for (const i of this.rows.numbers) {
      const { file, row: r } = this.rows.files.locate(i);
      if (seen.has(file) && !file.inMemory) continue;
      seen.add(file);
      const row = await file.row(r);
      checkPrompt(
        this.promptOf(row, this.imagesOf(row, file.path, file.where(r)), file.where(r)),
        file.where(r),
      );
      this.dataSources.add(labelsOf(row, this.options.dataSourceKey, file.where(r)).dataSource);
    }
    // The tokenizer and its chat template, too, may not fit the prompts.
    await this.tokens(0);
  }

  /** @returns null when `filterOverlongPrompts` leaves the row out */
  async sample(i: number): Promise<RlSample | null> {
    const { row, where, prompt, tokens, images, ofRow } = await this.tokens(i);
    const { maxPromptLength, filterOverlongPrompts, tools } = this.options;
    if (filterOverlongPrompts) {
      const { length } = tools
        ? ofRow.inTokens(
            atRow(where, () => this.encoded(this.seen(prompt, where))),
            images,
          )
        : tokens;
      if (length > maxPromptLength) return null;
    }
    const rawPrompt = row[this.options.promptKey];
    return {
      tokens: this.truncated(tokens, images.length, where),
      ...labelsOf(row, this.options.dataSourceKey, where),
      rawPrompt,
      ...((this.options.images ?? null) === null ? {} : { images }),
    };
  }

  /**
   * How many rows `filterOverlongPrompts` leaves, or `enough` when they are more: tokenizes prompts that are not short beyond
   * doubt.
   * @throws TroupeError INVALID_DATA when none is left
   */
  async countUsable(enough = Number.POSITIVE_INFINITY): Promise<number> {
    if (!this.options.filterOverlongPrompts) return this.length;
    return this.someUsable(await this.usableOf(0, this.length, enough));
  }

  /** @throws TroupeError INVALID_DATA when none of all prompts is usable */
  someUsable({ usable, shortest }: Usable): number {
    if (usable > 0) return usable;
    throw new TroupeError(
      'INVALID_DATA',
      `[data] all ${this.length} prompts are longer than ${this.lengthLimit}; ` +
        `the shortest has ${shortest} tokens`,
    );
  }

  /** Of the prompts from..to, up to `enough` that are not too long. */
  async usableOf(from: number, to: number, enough = Number.POSITIVE_INFINITY): Promise<Usable> {
    const { maxPromptLength: limit } = this.options;
    const slack = this.tokenizer.encode('', true).length + SLACK;
    let usable = 0;
    let shortest = Number.POSITIVE_INFINITY;
    for (let i = from; i < to && usable < enough; i++) {
      const { prompt, where, images } = await this.prompt(i);
      const seen = this.seen(prompt, where);
      const { text } = seen;
      const ofImages = await images.countTokens();
      // Every token stands for at least one character; normalisation may lengthen a text, but not ASCII.
      if (text.length + ofImages + slack <= limit && isAscii(text)) {
        usable++;
        continue;
      }
      // The text has one token for each image.
      const length = atRow(where, () => this.encoded(seen)).length - images.count + ofImages;
      shortest = Math.min(shortest, length);
      if (length <= limit) usable++;
    }
    return { usable, shortest };
  }

  private get lengthLimit(): string {
    return this.options.lengthLimit ?? `data.max_prompt_length ${this.options.maxPromptLength}`;
  }

  /** The text of a prompt as it is counted: where an agent shows tools, a text is the user's message. */
  private seen(prompt: unknown, where: string): { text: string; special: boolean } {
    const { chatTemplateArguments = {}, tools } = this.options;
    const plain = typeof prompt === 'string';
    if (!tools)
      return { text: promptText(prompt, this.tokenizer, where, chatTemplateArguments), special: plain };
    const messages = plain ? [{ role: 'user', content: prompt }] : prompt;
    const variables = { ...chatTemplateArguments, tools: tools.length > 0 ? tools : null };
    return { text: promptText(messages, this.tokenizer, where, variables), special: false };
  }

  private encoded({ text, special }: { text: string; special: boolean }): Int32Array {
    return this.tokenizer.encode(text, special);
  }

  private async prompt(i: number): Promise<{ row: Row; where: string; prompt: unknown; images: RowImages }> {
    const { file, row: r } = this.rows.files.locate(this.rows.numbers[i] as number);
    const where = file.where(r);
    const row = await file.row(r);
    const images = this.imagesOf(row, file.path, where);
    return { row, where, prompt: this.promptOf(row, images, where), images };
  }

  private imagesOf(row: Row, dataFile: string, where: string): RowImages {
    const { imageKey = 'images', images = null } = this.options;
    return RowImages.of(row, imageKey, images, dataFile, where);
  }

  private promptOf(row: Row, images: RowImages, where: string): unknown {
    return images.inPrompt(column(row, promptColumn(this.options.promptKey), where));
  }

  private async tokens(i: number): Promise<{
    row: Row;
    where: string;
    prompt: unknown;
    tokens: Int32Array;
    images: PromptImage[];
    ofRow: RowImages;
  }> {
    const { row, where, prompt, images: ofRow } = await this.prompt(i);
    const tokens = encodePrompt(prompt, this.tokenizer, where, this.options.chatTemplateArguments);
    const images = await ofRow.read();
    return { row, where, prompt, tokens: ofRow.inTokens(tokens, images), images, ofRow };
  }

  private truncated(tokens: Int32Array, images: number, where: string): Int32Array {
    const { maxPromptLength: limit, truncation } = this.options;
    if (tokens.length <= limit) return tokens;
    if (images > 0)
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${where}: the prompt has ${tokens.length} tokens with its images, more than ${this.lengthLimit}, and cannot be cut: ` +
          'raise it, set data.filter_overlong_prompts=true, or read smaller images (data.mm_processor_kwargs.max_pixels)',
      );
    if (truncation === 'left') return tokens.slice(tokens.length - limit);
    if (truncation === 'right') return tokens.slice(0, limit);
    if (truncation === 'middle') {
      const head = Math.floor(limit / 2);
      return Int32Array.from([...tokens.slice(0, head), ...tokens.slice(tokens.length - (limit - head))]);
    }
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: the prompt has ${tokens.length} tokens, more than ${this.lengthLimit}: raise it, or set ` +
        'data.filter_overlong_prompts=true or data.truncation=left|right|middle',
    );
  }
}
