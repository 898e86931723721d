// An agent with @openai/agents, over the responses API, or over chat completions.
import { Agent, run, setOpenAIAPI, setTracingDisabled, tool } from '@openai/agents';
import { z } from 'zod';

setTracingDisabled(true);
setOpenAIAPI(process.argv[3] ?? 'responses');
const agent = new Agent({
  name: 'adder',
  instructions: 'Add.',
  model: 'gpt-4o-mini',
  tools: [
    tool({
      name: 'add',
      description: 'Adds two numbers',
      parameters: z.object({ a: z.number(), b: z.number() }),
      execute: async ({ a, b }) => String(a + b),
    }),
  ],
});
const [{ content }] = JSON.parse(process.env.TROUPE_TASK).prompt;
if (process.argv[2] === 'stream') {
  const result = await run(agent, content, { stream: true });
  for await (const _ of result) {
    // It runs as it is read.
  }
  await result.completed;
  console.log(result.finalOutput);
} else {
  console.log((await run(agent, content)).finalOutput);
}
