// The agent of this example with the AI SDK: rollout.agent.command: [node, examples/agent/ai_sdk.mjs]
import { readFileSync } from 'node:fs';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, stepCountIs, tool } from 'ai';
import { z } from 'zod';
import { calculator } from './calculator.mjs';

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
const { text } = await generateText({
  model: createOpenAICompatible({ name: 'policy', baseURL, apiKey })('policy'),
  messages: JSON.parse(readFileSync(0, 'utf8')).prompt,
  tools: {
    calculator: tool({
      description: 'Multiplies two numbers, as in 12*34.',
      inputSchema: z.object({ expression: z.string() }),
      execute: ({ expression }) => calculator(expression),
    }),
  },
  stopWhen: stepCountIs(3),
  maxRetries: 0,
});
console.log(JSON.stringify({ answer: text }));
