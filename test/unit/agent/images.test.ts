import { rmSync } from 'node:fs';
import { AgentChat } from '../../../ts/agent/conversation/chat';
import { ConversationIds } from '../../../ts/agent/conversation/conversation_ids';
import { AgentModel } from '../../../ts/agent/model/agent_model';
import type { PromptImage } from '../../../ts/batch/prompt_image';
import type { ChatMessage } from '../../../ts/data/chat_template';
import { dataAddress } from '../../../ts/data/images/data_address';
import { ImageThreads } from '../../../ts/data/images/image_threads';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { answerMessages } from '../../../ts/serve/anthropic/messages';
import type { Dialect } from '../../../ts/serve/call/answer';
import { readImageOf } from '../../../ts/serve/call/conversation_images';
import { answerResponses } from '../../../ts/serve/openai/responses';
import { writeVisionTokenizer } from '../../helpers/vision_directory';
import { IMAGE_TOKEN, READING, readFixtures } from '../../helpers/vision_model';
import { temporaryDirectory } from '../data/fake_tokenizer';
import { type Served, served } from '../serve/served';

// Conversations with images as agents have them.

const directory = temporaryDirectory();
writeVisionTokenizer(directory);
const tokenizer = Tokenizer.load(directory);
const threads = new ImageThreads(READING);
let server: Served;
let wide: PromptImage;
/** Of the size of `wide`. */
let other: PromptImage;
let tall: PromptImage;
beforeAll(async () => {
  server = await served(() => Int32Array.of(5, 6, 256), { images: threads });
  Object.assign(server.model, { tokenizer });
  [wide, tall] = (await readFixtures(['wide.png', 'tall.jpg'])) as [PromptImage, PromptImage];
  other = { ...wide, pixels: wide.pixels.map((byte) => 255 - byte) };
});
afterAll(async () => {
  await server.close();
  await threads.close();
  rmSync(directory, { recursive: true });
});

const see = (...words: string[]): ChatMessage => ({
  role: 'user',
  content: [{ type: 'image' }, ...words.map((text) => ({ type: 'text', text }))],
});
const tokensOf = (image: PromptImage): number => (image.height * image.width) / 64;
const imageTokens = (ids: ArrayLike<number>): number =>
  Array.from(ids).filter((id) => id === IMAGE_TOKEN).length;

test('what was sampled after an image is found again after the same image alone', () => {
  const ids = new ConversationIds(tokenizer, [2], 'append', READING);
  const conversation = (messages: ChatMessage[], ...images: PromptImage[]) => ({
    messages,
    tools: null,
    variables: {},
    opened: true,
    images: images.map(readImageOf),
  });
  const first = conversation([see('a')], wide);
  const prompt = ids.ids(first);
  expect(imageTokens(prompt)).toBe(tokensOf(wide));
  // No tokens that the tokenizer would write for it.
  const made = [50, 51, 2];
  ids.record(first, prompt, made, { content: 'bc', calls: [], reasoning: '' });
  const more: ChatMessage[] = [see('a'), { role: 'assistant', content: 'bc' }, see('d')];
  const second = ids.ids(conversation(more, wide, tall));
  expect([...second.subarray(0, prompt.length + 3)]).toEqual([...prompt, ...made]);
  expect(imageTokens(second)).toBe(tokensOf(wide) + tokensOf(tall));
  const swapped = ids.ids(conversation(more, other, tall));
  // Written anew, without the opening of the turn, which this template leaves out of earlier ones.
  expect([...swapped.subarray(0, prompt.length - 1)]).toEqual([...prompt.subarray(0, -1)]);
  expect([...swapped]).not.toContain(50);
  expect(() => ids.ids(conversation(more, wide))).toThrow(/2 tokens .* 1 images|1 tokens .* 0 images/);
});

test('the images of the task go with what has places for them, unless others are given', async () => {
  const model = new AgentModel({
    engine: server.engine,
    tokenizer,
    sampling: { maxNewTokens: 2 },
    seed: 1,
    images: { token: IMAGE_TOKEN, ofTask: [wide] },
  });
  const chat = new AgentChat(server.model, model, new AbortController().signal, 'append', {}, [wide]);
  const sent = (): unknown => server.engine.requests.at(-1)?.images ?? [];
  const places = new Array(tokensOf(wide)).fill(IMAGE_TOKEN);
  await model.generate([5, ...places, 6]);
  expect(sent()).toEqual([wide]);
  await model.generate([5, 6]);
  expect(sent()).toEqual([]);
  await model.generate([5, ...places, 6], { images: [other] });
  expect(sent()).toEqual([other]);
  await chat.complete([see('a')]);
  expect(sent()).toEqual([wide]);
  await chat.complete([{ role: 'user', content: 'a' }]);
  expect(sent()).toEqual([]);
  await chat.complete([see('a'), see('b')], { images: [tall, other] });
  expect(sent()).toEqual([tall, other]);
  expect(model.calls.map(({ images }) => images.length)).toEqual([1, 0, 1, 1, 0, 2]);
  // In the next turn the token would stand for an image.
  for (const { sampling } of server.engine.requests) expect(sampling.badWords).toEqual([[IMAGE_TOKEN]]);
});

test('a response with images that is gone on from by its id', async () => {
  const keptResponses = new Map();
  const ask = async (body: object): Promise<string> => {
    const { signal } = new AbortController();
    const answer = await answerResponses(server.model, body, signal, { keptResponses });
    return ((answer as { body: { id: string } }).body as { id: string }).id;
  };
  const image = { type: 'input_image', image_url: await dataAddress(wide) };
  const id = await ask({ input: [{ role: 'user', content: [image, { type: 'input_text', text: 'a' }] }] });
  const told = {
    type: 'function_call_output',
    call_id: 'c',
    output: [{ ...image, image_url: await dataAddress(tall) }],
  };
  await ask({ previous_response_id: id, input: [told] });
  const { images, promptIds } = server.engine.requests.at(-1) ?? {};
  expect(images).toEqual([wide, tall]);
  expect(imageTokens(promptIds ?? [])).toBe(tokensOf(wide) + tokensOf(tall));
});

test('results of tools come before what is said beside them, with their images', async () => {
  const block = async (image: PromptImage) => ({
    type: 'image',
    source: { type: 'base64', media_type: 'image/png', data: (await dataAddress(image)).split(',')[1] },
  });
  const content = [
    await block(wide),
    { type: 'text', text: 'a' },
    { type: 'tool_result', tool_use_id: 'x', content: [await block(tall)] },
  ];
  const body = { max_tokens: 2, messages: [{ role: 'user', content }] };
  await answerMessages(server.model, body, new AbortController().signal);
  expect(server.engine.requests.at(-1)?.images).toEqual([tall, wide]);
});

const url = 'https://example.com/a.png';
test.each<[string, Dialect, object, string, RegExp]>([
  [
    'an address to fetch in responses',
    answerResponses,
    { input: [{ role: 'user', content: [{ type: 'input_image', image_url: url }] }] },
    'input.0.content.0.image_url',
    /fetches no images/,
  ],
  [
    'a detail in responses',
    answerResponses,
    { input: [{ role: 'user', content: [{ type: 'input_image', image_url: url, detail: 'high' }] }] },
    'input.0.content.0.detail',
    /"auto"/,
  ],
  [
    'a file in responses',
    answerResponses,
    { input: [{ role: 'user', content: [{ type: 'input_image', file_id: 'f' }] }] },
    'input.0.content.0.image_url',
    /data: address/,
  ],
  [
    'an image of the assistant',
    answerResponses,
    { input: [{ role: 'assistant', content: [{ type: 'input_image', image_url: url }] }] },
    'input.0.content.0.type',
    /messages of the user and of tools/,
  ],
  [
    'an address to fetch in messages',
    answerMessages,
    {
      max_tokens: 1,
      messages: [{ role: 'user', content: [{ type: 'image', source: { type: 'url', url } }] }],
    },
    'messages.0.content.0.source.url',
    /fetches no images/,
  ],
  [
    'a source of no kind in messages',
    answerMessages,
    { max_tokens: 1, messages: [{ role: 'user', content: [{ type: 'image' }] }] },
    'messages.0.content.0.source',
    /"base64"/,
  ],
  [
    'no image in messages',
    answerMessages,
    {
      max_tokens: 1,
      messages: [
        {
          role: 'user',
          content: [
            {
              type: 'tool_result',
              tool_use_id: 'x',
              content: [{ type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } }],
            },
          ],
        },
      ],
    },
    'messages.0.content.0.content.0.source.data',
    /bytes of a PNG/,
  ],
])('%s is refused', async (_, dialect, body, param, message) => {
  const refused = dialect(server.model, body, new AbortController().signal);
  await expect(refused).rejects.toMatchObject({
    status: 400,
    param,
    message: expect.stringMatching(message),
  });
  const text = dialect({ ...server.model, images: null }, body, new AbortController().signal);
  await expect(text).rejects.toMatchObject({
    status: 400,
    message: expect.stringMatching(/reads text only/),
  });
});
