// The agent of this example with the AI SDK: rollout.agent.command: [node, examples/agent/ai_sdk.mjs]
import { readFileSync } from 'node:fs';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, stepCountIs, tool } from 'ai';
import { z } from 'zod';
import { calculator } from './calculator.mjs';

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
if (!baseURL || !apiKey) {
  console.error(
    'ai_sdk.mjs: expected OPENAI_BASE_URL and OPENAI_API_KEY in the environment, as a run gives them to the command in ' +
      'rollout.agent.command: try it with `troupe agent try`, or set both to a server of your own',
  );
  process.exit(1);
}
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
