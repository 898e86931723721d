// A tokenizer that needs no download: one token per byte and, after these, an end token; ChatML template. For benchmarks and tests.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Bytes, then the end of a turn. */
export const VOCABULARY_SIZE = 257;
export const END = { id: 256, content: '<|im_end|>' };

const TEMPLATE =
  "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}" +
  '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}';

/** Writes tokenizer.json and tokenizer_config.json. */
export function writeByteTokenizer(directory) {
  mkdirSync(directory, { recursive: true });
  const printable = (b) => (b >= 33 && b <= 126) || (b >= 161 && b !== 173);
  let next = 256;
  const bytes = Array.from({ length: 256 }, (_, b) => String.fromCodePoint(printable(b) ? b : next++));
  const end = { ...END, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  const definition = {
    version: '1.0',
    added_tokens: [end],
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: 'ByteLevel' },
    model: { type: 'BPE', vocab: Object.fromEntries(bytes.map((byte, i) => [byte, i])), merges: [] },
  };
  writeFileSync(join(directory, 'tokenizer.json'), JSON.stringify(definition));
  const config = { chat_template: TEMPLATE, eos_token: END.content };
  writeFileSync(join(directory, 'tokenizer_config.json'), JSON.stringify(config));
}
