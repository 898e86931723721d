// `troupe serve` with a model of random weights.
import OpenAI from 'openai';
import type { Command } from '../e2e_process';
import { modelTensors, writeModel } from '../e2e_workspace';

/** What every server of it is started with. */
export const OPTIONS = [
  '--port',
  '0',
  '--served-model-name',
  'tiny',
  '--tool-parser',
  'hermes',
  '--api-key',
  'secret',
];

/** A model of random weights with a tokenizer of bytes, in this directory. */
export async function writeServedModel(directory: string): Promise<void> {
  const module = '../../../bench/byte_tokenizer.mjs';
  const { writeByteTokenizer, VOCABULARY_SIZE, END } = await import(module);
  const data = Float32Array.from({ length: VOCABULARY_SIZE * 32 }, (_, i) => 0.3 * Math.sin(1 + i * i));
  // The end is never the likeliest token.
  data.fill(0, END.id * 32);
  await writeModel(directory, {
    config: { vocab_size: VOCABULARY_SIZE, max_position_embeddings: 1024, eos_token_id: END.id },
    tensors: [
      { name: 'model.embed_tokens.weight', shape: [VOCABULARY_SIZE, 32], data },
      ...modelTensors().slice(1),
    ],
  });
  writeByteTokenizer(directory);
}

/** The URL that the server says when it is ready. */
export async function announced(command: Command): Promise<string> {
  const found = (): RegExpExecArray | null =>
    /serving tiny at (\S+)\/v1 \(tools as hermes\)/.exec(command.stderr);
  await command.until('it was ready', () => found() !== null);
  return found()?.[1] as string;
}

export const client = (base: string): OpenAI =>
  new OpenAI({ baseURL: `${base}/v1`, apiKey: 'secret', maxRetries: 0 });

/** A request that has one answer. */
export const ask = {
  model: 'tiny',
  messages: [{ role: 'user' as const, content: 'hello' }],
  max_tokens: 24,
  temperature: 0,
  seed: 1,
};
