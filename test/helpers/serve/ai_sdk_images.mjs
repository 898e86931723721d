// node ai_sdk_images.mjs URL FILE: what the Vercel AI SDK makes of answers to a question with an image, as JSON. Its packages are ES modules only.
import { readFileSync } from 'node:fs';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, streamText } from 'ai';

const [, , url, file] = process.argv;
const provider = createOpenAICompatible({
  name: 'troupe',
  baseURL: `${url}/v1`,
  apiKey: 'secret',
  includeUsage: true,
});
const content = [
  { type: 'text', text: 'see ' },
  { type: 'image', image: readFileSync(file) },
  { type: 'text', text: '?' },
];
const model = provider('tiny');
const options = {
  model,
  messages: [{ role: 'user', content }],
  maxOutputTokens: 12,
  temperature: 0,
  maxRetries: 0,
};

const whole = await generateText(options);
const stream = streamText(options);
let streamed = '';
for await (const part of stream.textStream) streamed += part;

console.log(JSON.stringify({ whole: whole.text, streamed, tokens: whole.usage.inputTokens }));
