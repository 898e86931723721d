import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import sharp from 'sharp';
import { ImageThreads } from '../../../ts/data/images/image_threads';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { writeVisionTokenizer } from '../../helpers/vision_directory';
import { IMAGE_TOKEN, IMAGES, READING, readFixtures } from '../../helpers/vision_model';
import { temporaryDirectory } from '../data/fake_tokenizer';
import { type Json, post, type Served, served } from './served';

// Images of requests, before an engine that says what it was given.

const chat = '/v1/chat/completions';
const directory = temporaryDirectory();
const threads = new ImageThreads(READING);
let server: Served;
let textServer: Served;

beforeAll(async () => {
  writeVisionTokenizer(directory);
  const tokenizer = Tokenizer.load(directory);
  const options = { server: { maxBodyBytes: 32 * 2 ** 20 } };
  server = await served(() => Int32Array.of(5, 6, 256), { ...options, images: threads });
  Object.assign(server.model, { tokenizer });
  textServer = await served(() => 'yes', options);
});
afterAll(async () => {
  await server.close();
  await textServer.close();
  await threads.close();
  rmSync(directory, { recursive: true });
});

const file = (name: string): Buffer => readFileSync(join(IMAGES, name));
const dataUrl = (bytes: Buffer, type = 'image/png'): string =>
  `data:${type};base64,${bytes.toString('base64')}`;
const image = (url: string): object => ({ type: 'image_url', image_url: { url } });
const wide = image(dataUrl(file('wide.png')));
const tall = image(dataUrl(file('tall.jpg'), 'image/jpeg'));
const text = (words: string): object => ({ type: 'text', text: words });
const ask = (...content: unknown[]): Json => ({ messages: [{ role: 'user', content }], max_tokens: 2 });

test('images are given as a data set reads them, each in as many tokens as it has parts', async () => {
  const again = { role: 'user', content: [text('and '), wide, tall] };
  const body = { ...ask(text('see '), wide, text('?')), return_token_ids: true };
  body.messages.push({ role: 'assistant', content: 'a b' }, again);
  const { status, text: answer } = await post(server.url, chat, body);
  expect(status).toBe(200);
  const { images, promptIds } = server.engine.requests.at(-1) ?? {};
  const expected = await readFixtures(['wide.png', 'wide.png', 'tall.jpg']);
  expect(images).toEqual(expected);
  const tokens = expected.map(({ height, width }) => (height * width) / 64);
  const runs = Array.from(promptIds ?? [], (id) => (id === IMAGE_TOKEN ? 'i' : '.')).join('');
  expect(runs).toBe(
    `.....${'i'.repeat(tokens[0] as number)}..${'.'.repeat(7 + 1)}${'i'.repeat(tokens[1] as number)}..${'i'.repeat(tokens[2] as number)}..`,
  );
  const { usage, prompt_token_ids: ids } = JSON.parse(answer);
  expect([usage.prompt_tokens, ids]).toEqual([runs.length, Array.from(promptIds ?? [])]);
});

test('the forms of an image that clients write', async () => {
  const url = dataUrl(file('wide.png'));
  const forms: unknown[] = [
    { url },
    { url, detail: 'auto' },
    { url, detail: null },
    url,
    { url: url.replace('data:image/png', 'DATA:Image/PNG;charset=x') },
    // Its kind is what the bytes say.
    { url: url.replace('image/png', 'image/jpg') },
  ];
  const [expected] = await readFixtures(['wide.png']);
  for (const image_url of forms) {
    const { status } = await post(server.url, chat, ask({ type: 'image_url', image_url }));
    expect([status, server.engine.requests.at(-1)?.images]).toEqual([200, [expected]]);
  }
  const tool = { role: 'tool', tool_call_id: 'c', content: [text('a'), wide] };
  expect((await post(server.url, chat, { messages: [tool] })).status).toBe(200);
  expect(server.engine.requests.at(-1)?.images).toEqual([expected]);
});

/** A PNG whose header says another size; nothing of its pixels is true. */
function sized(width: number, height: number): Buffer {
  const header = Buffer.from(file('wide.png').subarray(0, 33));
  header.writeUInt32BE(width, 16);
  header.writeUInt32BE(height, 20);
  header.writeUInt32BE(crc32(header.subarray(12, 29)), 29);
  return Buffer.concat([header, file('wide.png').subarray(33)]);
}

function crc32(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let k = 0; k < 8; k++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return (crc ^ 0xffffffff) >>> 0;
}

const at = 'messages.0.content.1';
const REFUSED: [string, unknown, string, RegExp][] = [
  [
    'an address',
    image('https://example.com/a.png'),
    `${at}.image_url.url`,
    /fetches no images: expected data:.*example\.com/,
  ],
  ['an address of a file', image('file:///etc/passwd'), `${at}.image_url.url`, /fetches no images/],
  ['a path', image('/etc/passwd'), `${at}.image_url.url`, /fetches no images/],
  ['words', image('data:image/png,abc'), `${at}.image_url.url`, /in base64/],
  ['a data: address without an end', image('data:image/png;base64'), `${at}.image_url.url`, /in base64/],
  [
    'another kind',
    image('data:image/bmp;base64,Qk0='),
    `${at}.image_url.url`,
    /image\/png.*got "image\/bmp"/,
  ],
  ['no kind', image('data:;base64,Qk0='), `${at}.image_url.url`, /expected image\/png.*got ""/],
  [
    'no base64',
    image('data:image/png;base64,iVBO!w0K'),
    `${at}.image_url.url`,
    /got 8 characters, of which one at 4/,
  ],
  ['base64 of its own length', image('data:image/png;base64,iVBOR'), `${at}.image_url.url`, /multiple of 4/],
  ['an end in the middle', image('data:image/png;base64,iV==BORw'), `${at}.image_url.url`, /one at 2/],
  ['nothing', image('data:image/png;base64,'), `${at}.image_url.url`, /got none/],
  [
    'no image',
    image(dataUrl(Buffer.from('hello'))),
    `${at}.image_url.url`,
    /expected the bytes of a PNG.*got 5 bytes/,
  ],
  [
    'a drawing',
    image(dataUrl(Buffer.from('<svg xmlns="http://www.w3.org/2000/svg"/>'))),
    `${at}.image_url.url`,
    /bytes of a PNG/,
  ],
  [
    'half a PNG',
    image(dataUrl(file('large.png').subarray(0, 9000))),
    `${at}.image_url.url`,
    /cannot be read/,
  ],
  ['half a JPEG', image(dataUrl(file('tall.jpg').subarray(0, 700))), `${at}.image_url.url`, /cannot be read/],
  [
    'too many pixels',
    image(dataUrl(sized(20_000, 20_000))),
    `${at}.image_url.url`,
    /at most 67108864 pixels.*20000 x 20000/,
  ],
  ['too oblong', image(dataUrl(sized(2000, 4))), `${at}.image_url.url`, /4 x 2000 pixels: expected sides/],
  [
    'a detail',
    { type: 'image_url', image_url: { url: dataUrl(file('wide.png')), detail: 'low' } },
    `${at}.image_url.detail`,
    /"auto"/,
  ],
  ['no address', { type: 'image_url', image_url: {} }, `${at}.image_url.url`, /data: address/],
  ['no image_url', { type: 'image_url' }, `${at}.image_url`, /data: address/],
  ['another part', { type: 'input_audio' }, `${at}.type`, /expected "text" or "image_url"/],
  ['no part', 5, at, /a part/],
  ['no text', { type: 'text' }, `${at}.text`, /a text/],
  [
    'an image token in words',
    text('see <|image_pad|>'),
    'messages',
    /has 1 tokens with id 60, .* has 0 images/,
  ],
];

test.each(REFUSED)('%s is refused: 400 with its field', async (_, part, param, message) => {
  const before = server.engine.requests.length;
  const { status, text: answer } = await post(server.url, chat, ask(text('see '), part));
  expect([status, JSON.parse(answer).error]).toEqual([
    400,
    expect.objectContaining({
      param,
      message: expect.stringMatching(message),
      type: 'invalid_request_error',
    }),
  ]);
  expect(server.engine.requests.length).toBe(before);
  // And in a stream, whose status would have been sent.
  expect((await post(server.url, chat, { ...ask(text('see '), part), stream: true })).status).toBe(400);
});

test('images of other messages, of too many parts, and where the model reads text', async () => {
  const refused = async (on: Served, messages: Json): Promise<unknown> => {
    const { status, text: answer } = await post(on.url, chat, { messages });
    const { param, message } = JSON.parse(answer).error;
    return [status, param, message];
  };
  expect(await refused(server, [{ role: 'system', content: [wide] }])).toEqual([
    400,
    'messages.0.content.0.type',
    expect.stringMatching(/messages of the user and of tools/),
  ]);
  const many = Array.from({ length: 257 }, () => image('data:image/png;base64,AAAA'));
  expect(await refused(server, [{ role: 'user', content: many }])).toEqual([
    400,
    'messages.0.content.256',
    expect.stringMatching(/at most 256 images/),
  ]);
  expect(await refused(textServer, [{ role: 'user', content: [text('see '), wide] }])).toEqual([
    400,
    'messages.0.content.1.type',
    expect.stringMatching(/reads text only/),
  ]);
  // The words take the place of the image that the template leaves out.
  const swapped = [
    { role: 'user', content: [wide] },
    { role: 'user', content: 'see <|image_pad|>' },
  ];
  expect(await refused(server, swapped)).toEqual([
    400,
    'messages',
    expect.stringMatching(/2 tokens .* 1 images/),
  ]);
});

test('what decodes to too much in all, or has no room as a prompt, is refused before it is decoded', async () => {
  // Whoever decoded any of them would find that they are none.
  const large = image(dataUrl(sized(8000, 8000)));
  const { status, text: answer } = await post(server.url, chat, ask(large, large, large, large, large));
  expect([status, JSON.parse(answer).error]).toEqual([
    400,
    expect.objectContaining({
      param: 'messages.0.content.4.image_url.url',
      message: expect.stringMatching(/at most 268435456 pixels in all, got 320000000/),
    }),
  ]);
  const small = image(dataUrl(sized(640, 640)));
  const full = await post(server.url, chat, ask(...Array.from({ length: 70 }, () => small)));
  expect([full.status, JSON.parse(full.text).error]).toEqual([
    400,
    expect.objectContaining({
      param: 'messages',
      code: 'context_length_exceeded',
      message: expect.stringMatching(/4096 tokens: the prompt has 4\d\d\d/),
    }),
  ]);
});

test('a large image holds up nobody else', async () => {
  const pixels = Buffer.alloc(5000 * 5000 * 3, 90);
  const png = await sharp(pixels, { raw: { height: 5000, width: 5000, channels: 3 } })
    .png({ compressionLevel: 1 })
    .toBuffer();
  const body = JSON.stringify(ask(image(dataUrl(png))));
  let longest = 0;
  let last = performance.now();
  const beat = setInterval(() => {
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
  }, 5);
  const started = performance.now();
  expect((await post(server.url, chat, body)).status).toBe(200);
  const took = performance.now() - started;
  clearInterval(beat);
  expect(longest).toBeLessThan(took / 4);
});

test('an image that a conversation sends again is not read again', async () => {
  const own = new ImageThreads(READING);
  const signal = AbortSignal.timeout(60_000);
  try {
    const base64 = (await blank(64)).toString('base64');
    const first = await own.read(await own.open(base64, signal), signal);
    expect(await own.read(await own.open(base64, signal), signal)).toBe(first);
    const other = (await blank(64, '#604020')).toString('base64');
    expect(await own.read(await own.open(other, signal), signal)).not.toEqual(first);
  } finally {
    await own.close();
  }
});

test('a client that leaves is read no images any more', async () => {
  const read = jest.spyOn(threads, 'read');
  const controller = new AbortController();
  const large = image(dataUrl(await blank(5000)));
  const asked = fetch(server.url + chat, {
    method: 'POST',
    body: JSON.stringify(ask(...Array.from({ length: 6 }, () => large))),
    signal: controller.signal,
  });
  while (read.mock.calls.length < 6) await new Promise((done) => setTimeout(done, 5));
  controller.abort();
  await expect(asked).rejects.toThrow(/abort/);
  const ended = await Promise.allSettled(read.mock.results.map(({ value }) => value as Promise<unknown>));
  read.mockRestore();
  // At most those that threads had begun.
  expect(ended.filter(({ status }) => status === 'fulfilled').length).toBeLessThanOrEqual(3);
});

const blank = (side: number, background = '#204060'): Promise<Buffer> =>
  sharp({ create: { width: side, height: side, channels: 3, background } })
    .png({ compressionLevel: 1 })
    .toBuffer();
