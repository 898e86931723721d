import { Actor } from '../actor/actor';
import { toJson } from '../base/text';
import type { Batch } from '../batch/batch';
import { encodePrompt } from '../data/prompt';
import { column, type Row, type WantedColumn } from '../data/row';
import { openRowFile } from '../data/row_file';
import { TroupeError } from '../errors';
import type { SamplingOptions } from '../rollout/sampling';
import { loadTokenizer } from '../trainer/training_data';
import { checkOutput, checkOutputRow, writeRows } from './row_output';

export interface GenerateOptions {
  /** Hugging Face directory with model and tokenizer. */
  model: string;
  /** Prompts given on the command line. */
  prompt: readonly string[];
  /** A .jsonl, .json or .parquet file whose column `promptKey` holds prompts: strings or conversations. */
  prompts: string | null;
  promptKey: string;
  /** Give prompts that are plain text to the chat template, as a user's message. */
  chat: boolean;
  /** One JSON object per response instead of plain text. */
  json: boolean;
  /** A new .jsonl file with the rows of `prompts`, in their order, and their responses in the column `responseKey`; null: they are printed. */
  output: string | null;
  responseKey: string;
  /** Processes that share the prompts. */
  workers: number;
  /** Of these, those that generate together. */
  tensorParallel: number;
  device: 'cpu' | 'cuda' | null;
  dtype: 'float32' | 'bfloat16' | null;
  sampling: SamplingOptions & { n: number };
}

interface PromptInput {
  prompt: unknown;
  /** Of a file. */
  row: Row;
  where: string;
}

/** Tokens that a micro-batch may always hold: below it, packing gains nothing from knowing the prompts. */
const MIN_CAPACITY = 4096;

/** `troupe generate`: prints the responses, the samples of each prompt together, or writes them to a file. Returns the exit code. */
export async function generate(
  options: GenerateOptions,
  write: (text: string) => void = (text) => process.stdout.write(text),
): Promise<number> {
  const { model, sampling, workers, tensorParallel } = options;
  if (options.output !== null) checkOutput('generate', options.output);
  const inputs = await readInputs(options);
  const tokenizer = loadTokenizer({ path: model, tokenizer_path: null, custom_chat_template: null });
  const prompts = inputs.map(({ prompt, where }) => {
    const asked = options.chat && typeof prompt === 'string' ? [{ role: 'user', content: prompt }] : prompt;
    return encodePrompt(asked, tokenizer, where);
  });
  const longest = prompts.reduce((length, prompt) => Math.max(length, prompt.length), 0);

  const actor = await Actor.create({
    model,
    optim: null,
    worldSize: workers,
    ...(tensorParallel === 1 ? {} : { rollout: { tensorParallel } }),
    maxTokensPerMicroBatch: Math.max(longest + sampling.maxNewTokens, MIN_CAPACITY),
    ...(options.device === null ? {} : { device: options.device }),
    ...(options.dtype === null ? {} : { dtype: options.dtype }),
  });
  try {
    const batch = await actor.generate(prompts, sampling);
    const decode = (tokens: number[]): string => tokenizer.decode(tokens, { skipSpecialTokens: true });
    if (options.output !== null) {
      writeRows(options.output, withResponses(inputs, options, batch, decode));
      write(`${options.output}: ${batch.size} responses to ${inputs.length} prompts\n`);
      return 0;
    }
    for (let i = 0; i < batch.size; i++) {
      const [index, sample] = [Math.floor(i / sampling.n), i % sampling.n];
      const tokens = Array.from(batch.response(i));
      const response = decode(tokens);
      const { prompt } = inputs[index] as PromptInput;
      const row = { index, sample, prompt, response, tokens };
      write(options.json ? `${toJson(row)}\n` : `${heading(row, batch.size)}${response}\n`);
    }
  } finally {
    await actor.close();
  }
  return 0;
}

/** As verl's main_generation has them: sample k of a row is entry k of its list. */
function withResponses(
  inputs: readonly PromptInput[],
  { responseKey, sampling }: GenerateOptions,
  batch: Batch,
  decode: (tokens: number[]) => string,
): Row[] {
  return inputs.map(({ row }, index) => {
    const responses = Array.from({ length: sampling.n }, (_, k) =>
      decode(Array.from(batch.response(index * sampling.n + k))),
    );
    return { ...row, [responseKey]: responses };
  });
}

/** Tells several responses apart; one alone needs none. */
function heading(row: { index: number; sample: number }, responses: number): string {
  if (responses === 1) return '';
  const first = row.index === 0 && row.sample === 0;
  return `${first ? '' : '\n'}--- prompt ${row.index + 1}, sample ${row.sample + 1}\n`;
}

async function readInputs(options: GenerateOptions): Promise<PromptInput[]> {
  const { prompts, promptKey, output, responseKey } = options;
  const inputs = options.prompt.map(
    (text, i): PromptInput => ({ prompt: text, row: {}, where: `--prompt ${i + 1}` }),
  );
  if (prompts === null) return inputs;
  const asked: WantedColumn = { name: promptKey, key: '--prompt-key' };
  const file = await openRowFile(prompts, output === null ? { required: [asked], optional: [] } : null);
  if (file.length === 0) throw new TroupeError('INVALID_DATA', `[data] ${prompts}: there are no prompts`);
  for (let i = 0; i < file.length; i++) {
    const [row, where] = [await file.row(i), file.where(i)];
    if (output !== null) checkOutputRow(row, responseKey, '--response-key', where);
    inputs.push({ prompt: column(row, asked, where), row: output === null ? {} : row, where });
  }
  return inputs;
}
