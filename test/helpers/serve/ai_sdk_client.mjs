// node ai_sdk_client.mjs URL: what the Vercel AI SDK makes of a server's answers, as JSON. Its packages are ES modules only.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, streamText } from 'ai';

const provider = createOpenAICompatible({
  name: 'troupe',
  baseURL: `${process.argv[2]}/v1`,
  apiKey: 'secret',
  includeUsage: true,
});
const model = provider('tiny');
const options = { model, prompt: 'hello', maxOutputTokens: 24, temperature: 0, seed: 1, maxRetries: 0 };

const whole = await generateText(options);
const stream = streamText(options);
let streamed = '';
for await (const part of stream.textStream) streamed += part;

console.log(
  JSON.stringify({
    whole: whole.text,
    streamed,
    finish: whole.finishReason,
    usage: [whole.usage.inputTokens, whole.usage.outputTokens],
    streamedUsage: [(await stream.usage).inputTokens, (await stream.usage).outputTokens],
  }),
);
