// A tokenizer whose chat template has tools, and drops what the model thought before the last question, as Qwen3's does.
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TextThreads } from '../../../ts/data/text_threads';
import { TokenBytes } from '../../../ts/data/token_bytes';
import { Tokenizer } from '../../../ts/data/tokenizer';
import type { RolloutEngine } from '../../../ts/rollout/engine';
import type { ServedModel } from '../../../ts/serve/call/served_model';
import { familyOf } from '../../../ts/serve/tools/families';
import { ScriptedEngine } from '../../helpers/scripted_engine';

export const TEMPLATE = `{%- set seen = namespace(question=-1) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set seen.question = loop.index0 %}{% endif %}{% endfor -%}
{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}. Call one so: <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- set words = m.content or '' -%}
{%- if '</think>' in words and loop.index0 < seen.question -%}
{%- set words = words.split('</think>')[-1].lstrip() -%}
{%- endif -%}
<|im_start|>assistant
{{ words }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif m.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}`;

const TURNS = (calls: string): string =>
  '{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}' +
  `{%- for call in m.tool_calls or [] %}{%- set call = call.function %}${calls}{%- endfor %}<|im_end|>\n{% endfor -%}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}`;
/** As those of Qwen3-Coder, GLM-4.5 and MiniMax-M2 write calls of tools. */
export const TAG_TEMPLATES = {
  qwen3_coder: TURNS(
    "{{- '<tool_call>\\n<function=' + call.name + '>\\n' }}{%- for key, value in call.arguments|items %}" +
      "{{- '<parameter=' + key + '>\\n' }}{%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}" +
      "{{- value }}{{- '\\n</parameter>\\n' }}{%- endfor %}{{- '</function>\\n</tool_call>' }}",
  ),
  glm45: TURNS(
    "{{- '<tool_call>' + call.name + '\\n' }}{%- for key, value in call.arguments.items() %}{{- '<arg_key>' + key + '</arg_key>\\n<arg_value>' }}" +
      "{{- value if value is string else value | tojson(ensure_ascii=False) }}{{- '</arg_value>\\n' }}{%- endfor %}{{- '</tool_call>' }}",
  ),
  minimax_m2: TURNS(
    "{{- '<minimax:tool_call>\\n<invoke name=\"' + call.name + '\">\\n' }}{%- for key, value in call.arguments.items() %}{{- '<parameter name=\"' + key + '\">' }}" +
      "{{- value if value is string else value | tojson(ensure_ascii=False) }}{{- '</parameter>\\n' }}{%- endfor %}{{- '</invoke>\\n</minimax:tool_call>' }}",
  ),
};

export const EOS = 257;

/** `template`: instead of the one above; `tags`: its special tokens, from 256 on, the last of which ends a turn. */
export function chatTokenizer(template = TEMPLATE, tags = ['<|im_start|>', '<|im_end|>']): Tokenizer {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-chat-'));
  const printable = (b: number): boolean => (b >= 33 && b <= 126) || (b >= 161 && b !== 173);
  let next = 256;
  const bytes = Array.from({ length: 256 }, (_, b) => String.fromCodePoint(printable(b) ? b : next++));
  const special = tags.map((content, i) => ({
    id: 256 + i,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  }));
  // A few merges, so that tokenising again does not always give what was sampled.
  const merges = ['t h', 'th e', 'a n', 'an s', 'w e', 'Ġ the'].filter((merge) => !merge.includes('Ġ'));
  const merged = merges.map((merge) => merge.replace(' ', ''));
  const vocab = Object.fromEntries(
    [...bytes, ...special.map(({ content }) => content), ...merged].map((t, i) => [t, i]),
  );
  const definition = {
    version: '1.0',
    added_tokens: special,
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: 'ByteLevel' },
    model: { type: 'BPE', vocab, merges },
  };
  writeFileSync(join(directory, 'tokenizer.json'), JSON.stringify(definition));
  const config = { chat_template: template, eos_token: tags.at(-1), clean_up_tokenization_spaces: false };
  writeFileSync(join(directory, 'tokenizer_config.json'), JSON.stringify(config));
  return Tokenizer.load(directory);
}

/** Bytes, one token each: not how the tokenizer writes "the". */
export const bytewise = (text: string): number[] => [...Buffer.from(text), EOS];

export const served = (tokenizer: Tokenizer): Omit<ServedModel, 'engine'> => ({
  name: 'policy',
  created: 0,
  vocabSize: tokenizer.vocabSize,
  eosTokenIds: [EOS],
  tokenizer,
  bytes: new TokenBytes(tokenizer),
  texts: new TextThreads(tokenizer),
  family: familyOf(tokenizer.toolTemplate),
  grammars: null,
  images: null,
});

/** Says what `speak` gives for the text of the prompt, byte by byte. */
export const speaking = (
  tokenizer: Tokenizer,
  speak: (prompt: string, turn: number) => string,
): RolloutEngine =>
  new ScriptedEngine(({ promptIds }, turn) => ({
    tokens: bytewise(speak(tokenizer.decode(promptIds, { skipSpecialTokens: false }), turn)),
  }));
