// A model of the fixtures with a tokenizer of characters, which has its image token, and a chat template that writes it.
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { RlDataset } from '../../ts/data/rl_dataset';
import type { Tokenizer } from '../../ts/data/tokenizer';
import { tokenizerDirectory } from '../unit/data/fake_tokenizer';
import { READING } from './vision_model';

const TEMPLATE =
  '{%- for m in messages -%}{%- if m.content is string -%}{{ m.content }}{%- else -%}{%- for p in m.content -%}' +
  "{%- if p.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ p.text }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endfor -%}" +
  '{%- if add_generation_prompt -%}={%- endif -%}';

/** Ids of the image token and those around it. */
const IMAGE_TOKENS = ['<|image_pad|>', '<|vision_start|>', '<|vision_end|>'].map(
  (content, i) => [60 + i, content] as const,
);

/** Writes the tokenizer into a directory. */
export function writeVisionTokenizer(directory: string, template = TEMPLATE): void {
  const source = tokenizerDirectory({ chat_template: template });
  copyFileSync(join(source, 'tokenizer_config.json'), join(directory, 'tokenizer_config.json'));
  const definition = JSON.parse(readFileSync(join(source, 'tokenizer.json'), 'utf8')) as {
    added_tokens: Record<string, unknown>[];
    post_processor: unknown;
  };
  for (const [id, content] of IMAGE_TOKENS)
    definition.added_tokens.push({ ...definition.added_tokens[0], id, content });
  definition.post_processor = null;
  writeFileSync(join(directory, 'tokenizer.json'), JSON.stringify(definition));
}

/** Copies the model `from` to the new directory `to`, with the tokenizer. */
export function writeVisionModel(from: string, to: string, template = TEMPLATE): void {
  mkdirSync(to);
  for (const name of readdirSync(from)) copyFileSync(join(from, name), join(to, name));
  writeVisionTokenizer(to, template);
}

/** Rows of a file as a run reads them for such a model. */
export const visionRows = (file: string, tokenizer: Tokenizer): Promise<RlDataset> =>
  RlDataset.open([file], tokenizer, {
    promptKey: 'prompt',
    dataSourceKey: 'data_source',
    maxPromptLength: 500,
    filterOverlongPrompts: false,
    truncation: 'error',
    maxSamples: -1,
    shuffle: false,
    seed: 0,
    images: READING,
  });
