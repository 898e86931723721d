import { TroupeError } from '../errors';
import { show } from '../text';
import type { ChatMessage } from './chat_template';
import { openRowFile, type Row, type RowFile } from './row_file';
import { chooseRows } from './shuffle';
import type { Tokenizer } from './tokenizer';

/** One prompt of verl's schema, tokenized. */
export interface RlSample {
  tokens: Int32Array;
  dataSource: string;
  groundTruth: unknown;
  extraInfo: Record<string, unknown>;
  /** The prompt as the row has it: text, or messages. */
  rawPrompt: unknown;
}

export interface RlDatasetOptions {
  promptKey: string;
  /** Column that names the data source (reward_fn_key). */
  dataSourceKey: string;
  maxPromptLength: number;
  /** Leave out prompts that are too long, instead of truncating them or failing. */
  filterOverlongPrompts: boolean;
  truncation: 'error' | 'left' | 'right' | 'middle';
  /** Keep at most so many rows (-1: all), drawn by seed when shuffling. */
  maxSamples: number;
  shuffle: boolean;
  seed: number;
  chatTemplateArguments?: Readonly<Record<string, unknown>>;
}

/** Prompts from parquet, JSON or JSONL files in verl's schema: {data_source, prompt, reward_model: {ground_truth}, extra_info}. */
export class RlDataset {
  private constructor(
    private readonly files: readonly RowFile[],
    /** [file, row] of each sample. */
    private readonly index: readonly (readonly [number, number])[],
    private readonly tokenizer: Tokenizer,
    private readonly options: RlDatasetOptions,
    /** Rows left out because their prompt was too long. */
    readonly numFiltered: number,
    /** Of all rows that are in memory, and of the first row of any other file. */
    readonly dataSources: ReadonlySet<string>,
  ) {}

  get length(): number {
    return this.index.length;
  }

  static async open(
    paths: readonly string[],
    tokenizer: Tokenizer,
    options: RlDatasetOptions,
  ): Promise<RlDataset> {
    const files = await Promise.all(paths.map(openRowFile));
    const rows = files.flatMap((file, f) =>
      Array.from({ length: file.length }, (_, row) => [f, row] as const),
    );
    if (rows.length === 0)
      throw new TroupeError('INVALID_DATA', `[data] ${paths.join(', ')}: the data set is empty`);
    const chosen = chooseRows(rows.length, options.maxSamples, options.shuffle ? options.seed : null);
    const index = Array.from(chosen, (i) => rows[i] as readonly [number, number]);
    const dataSources = new Set<string>();
    const unfiltered = new RlDataset(files, index, tokenizer, options, 0, dataSources);
    await unfiltered.checkColumns(dataSources);
    return options.filterOverlongPrompts ? await unfiltered.filtered() : unfiltered;
  }

  /** Shows wrong columns before any work starts: in every row that is in memory, in the first one of any other file. */
  private async checkColumns(dataSources: Set<string>): Promise<void> {
    const seen = new Set<number>();
    for (const [f, r] of this.index) {
      const file = this.files[f] as RowFile;
      if (seen.has(f) && !file.inMemory) continue;
      seen.add(f);
      const row = await file.row(r);
      checkPrompt(column(row, this.options.promptKey, file.where(r)), file.where(r));
      dataSources.add(this.labels(row, file.where(r)).dataSource);
    }
    // The tokenizer and its chat template, too, may not fit the prompts.
    await this.prompt(0);
  }

  private async filtered(): Promise<RlDataset> {
    const { maxPromptLength } = this.options;
    const kept: (readonly [number, number])[] = [];
    let shortest = Number.POSITIVE_INFINITY;
    for (let i = 0; i < this.length; i++) {
      const { tokens } = await this.prompt(i);
      shortest = Math.min(shortest, tokens.length);
      if (tokens.length <= maxPromptLength) kept.push(this.index[i] as readonly [number, number]);
    }
    if (kept.length === 0) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] all ${this.length} prompts are longer than data.max_prompt_length ${maxPromptLength}; the shortest has ${shortest} tokens`,
      );
    }
    const { files, tokenizer, options, dataSources } = this;
    return new RlDataset(files, kept, tokenizer, options, this.length - kept.length, dataSources);
  }

  async sample(i: number): Promise<RlSample> {
    const { row, where, tokens } = await this.prompt(i);
    const rawPrompt = row[this.options.promptKey];
    return { tokens: this.truncated(tokens, where), ...this.labels(row, where), rawPrompt };
  }

  private labels(row: Row, where: string): Omit<RlSample, 'tokens' | 'rawPrompt'> {
    const reward = column(row, 'reward_model', where);
    if (typeof reward !== 'object' || reward === null || !('ground_truth' in reward)) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${where}: expected reward_model to be an object with ground_truth, got ${show(reward)}`,
      );
    }
    return {
      dataSource: String(column(row, this.options.dataSourceKey, where)),
      groundTruth: reward.ground_truth,
      extraInfo: (row['extra_info'] ?? {}) as Record<string, unknown>,
    };
  }

  private async prompt(i: number): Promise<{ row: Row; where: string; tokens: Int32Array }> {
    const [f, r] = this.index[i] as readonly [number, number];
    const file = this.files[f] as RowFile;
    const where = file.where(r);
    const row = await file.row(r);
    const tokens = encodePrompt(
      column(row, this.options.promptKey, where),
      this.tokenizer,
      where,
      this.options.chatTemplateArguments,
    );
    return { row, where, tokens };
  }

  private truncated(tokens: Int32Array, where: string): Int32Array {
    const { maxPromptLength: limit, truncation } = this.options;
    if (tokens.length <= limit) return tokens;
    if (truncation === 'left') return tokens.slice(tokens.length - limit);
    if (truncation === 'right') return tokens.slice(0, limit);
    if (truncation === 'middle') {
      const head = Math.floor(limit / 2);
      return Int32Array.from([...tokens.slice(0, head), ...tokens.slice(tokens.length - (limit - head))]);
    }
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: the prompt has ${tokens.length} tokens, more than data.max_prompt_length ${limit}: raise it, or set ` +
        'data.filter_overlong_prompts=true or data.truncation=left|right|middle',
    );
  }
}

/**
 * A string is tokenized with the tokenizer's own special tokens (a leading <s>, ...); a conversation through the chat
 * template, which writes them itself.
 */
export function encodePrompt(
  prompt: unknown,
  tokenizer: Tokenizer,
  where: string,
  chatTemplateArguments: Readonly<Record<string, unknown>> = {},
): Int32Array {
  checkPrompt(prompt, where);
  const tokens =
    typeof prompt === 'string'
      ? tokenizer.encode(prompt, true)
      : tokenizer.encode(tokenizer.renderChat(prompt, true, chatTemplateArguments));
  if (tokens.length === 0) throw new TroupeError('INVALID_DATA', `[data] ${where}: the prompt is empty`);
  return tokens;
}

function checkPrompt(value: unknown, where: string): asserts value is string | ChatMessage[] {
  if (typeof value === 'string' || isConversation(value)) return;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected a prompt string or a list of {role, content}, got ${show(value)}`,
  );
}

export function isConversation(value: unknown): value is ChatMessage[] {
  return (
    Array.isArray(value) &&
    value.length > 0 &&
    value.every((m) => typeof m === 'object' && m !== null && typeof m.role === 'string')
  );
}

/** @throws TroupeError INVALID_DATA naming the column and those that are there */
export function column(row: Row, name: string, where: string): unknown {
  if (!(name in row)) {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: no column '${name}'; the columns are ${Object.keys(row).join(', ')}`,
    );
  }
  return row[name];
}
