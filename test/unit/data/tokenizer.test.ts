import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { checkVocabulary, Tokenizer } from '../../../ts/data/tokenizer';
import { templateSources } from '../../../ts/data/tokenizer_files';
import { familyOf } from '../../../ts/serve/tools/families';
import { ALPHABET, id, TEMPLATE, temporaryDirectory, tokenizerDirectory } from './fake_tokenizer';

const user = (content: string) => ({ role: 'user', content });

describe('tokens', () => {
  const tokenizer = Tokenizer.load(tokenizerDirectory());

  it('go there and back', () => {
    const tokens = tokenizer.encode('ab+1');
    expect(Array.from(tokens)).toEqual(['a', 'b', '+', '1'].map(id));
    expect(tokenizer.decode(tokens, { skipSpecialTokens: true })).toBe('ab+1');
  });

  // As transformers 5 has it: BPE means its blanks, and only who insists loses them.
  it.each([
    ['WordLevel', {}, 'a .'],
    ['WordLevel', { clean_up_tokenization_spaces: true }, 'a.'],
    ['WordLevel', { clean_up_tokenization_spaces: false }, 'a .'],
    ['BPE', { clean_up_tokenization_spaces: true }, 'a .'],
    [
      'BPE',
      {
        clean_up_tokenization_spaces: true,
        clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output: true,
      },
      'a.',
    ],
  ])('of %s with %j keep blanks before punctuation or not', (type, config, expected) => {
    const directory = tokenizerDirectory(config);
    const file = join(directory, 'tokenizer.json');
    const definition = JSON.parse(readFileSync(file, 'utf8'));
    const vocab = { ...definition.model.vocab, '.': 100 };
    definition.model = { type, vocab, unk_token: '<unk>', ...(type === 'BPE' ? { merges: [] } : {}) };
    writeFileSync(file, JSON.stringify(definition));
    const tokens = [id('a'), id(' '), 100];
    expect(Tokenizer.load(directory).decode(tokens, { skipSpecialTokens: true })).toBe(expected);
  });

  it('of the post-processor come when asked for', () => {
    expect(Array.from(tokenizer.encode('a', true))).toEqual([1, id('a')]);
  });

  it('that are special can be shown or left out', () => {
    expect(tokenizer.decode([id('a'), 2], { skipSpecialTokens: true })).toBe('a');
    expect(tokenizer.decode([id('a'), 2], { skipSpecialTokens: false })).toBe('a<eos>');
    expect(Array.from(tokenizer.encode('a<eos>'))).toEqual([id('a'), 2]);
  });

  it('behind the vocabulary have no text', () => {
    const far = tokenizer.vocabSize + 7;
    for (const skipSpecialTokens of [true, false]) {
      expect(tokenizer.decode([id('a'), far, id('b')], { skipSpecialTokens })).toBe('ab');
      expect(tokenizer.decode([far], { skipSpecialTokens })).toBe('');
    }
  });

  // What the library in Rust (tokenizers 0.23) makes of it: blanks are those of Unicode, not those of JavaScript.
  it.each([
    ["\ufeff's", ["ï»¿'", 's']],
    ['\ufeff\u0085a', ['ï»¿', 'Âħ', 'a']],
    ['a \u0085', ['a', 'ĠÂħ']],
    ["a's", ['a', "'s"]],
  ])('are cut out of %j by GPT-2’s pattern', (text, pieces) => {
    const directory = tokenizerDirectory();
    const file = join(directory, 'tokenizer.json');
    const definition = JSON.parse(readFileSync(file, 'utf8'));
    definition.pre_tokenizer = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true };
    for (const [i, piece] of pieces.entries()) definition.model.vocab[piece] = 100 + i;
    writeFileSync(file, JSON.stringify(definition));
    const tokens = Tokenizer.load(directory).encode(text);
    expect(Array.from(tokens)).toEqual(pieces.map((piece) => definition.model.vocab[piece]));
  });

  // The same of the tokenizers of StarCoder, SmolLM2 and Granite, which cut numbers out first.
  it.each([
    [true, 'a ½', ['a', 'Ġ', 'Â½']],
    [true, '10²', ['1', '0', 'Â²']],
    [true, ' \n ①', ['ĠĊĠ', 'âĳł']],
    [true, "\ufeff's", ["ï»¿'", 's']],
    [false, '10²', ['10Â²']],
    [false, '٣٤ 12', ['Ù£Ù¤', 'Ġ', '12']],
  ])('are cut out by Digits, individual or not (%s), of %j', (individual, text, pieces) => {
    const directory = tokenizerDirectory();
    const file = join(directory, 'tokenizer.json');
    const definition = JSON.parse(readFileSync(file, 'utf8'));
    definition.pre_tokenizer = {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Digits', individual_digits: individual },
        { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
      ],
    };
    for (const [i, piece] of pieces.entries()) definition.model.vocab[piece] = 100 + i;
    writeFileSync(file, JSON.stringify(definition));
    const tokens = Tokenizer.load(directory).encode(text);
    expect(Array.from(tokens)).toEqual(pieces.map((piece) => definition.model.vocab[piece]));
  });

  // As Llama 2, Mistral and Gemma write what their vocabularies lack.
  it.each([
    { type: 'ByteFallback' },
    { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, { type: 'Fuse' }] },
  ])('of bytes are text also where they begin with a byte-order mark: %j', (decoder) => {
    const directory = tokenizerDirectory();
    const file = join(directory, 'tokenizer.json');
    const definition = JSON.parse(readFileSync(file, 'utf8'));
    definition.decoder = decoder;
    for (const [i, byte] of ['EF', 'BB', 'BF', 'C3', 'A9'].entries())
      definition.model.vocab[`<0x${byte}>`] = 100 + i;
    writeFileSync(file, JSON.stringify(definition));
    const decode = (...tokens: number[]) =>
      Tokenizer.load(directory).decode(tokens, { skipSpecialTokens: true });
    expect(decode(id('a'), 100, 101, 102, 103, 104)).toBe('a\ufeffé');
  });

  it('are counted, and known by their roles', () => {
    expect(tokenizer.vocabSize).toBe(4 + ALPHABET.length);
    expect([tokenizer.eosId, tokenizer.padId]).toEqual([2, 3]);
  });

  it('beyond the vocabulary of the model are an error', () => {
    expect(() => checkVocabulary(tokenizer, tokenizer.vocabSize, 'model')).not.toThrow();
    expect(() => checkVocabulary(tokenizer, tokenizer.vocabSize - 1, 'model')).toThrow(
      /produces ids up to \d+, but the model in model has vocab_size \d+/,
    );
  });
});

// Directories whose tokenizer_config.json does not say it: older ones, and those of pretrained models.
describe('the end token', () => {
  const map = { 'special_tokens_map.json': { eos_token: { content: '<eos>' }, bos_token: '<bos>' } };
  const generation = (eos_token_id: unknown) => ({ 'generation_config.json': { eos_token_id } });
  const model = { 'config.json': { eos_token_id: 3, bos_token_id: 1 } };

  it.each([
    ['of special_tokens_map.json', map, 2, '<bos><eos>'],
    ['of special_tokens_map.json before the model’s', { ...map, ...model }, 2, '<bos><eos>'],
    ['of config.json, and of it no other token', model, 3, '<pad>'],
    ['of generation_config.json before it', { ...model, ...generation(2) }, 2, '<eos>'],
    ['the first that the vocabulary has', generation([1000, 2, 3]), 2, '<eos>'],
    ['of config.json when the other says nothing', { ...model, ...generation(null) }, 3, '<pad>'],
    // As Python writes it, and models are read from.
    [
      'of a config.json with an infinity',
      { 'config.json': '{"limit": [0.0, Infinity], "eos_token_id": 2}' },
      2,
      '<eos>',
    ],
    ['missing', {}, null, ''],
  ])('%s', (_, files, end, rendered) => {
    const chat_template = '{{ bos_token }}{{ eos_token }}';
    const directory = tokenizerDirectory({ chat_template, bos_token: undefined, eos_token: null });
    for (const [name, value] of Object.entries(files))
      writeFileSync(join(directory, name), typeof value === 'string' ? value : JSON.stringify(value));
    const tokenizer = Tokenizer.load(directory);
    expect(tokenizer.eosId).toBe(end);
    expect(tokenizer.renderChat([user('x')], true)).toBe(rendered);
  });
});

describe('chat templates', () => {
  it('come from tokenizer_config.json', () => {
    const tokenizer = Tokenizer.load(tokenizerDirectory());
    expect(tokenizer.renderChat([user('1+1')], true)).toBe('<|user|>1+1<eos><|assistant|>');
  });

  it.each([
    5,
    {},
    [null],
    [{ name: 'default' }],
    [{ name: 'default', template: 5 }],
    [
      { name: 'default', template: 'x' },
      { name: 'tool_use', template: 5 },
    ],
  ])('that are none are refused: %j', (template) => {
    expect(() => Tokenizer.load(tokenizerDirectory({ chat_template: template }))).toThrow(
      /tokenizer_config\.json: chat_template: expected a text, or a list of \{name, template\}, got /,
    );
  });

  it('come from chat_template.jinja first', () => {
    const directory = tokenizerDirectory();
    writeFileSync(join(directory, 'chat_template.jinja'), "{{ bos_token }}{{ messages[0]['content'] }}");
    expect(Tokenizer.load(directory).renderChat([user('x')], true)).toBe('<bos>x');
  });

  it('come from the configuration before all', () => {
    const tokenizer = Tokenizer.load(tokenizerDirectory(), { chatTemplate: '{{ messages|length }}' });
    expect(tokenizer.renderChat([user('x')], true)).toBe('1');
  });

  it('may have names', () => {
    const named = [
      { name: 'tool_use', template: 'no' },
      { name: 'default', template: TEMPLATE },
    ];
    const tokenizer = Tokenizer.load(tokenizerDirectory({ chat_template: named }));
    expect(tokenizer.renderChat([user('x')], false)).toBe('<|user|>x<eos>');
  });

  // Hermes' layout, and that of newer directories.
  const TOOL_USE = "<tools>{{ tools[0]['name'] }}</tools><tool_call>";
  const inside = [
    { name: 'default', template: TEMPLATE },
    { name: 'tool_use', template: TOOL_USE },
  ];
  it.each<[string, Record<string, unknown>, Record<string, string>]>([
    ['in a list', { chat_template: inside }, {}],
    ['beside the usual one', { chat_template: 'no' }, { 'chat_template.jinja': TEMPLATE }],
    ['beside that of tokenizer_config.json', { chat_template: TEMPLATE }, {}],
  ])('take that named tool_use when there are tools: %s', (_, config, files) => {
    const directory = tokenizerDirectory(config);
    if (config['chat_template'] !== inside) {
      mkdirSync(join(directory, 'additional_chat_templates'));
      files = { ...files, 'additional_chat_templates/tool_use.jinja': TOOL_USE };
    }
    for (const [name, text] of Object.entries(files)) writeFileSync(join(directory, name), text);
    const first = Tokenizer.load(directory);
    const { directory: from, chatTemplate } = first.source;
    const again = Tokenizer.load(from, { chatTemplate });
    for (const tokenizer of [first, again]) {
      const tools = { tools: [{ name: 'f' }] };
      expect(tokenizer.renderChat([user('x')], false, tools)).toBe('<tools>f</tools><tool_call>');
      for (const none of [{}, { tools: null }])
        expect(tokenizer.renderChat([user('x')], false, none)).toBe('<|user|>x<eos>');
      expect(familyOf(tokenizer.toolTemplate)?.name).toBe('hermes');
      expect(familyOf(tokenizer.chatTemplate)).toBeNull();
    }
    const own = Tokenizer.load(directory, { chatTemplate: 'mine' });
    expect(own.renderChat([user('x')], false, { tools: [] })).toBe('mine');
    expect([own.toolTemplate, own.source.chatTemplate]).toEqual(['mine', 'mine']);
  });

  it('named tool_use that do not parse are named when there are tools', () => {
    const tool_use = { name: 'tool_use', template: '{% if %}' };
    const tokenizer = Tokenizer.load(tokenizerDirectory({ chat_template: [inside[0], tool_use] }));
    expect(tokenizer.renderChat([user('x')], false)).toBe('<|user|>x<eos>');
    expect(() => tokenizer.renderChat([user('x')], false, { tools: [] })).toThrow(/does not parse/);
  });

  it.each([
    ['{{ messages[0]|tojson }}', '{"role": "user", "content": "x"}'],
    ["{{ strftime_now('%Y')|length }}", '4'],
    ['{{ greeting }}', 'hello'],
    ['{% generation %}{{ messages[0].content.strip() }}{% endgeneration %}', 'x'],
    ['{%- for m in messages -%}\n  {{- m.role }}\n{%- endfor -%}', 'user'],
    ['{% if tools is defined and tools is none %}none{% endif %}', 'none'],
    ['{{ cls_token }}{{ sep_token }}{{ documents }}', 'None'],
    ["[{{ ' \\n x \\n '.strip() }}][{{ '\\n\\n x\\n \\n'.strip('\\n') }}]", '[x][ x\n ]'],
    ["[{{ '\\n x \\n'.lstrip('\\n') }}][{{ (' a' + 'xyx ')[:4].rstrip('xy') }}]", '[ x \n][ a]'],
    ["{{ '<think>\\n a\\n</think>\\n\\n b'.split('</think>')[-1].lstrip('\\n') }}", ' b'],
    ["{{ 'aba'.strip('b'.strip('c')) ~ 'aba'.strip('a'.strip('\\n')) }}", 'abab'],
  ])('do what Hugging Face does: %s', (template, expected) => {
    const tokenizer = Tokenizer.load(tokenizerDirectory({ chat_template: template }));
    expect(tokenizer.renderChat([user('x')], true, { greeting: 'hello' })).toBe(expected);
  });

  // transformers 5.24 renders these texts.
  it.each<[string, Record<string, unknown> & { content: unknown }, string]>([
    [
      'content: null',
      { content: null, tool_calls: [{ id: 'c' }] },
      '{"role": "assistant", "tool_calls": [{"id": "c"}]}',
    ],
    [
      'null beside a content',
      { content: 'x', tool_calls: null, name: null },
      '{"role": "assistant", "content": "x"}',
    ],
    [
      'null in what it holds',
      { content: [{ text: null }] },
      '{"role": "assistant", "content": [{"text": null}]}',
    ],
    [
      'thinking',
      { content: 'x', thinking: 't' },
      '{"thinking": "t", "role": "assistant", "content": "x", "reasoning_content": "t"}',
    ],
    [
      'reasoning',
      { content: 'x', reasoning: 'r', thinking: null },
      '{"thinking": "r", "role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"}',
    ],
    [
      'reasoning under two names',
      { reasoning_content: 'c', content: 'x', thinking: 't' },
      '{"thinking": "t", "role": "assistant", "reasoning_content": "c", "content": "x"}',
    ],
  ])('see messages as Hugging Face gives them: %s', (_, message, expected) => {
    const template = '{{ messages[0]|tojson }}';
    const tokenizer = Tokenizer.load(tokenizerDirectory({ chat_template: template }));
    expect(tokenizer.renderChat([{ role: 'assistant', ...message }], false)).toBe(expected);
  });

  it('may have lines that end as those of Windows', () => {
    const chat_template = "a\r\n{% if true %}\r\nb\r{% endif %}\r\nc{{ 'x\r\ny' }}{{ '\\r\\n' }}";
    const tokenizer = Tokenizer.load(tokenizerDirectory({ chat_template }));
    expect(tokenizer.renderChat([user('x')], true)).toBe('a\nb\ncx\ny\r\n');
  });

  it('may refuse a conversation', () => {
    const template = "{{ raise_exception('roles must alternate') }}";
    const tokenizer = Tokenizer.load(tokenizerDirectory({ chat_template: template }));
    expect(() => tokenizer.renderChat([user('x')], true)).toThrow(
      /the chat template failed: roles must alternate/,
    );
  });

  it('may fail', () => {
    const tokenizer = Tokenizer.load(tokenizerDirectory({ chat_template: "{{ messages.strip('x') }}" }));
    expect(() => tokenizer.renderChat([user('x')], true)).toThrow(
      /failed: a list has no method 'strip' here/,
    );
  });

  it('that do not parse are named', () => {
    expect(() => Tokenizer.load(tokenizerDirectory({ chat_template: '{% if %}' }))).toThrow(/does not parse/);
    for (const chat_template of ['{% for m in messages %}', '{% if x %}a{% else %}'])
      expect(() => Tokenizer.load(tokenizerDirectory({ chat_template }))).toThrow(
        /does not parse: it ends within a statement or a block: is an end, such as \{% endfor %\}, missing\?/,
      );
  });

  it('that are missing are an error when needed', () => {
    const tokenizer = Tokenizer.load(tokenizerDirectory({}));
    expect(() => tokenizer.renderChat([user('x')], true)).toThrow(
      /has no chat template: .*custom_chat_template/,
    );
  });
});

describe('what a program passes', () => {
  const tokenizer = Tokenizer.load(tokenizerDirectory());
  const chat = (messages: unknown, extra?: unknown): unknown =>
    tokenizer.renderChat(messages as never, true, extra as never);
  const skip = { skipSpecialTokens: true };
  it.each<[string, () => unknown, RegExp]>([
    ['no text', () => tokenizer.encode(5 as never), /encode\] text: expected a text but got 5/],
    [
      'no tokens',
      () => tokenizer.decode(null as never, skip),
      /decode\] tokens: expected an array of numbers/,
    ],
    [
      'a length that is claimed',
      () => tokenizer.decode({ length: 1e9 } as never, skip),
      /tokens\[0\]: expected a number but got undefined/,
    ],
    ['no options', () => tokenizer.decode([1], undefined as never), /decode\] expected an options object/],
    [
      'a mistyped option',
      () => tokenizer.decode([1], { skipSpecial: true } as never),
      /unknown option 'skipSpecial'; did you mean 'skipSpecialTokens'/,
    ],
    ['no id', () => tokenizer.tokenString('1' as never), /tokenString\] expected a token id but got "1"/],
    [
      'no messages',
      () => chat(undefined),
      /messages: expected an array of \{role, content\} but got undefined/,
    ],
    [
      'a message that is none',
      () => chat([5]),
      /messages: expected an array of \{role, content\} but got \[5\]/,
    ],
    ['no variables', () => chat([], 5), /extra: expected an object of variables but got 5/],
    [
      'another option of load',
      () => Tokenizer.load('x', { template: 'x' } as never),
      /\[Tokenizer\.load\] unknown option 'template'/,
    ],
    [
      'a template that is no text',
      () => Tokenizer.load('x', { chatTemplate: 5 } as never),
      /chatTemplate: expected a text but got 5/,
    ],
  ])('%s', (_, call, message) => {
    expect(call).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }));
    expect(call).toThrow(message);
  });
});

describe('a directory', () => {
  it('without tokenizer.json is named', () => {
    const directory = temporaryDirectory();
    expect(() => Tokenizer.load(directory)).toThrow(
      `${directory} has no tokenizer.json: expected a directory with a fast tokenizer: copy that of the model which this one was made from into it, or`,
    );
  });

  it.each(['{ "model": ', '{}'])('with a broken one is named: %s', (text) => {
    const directory = join(temporaryDirectory(), 'broken');
    mkdirSync(directory);
    writeFileSync(join(directory, 'tokenizer.json'), text);
    expect(() => Tokenizer.load(directory)).toThrow(/tokenizer\.json is not/);
  });

  it('with files of other bytes than UTF-8 is named', () => {
    const directory = join(temporaryDirectory(), 'bytes');
    mkdirSync(directory);
    const file = join(directory, 'chat_template.jinja');
    writeFileSync(file, Buffer.from([0x61, 0x0a, 0xff]));
    expect(() => templateSources(directory, {})).toThrow(
      `${file}:2: not valid UTF-8: write the file again as UTF-8`,
    );
    // A mark of the byte order is no part of the text.
    writeFileSync(file, '\ufeff{{ x }}');
    expect(templateSources(directory, {})).toMatchObject({ usual: '{{ x }}' });
    writeFileSync(join(directory, 'tokenizer.json'), Buffer.from([0x7b, 0xff]));
    expect(() => Tokenizer.load(directory)).toThrow(/tokenizer\.json:1: not valid UTF-8/);
  });
});
