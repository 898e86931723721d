// An agent with the AI SDK.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, TROUPE_TASK } = process.env;
const provider = createOpenAICompatible({ name: 'policy', baseURL, apiKey });
const options = {
  model: provider('policy'),
  messages: JSON.parse(TROUPE_TASK).prompt,
  tools: {
    add: tool({
      description: 'Adds two numbers',
      inputSchema: z.object({ a: z.number(), b: z.number() }),
      execute: async ({ a, b }) => String(a + b),
    }),
  },
  stopWhen: stepCountIs(5),
  maxRetries: 0,
};
console.log(
  process.argv[2] === 'stream' ? await streamText(options).text : (await generateText(options)).text,
);
