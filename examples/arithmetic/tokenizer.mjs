import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** One token per character, after the two special tokens. */
const CHARACTERS = '0123456789+-=';
export const PAD = { id: 0, content: '<pad>' };
export const EOS = { id: 1, content: '<eos>' };
export const VOCABULARY_SIZE = CHARACTERS.length + 2;

const special = ({ id, content }) => ({
  id,
  content,
  single_word: false,
  lstrip: false,
  rstrip: false,
  normalized: false,
  special: true,
});

/** A byte-pair tokenizer without merges: every character stays its own token, and so does every one of `words`. */
function tokenizerJson(characters, words) {
  const vocab = { [PAD.content]: PAD.id, [EOS.content]: EOS.id };
  [...characters, ...words].forEach((content, i) => {
    vocab[content] = i + 2;
  });
  const added = words.map((content) => ({ ...special({ id: vocab[content], content }), special: false }));
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: [special(PAD), special(EOS), ...added],
    normalizer: null,
    pre_tokenizer: null,
    post_processor: null,
    decoder: { type: 'Fuse' },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab,
      merges: [],
    },
  };
}

// The prompt itself asks for the answer ("47+85="), so there is no generation prompt; an answer ends with <eos>.
const CHAT_TEMPLATE =
  "{% for message in messages %}{{ message['content'] }}" +
  "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}";

/** Writes tokenizer.json and tokenizer_config.json. */
export function writeTokenizer(
  directory,
  { characters = CHARACTERS, words = [], template = CHAT_TEMPLATE, length = 64 } = {},
) {
  const config = {
    tokenizer_class: 'PreTrainedTokenizerFast',
    eos_token: EOS.content,
    pad_token: PAD.content,
    clean_up_tokenization_spaces: false,
    model_max_length: length,
    chat_template: template,
  };
  writeFileSync(
    join(directory, 'tokenizer.json'),
    `${JSON.stringify(tokenizerJson(characters, words), null, 2)}\n`,
  );
  writeFileSync(join(directory, 'tokenizer_config.json'), `${JSON.stringify(config, null, 2)}\n`);
}
