import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import OpenAI from 'openai';
import { Actor } from '../../ts/actor/actor';
import type { PromptImage } from '../../ts/batch/prompt_image';
import { Tokenizer } from '../../ts/data/tokenizer';
import type { RolloutResult } from '../../ts/rollout/request';
import { Command, runCommand } from '../helpers/e2e_process';
import { visionRows, writeVisionModel } from '../helpers/vision_directory';
import { IMAGE_TOKEN, IMAGES, VISION_NAMES, type VisionName, visionModel } from '../helpers/vision_model';

// `troupe serve` with models that read images: what clients get is what the engine makes of a row of data with the same conversation.

const directory = mkdtempSync(join(tmpdir(), 'troupe-serve-images-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

interface Message {
  role: 'user' | 'assistant';
  /** Parts of the user: words, and names of files. */
  content: string | ({ text: string } | { file: string })[];
}
type Parts = Exclude<Message['content'], string>;

const dataUrl = (name: string): string =>
  `data:image/${name.endsWith('.jpg') ? 'jpeg' : 'png'};base64,${readFileSync(join(IMAGES, name), 'base64')}`;

/** As clients of the API write it. */
function sent(messages: readonly Message[]): OpenAI.ChatCompletionMessageParam[] {
  return messages.map((message) => {
    const { role, content } = message;
    if (role === 'assistant' || typeof content === 'string')
      return message as OpenAI.ChatCompletionMessageParam;
    const parts = content.map((part): OpenAI.ChatCompletionContentPart => {
      if ('text' in part) return { type: 'text', text: part.text };
      return { type: 'image_url', image_url: { url: dataUrl(part.file), detail: 'auto' } };
    });
    return { role, content: parts };
  });
}

/** As a data set has it, with the tokens and images that it gives. */
async function row(
  model: string,
  messages: readonly Message[],
): Promise<{ tokens: Int32Array; images: readonly PromptImage[] }> {
  const parts = messages.flatMap(({ content }): Parts => (typeof content === 'string' ? [] : content));
  const prompt = messages.map(({ role, content }) => ({
    role,
    content:
      typeof content === 'string'
        ? content
        : content.map((part) => ('text' in part ? part.text : '<image>')).join(''),
  }));
  const images = parts.flatMap((part) => ('file' in part ? [join(IMAGES, part.file)] : []));
  const file = join(directory, 'row.jsonl');
  writeFileSync(
    file,
    `${JSON.stringify({ data_source: 'x', prompt, images, reward_model: { ground_truth: '' } })}\n`,
  );
  const dataset = await visionRows(file, Tokenizer.load(model));
  const sample = await dataset.sample(0);
  return { tokens: sample?.tokens as Int32Array, images: sample?.images as readonly PromptImage[] };
}

const see = (...files: string[]): Message => ({
  role: 'user',
  content: [{ text: 'see ' }, ...files.map((file) => ({ file })), { text: '?' }],
});

interface Running {
  command: Command;
  url: string;
  client: OpenAI;
}

async function start(model: string, ...options: string[]): Promise<Running> {
  const args = ['serve', model, '--port', '0', '--served-model-name', 'tiny', '--api-key', 'secret'];
  const command = new Command([...args, ...options]);
  const found = (): RegExpExecArray | null => /serving tiny at (\S+)\/v1 \((.*)\)/.exec(command.stderr);
  await command.until('it was ready', () => found() !== null);
  const url = found()?.[1] as string;
  return { command, url, client: new OpenAI({ baseURL: `${url}/v1`, apiKey: 'secret', maxRetries: 0 }) };
}

async function stop({ command }: Running): Promise<void> {
  command.kill('SIGTERM');
  expect((await command.exited).code).toBe(0);
}

const STEPS = 12;
const ask = {
  model: 'tiny',
  max_tokens: STEPS,
  temperature: 0,
  logprobs: true,
  return_token_ids: true,
  ignore_eos: true,
};

interface WithIds {
  prompt_token_ids: number[];
  choices: { token_ids: number[]; logprobs: { content: { logprob: number }[] } }[];
  usage: OpenAI.CompletionUsage;
}

async function answered(client: OpenAI, messages: readonly Message[], more: object = {}): Promise<WithIds> {
  const answer = await client.chat.completions.create({ ...ask, messages: sent(messages), ...more });
  return answer as unknown as WithIds;
}

const logProbsOf = ({ logprobs }: WithIds['choices'][number]): number[] =>
  logprobs.content.map(({ logprob }) => logprob);

test.each(VISION_NAMES)('%s: the bits of a row of data in the engine', async (name: VisionName) => {
  const { options } = visionModel(name);
  const model = join(directory, name);
  writeVisionModel(options.model, model);
  const conversations: Message[][] = [
    [see('wide.png')],
    [see('tall.jpg', 'clear.png')],
    [see('wide.png'), { role: 'assistant', content: 'ab c' }, see('large.png', 'grey.png')],
    [{ role: 'user', content: 'no image' }],
  ];
  const actor = await Actor.create({ ...options, model, optim: null, maxTokensPerMicroBatch: 4096 });
  const expected: { tokens: Int32Array; result: RolloutResult }[] = [];
  try {
    for (const messages of conversations) {
      const { tokens, images } = await row(model, messages);
      const sampling = { maxNewTokens: STEPS, temperature: 0, stopTokenIds: [] };
      expected.push({
        tokens,
        result: await actor.rollout.submit({ promptIds: tokens, images, sampling }).result,
      });
    }
  } finally {
    await actor.close();
  }
  const server = await start(model);
  expect(server.command.stderr).toContain('reads images');
  for (const [i, messages] of conversations.entries()) {
    const { tokens, result } = expected[i] as (typeof expected)[number];
    const answer = await answered(server.client, messages);
    const choice = answer.choices[0] as WithIds['choices'][number];
    expect(answer.prompt_token_ids).toEqual(Array.from(tokens));
    expect(answer.usage.prompt_tokens).toBe(tokens.length);
    expect(choice.token_ids).toEqual(Array.from(result.tokens));
    expect(Float32Array.from(logProbsOf(choice))).toEqual(Float32Array.from(result.logProbs));
  }
  // Images are seen: the same tokens with another image are continued otherwise.
  const seen = expected.map(({ result }) => result.logProbs.join());
  expect(new Set(seen).size).toBe(conversations.length);
  await stop(server);
});

describe('a server', () => {
  let server: Running;
  let model: string;
  beforeAll(async () => {
    model = join(directory, 'served');
    writeVisionModel(visionModel('qwen3_vl').options.model, model);
  });
  beforeEach(async () => {
    server = await start(model);
  });
  afterEach(() => stop(server));

  test('streams and several choices, and what they cost', async () => {
    const messages = [see('wide.png')];
    const whole = await answered(server.client, messages);
    const stream = await server.client.chat.completions.create({
      ...ask,
      messages: sent(messages),
      stream: true,
      stream_options: { include_usage: true },
    });
    const tokens: number[] = [];
    const logProbs: number[] = [];
    let usage: OpenAI.CompletionUsage | null = null;
    for await (const chunk of stream) {
      const [choice] = chunk.choices as unknown as Partial<WithIds['choices'][number]>[];
      tokens.push(...(choice?.token_ids ?? []));
      logProbs.push(...(choice?.logprobs?.content.map(({ logprob }) => logprob) ?? []));
      usage = chunk.usage ?? usage;
    }
    const [first] = whole.choices;
    expect([tokens, logProbs]).toEqual([first?.token_ids, logProbsOf(first as WithIds['choices'][number])]);
    expect(usage?.prompt_tokens).toBe(whole.usage.prompt_tokens);
    const sampled = { temperature: 1, n: 4, seed: 7 };
    const [one, two] = [
      await answered(server.client, messages, sampled),
      await answered(server.client, messages, sampled),
    ];
    const drawn = one.choices.map(({ token_ids: ids }) => ids.join());
    expect(two.choices.map(({ token_ids: ids }) => ids.join())).toEqual(drawn);
    expect(new Set(drawn).size).toBe(4);
  });

  test('a second turn finds the first in the cache, and with another image of the same size what comes before it', async () => {
    const words = 'the words of the user '.repeat(4);
    const first: Message = {
      role: 'user',
      content: [{ text: words }, { file: 'large.png' }, { text: words }],
    };
    const one = await answered(server.client, [first]);
    const turns: Message[] = [first, { role: 'assistant', content: 'ab' }, { role: 'user', content: words }];
    const two = await answered(server.client, turns);
    const cached = (answer: WithIds): number => answer.usage.prompt_tokens_details?.cached_tokens ?? 0;
    expect(cached(one)).toBe(0);
    // Whole pages of it.
    expect(cached(two)).toBeGreaterThan(one.usage.prompt_tokens - 32);
    const sharp = (await import('sharp')).default;
    const other = await sharp(join(IMAGES, 'large.png')).negate().png().toBuffer();
    const message = sent([first])[0] as OpenAI.ChatCompletionUserMessageParam;
    const content = (message.content as OpenAI.ChatCompletionContentPart[]).map((part) =>
      part.type === 'image_url'
        ? { ...part, image_url: { url: `data:image/png;base64,${other.toString('base64')}` } }
        : part,
    );
    const swapped = (await server.client.chat.completions.create({
      ...ask,
      messages: [{ role: 'user', content }],
    })) as unknown as WithIds;
    expect(swapped.prompt_token_ids).toEqual(one.prompt_token_ids);
    // Whole pages of the words before it.
    const before = swapped.prompt_token_ids.indexOf(IMAGE_TOKEN);
    expect(cached(swapped)).toBe(before - (before % 32));
    expect(logProbsOf(swapped.choices[0] as WithIds['choices'][number])).not.toEqual(
      logProbsOf(one.choices[0] as WithIds['choices'][number]),
    );
  });

  test('the AI SDK', async () => {
    const helper = resolve(__dirname, '../helpers/serve/ai_sdk_images.mjs');
    const args = [helper, server.url, join(IMAGES, 'wide.png')];
    const { stdout } = await promisify(execFile)(process.execPath, args);
    const { choices, usage } = await server.client.chat.completions.create({
      ...ask,
      messages: sent([see('wide.png')]),
    });
    const text = choices[0]?.message.content;
    expect(JSON.parse(stdout)).toEqual({ whole: text, streamed: text, tokens: usage?.prompt_tokens });
  });

  test('refusals reach the client, and bodies have room for images', async () => {
    const refused = server.client.chat.completions.create({
      ...ask,
      messages: [
        { role: 'user', content: [{ type: 'image_url', image_url: { url: 'https://a.example/b.png' } }] },
      ],
    });
    await expect(refused).rejects.toMatchObject({ status: 400, param: 'messages.0.content.0.image_url.url' });
    const bare = server.client.completions.create({ model: 'tiny', prompt: [5, 60, 6], max_tokens: 2 });
    await expect(bare).rejects.toMatchObject({ status: 400 });
    // 12 MB of noise behind the end of the file, which decoders pass over.
    const file = Buffer.concat([readFileSync(join(IMAGES, 'tall.jpg')), Buffer.alloc(12_000_000, 0x5a)]);
    const url = `data:image/jpeg;base64,${file.toString('base64')}`;
    const answer = await server.client.chat.completions.create({
      ...ask,
      messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }],
    });
    expect(answer.choices).toHaveLength(1);
  });
});

test('without its tower a model reads text, and one without cannot be asked for it', async () => {
  const model = join(directory, 'text');
  writeVisionModel(visionModel('qwen3_5').options.model, model);
  const server = await start(model, '--no-read-images');
  expect(server.command.stderr).not.toContain('reads images');
  await expect(answered(server.client, [see('wide.png')])).rejects.toMatchObject({
    status: 400,
    param: 'messages.0.content.1.type',
    message: expect.stringContaining('reads text only'),
  });
  expect((await answered(server.client, [{ role: 'user', content: 'no image' }])).choices).toHaveLength(1);
  await stop(server);
  const config = JSON.parse(readFileSync(join(model, 'config.json'), 'utf8'));
  rmSync(join(model, 'preprocessor_config.json'));
  expect(config.model_type).toBe('qwen3_5');
  const unread = await start(model);
  expect(unread.command.stderr).not.toContain('reads images');
  await stop(unread);
  expect(await runCommand(['serve', model, '--port', '0', '--read-images'])).toMatchObject({
    stderr: expect.stringContaining('has no preprocessor_config.json'),
  });
});
