import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Characters that the tokenizer of {@link tokenizerDirectory} knows, one token each, ids from 4. */
export const ALPHABET = 'abcdefghijklmnopqrstuvwxyz0123456789 +=?<>|/\n';

export const id = (character: string): number => 4 + ALPHABET.indexOf(character);

/** <|role|>text<eos> for each message; the assistant is opened by <|assistant|>. */
export const TEMPLATE =
  "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}" +
  '{% if add_generation_prompt %}<|assistant|>{% endif %}';

export function temporaryDirectory(): string {
  return mkdtempSync(join(tmpdir(), 'troupe-data-'));
}

/** A directory with a character tokenizer whose post-processor puts <bos> in front. */
export function tokenizerDirectory(config: Record<string, unknown> = { chat_template: TEMPLATE }): string {
  const directory = temporaryDirectory();
  const special = ['<unk>', '<bos>', '<eos>', '<pad>'];
  const vocab = Object.fromEntries([...special, ...ALPHABET].map((token, i) => [token, i]));
  const definition = {
    version: '1.0',
    added_tokens: special.map((content, i) => ({
      id: i,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: null,
    pre_tokenizer: { type: 'Split', pattern: { Regex: '[\\s\\S]' }, behavior: 'Isolated', invert: false },
    post_processor: {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<bos>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
      pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
      special_tokens: { '<bos>': { id: '<bos>', ids: [1], tokens: ['<bos>'] } },
    },
    decoder: { type: 'Fuse' },
    model: { type: 'WordLevel', vocab, unk_token: '<unk>' },
  };
  writeFileSync(join(directory, 'tokenizer.json'), JSON.stringify(definition));
  const tokens = {
    bos_token: '<bos>',
    eos_token: { content: '<eos>' },
    pad_token: '<pad>',
    unk_token: '<unk>',
  };
  writeFileSync(join(directory, 'tokenizer_config.json'), JSON.stringify({ ...tokens, ...config }));
  return directory;
}

export function writeLines(rows: readonly unknown[], name = 'data.jsonl'): string {
  const file = join(temporaryDirectory(), name);
  writeFileSync(file, rows.map((row) => `${typeof row === 'string' ? row : JSON.stringify(row)}\n`).join(''));
  return file;
}

/** A row of verl's schema. */
export const rlRow = (prompt: unknown, groundTruth: unknown = '4') => ({
  data_source: 'sums',
  prompt,
  reward_model: { style: 'rule', ground_truth: groundTruth },
  extra_info: { index: 7 },
});
