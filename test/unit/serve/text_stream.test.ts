import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TextStream } from '../../../ts/data/text_stream';
import { TokenBytes } from '../../../ts/data/token_bytes';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { StopTexts } from '../../../ts/serve/text/stop_texts';

const directory = mkdtempSync(join(tmpdir(), 'troupe-text-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

let bytes: Tokenizer;
let pieces: Tokenizer;
beforeAll(async () => {
  const module = '../../../bench/byte_tokenizer.mjs';
  (await import(module)).writeByteTokenizer(directory);
  bytes = Tokenizer.load(directory);
  // As SentencePiece has it: a leading blank belongs to the word, and is dropped at the very beginning.
  const vocab = ['<unk>', '\u2581Hello', '\u2581world', '<0xE4>', '<0xB8>', '<0x96>', '!', '\u2581'];
  const definition = {
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: null,
    post_processor: null,
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '\u2581' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
    model: {
      type: 'BPE',
      unk_token: '<unk>',
      byte_fallback: true,
      vocab: Object.fromEntries(vocab.map((text, i) => [text, i])),
      merges: [],
    },
  };
  writeFileSync(join(directory, 'tokenizer.json'), JSON.stringify(definition));
  writeFileSync(join(directory, 'tokenizer_config.json'), '{}');
  pieces = Tokenizer.load(directory);
});

function stream(tokenizer: Tokenizer, tokens: ArrayLike<number>, skip: number[] = []): string[] {
  const text = new TextStream(tokenizer, new Set(skip));
  return [...Array.from(tokens, (token) => text.push(token)), text.end()];
}

test('characters come when they are complete', () => {
  const tokens = bytes.encode('a\u4e16\u{1f44d}');
  expect(stream(bytes, tokens)).toEqual(['a', '', '', '\u4e16', '', '', '', '\u{1f44d}', '']);
});

test('what comes is what decoding everything gives, also where bytes are no text', () => {
  let state = 1;
  const random = (below: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  for (let round = 0; round < 60; round++) {
    const good = Array.from(bytes.encode('h\u00e9 \u4e16 \u{1f44d}!'));
    const tokens = Array.from({ length: 1 + random(60) }, () =>
      round % 2 ? random(256) : (good[random(good.length)] as number),
    );
    expect(stream(bytes, tokens).join('')).toBe(bytes.decode(tokens, { skipSpecialTokens: false }));
  }
});

test('bytes that are no text do not wait for ever', () => {
  const parts = stream(bytes, new Array(40).fill(0xff));
  expect(parts.slice(0, 40).filter((text) => text !== '').length).toBeGreaterThan(30);
});

test('a word keeps its blank, but for the first one', () => {
  expect(stream(pieces, [1, 2, 6]).join('')).toBe('Hello world!');
  expect(stream(pieces, [1, 2, 3, 4, 5, 2])).toEqual(['Hello', ' world', '', '', '\u4e16', ' world', '']);
  expect(stream(pieces, [7, 1]).join('')).toBe(pieces.decode([7, 1], { skipSpecialTokens: false }));
});

test('skipped tokens have no text', () => {
  expect(stream(bytes, [...bytes.encode('a'), 256, ...bytes.encode('b')], [256]).join('')).toBe('ab');
});

test('bytes of tokens', () => {
  const of = (tokenizer: Tokenizer, id: number): number[] => [...new TokenBytes(tokenizer).bytes(id)];
  expect([of(bytes, 0xe4), of(bytes, 256), of(bytes, 999)]).toEqual([
    [0xe4],
    [...Buffer.from('<|im_end|>')],
    [],
  ]);
  expect([of(pieces, 3), of(pieces, 2)]).toEqual([[0xe4], [...Buffer.from(' world')]]);
});

test('stop texts are found across pieces and the first one counts', () => {
  const stops = new StopTexts(['\n\n', 'END']);
  expect(['a E', 'N', 'x\n', 'E', 'ND more'].map((text) => stops.push(text))).toEqual([
    { text: 'a ', stop: null },
    { text: '', stop: null },
    { text: 'ENx', stop: null },
    { text: '\n', stop: null },
    { text: '', stop: 'END' },
  ]);
  const late = new StopTexts(['END']);
  expect([late.push('the EN').text, late.end()]).toEqual(['the ', 'EN']);
});

test.each([
  [['a', 'b'], 'xaxb'],
  [['b', 'a'], 'xaxb'],
  [['a', 'ab'], 'xab'],
  [['xb', 'a'], 'xaxb'],
])('of the stop texts %j that are in a text the first one ends it', (stops, text) => {
  expect(new StopTexts(stops).push(text)).toEqual({ text: 'x', stop: 'a' });
});
