import { Actor } from '../actor/actor';
import { toJson } from '../base/text';
import { encodePrompt } from '../data/prompt';
import { column } from '../data/row';
import { openRowFile } from '../data/row_file';
import { TroupeError } from '../errors';
import type { SamplingOptions } from '../rollout/sampling';
import { loadTokenizer } from '../trainer/training_data';

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
  device: 'cpu' | 'cuda' | null;
  dtype: 'float32' | 'bfloat16' | null;
  sampling: SamplingOptions & { n: number };
}

interface PromptInput {
  prompt: unknown;
  where: string;
}

/** Tokens that a micro-batch may always hold: below it, packing gains nothing from knowing the prompts. */
const MIN_CAPACITY = 4096;

/** `troupe generate`: prints the responses, the samples of each prompt together. Returns the exit code. */
export async function generate(
  options: GenerateOptions,
  write: (text: string) => void = (text) => process.stdout.write(text),
): Promise<number> {
  const { model, sampling } = options;
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
    maxTokensPerMicroBatch: Math.max(longest + sampling.maxNewTokens, MIN_CAPACITY),
    ...(options.device === null ? {} : { device: options.device }),
    ...(options.dtype === null ? {} : { dtype: options.dtype }),
  });
  try {
    const batch = await actor.generate(prompts, sampling);
    for (let i = 0; i < batch.size; i++) {
      const [index, sample] = [Math.floor(i / sampling.n), i % sampling.n];
      const tokens = Array.from(batch.response(i));
      const response = tokenizer.decode(tokens, { skipSpecialTokens: true });
      const { prompt } = inputs[index] as PromptInput;
      const row = { index, sample, prompt, response, tokens };
      write(options.json ? `${toJson(row)}\n` : `${heading(row, batch.size)}${response}\n`);
    }
  } finally {
    await actor.close();
  }
  return 0;
}

/** Tells several responses apart; one alone needs none. */
function heading(row: { index: number; sample: number }, responses: number): string {
  if (responses === 1) return '';
  const first = row.index === 0 && row.sample === 0;
  return `${first ? '' : '\n'}--- prompt ${row.index + 1}, sample ${row.sample + 1}\n`;
}

async function readInputs({ prompt, prompts, promptKey }: GenerateOptions): Promise<PromptInput[]> {
  const inputs: PromptInput[] = prompt.map((text, i) => ({ prompt: text, where: `--prompt ${i + 1}` }));
  if (prompts === null) return inputs;
  const file = await openRowFile(prompts, { required: [promptKey], optional: [] });
  if (file.length === 0) throw new TroupeError('INVALID_DATA', `[data] ${prompts}: there are no prompts`);
  for (let i = 0; i < file.length; i++) {
    inputs.push({ prompt: column(await file.row(i), promptKey, file.where(i)), where: file.where(i) });
  }
  return inputs;
}
