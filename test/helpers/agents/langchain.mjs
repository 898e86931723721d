// An agent with @langchain/openai.
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI } from '@langchain/openai';
import { z } from 'zod';

const add = tool(async ({ a, b }) => String(a + b), {
  name: 'add',
  description: 'Adds two numbers',
  schema: z.object({ a: z.number(), b: z.number() }),
});
const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, TROUPE_TASK } = process.env;
const model = new ChatOpenAI({
  model: 'gpt-4o-mini',
  apiKey,
  configuration: { baseURL },
  maxRetries: 0,
}).bindTools([add]);
const messages = [new HumanMessage(JSON.parse(TROUPE_TASK).prompt[0].content)];
for (;;) {
  let reply;
  if (process.argv[2] === 'stream') {
    for await (const part of await model.stream(messages))
      reply = reply === undefined ? part : reply.concat(part);
  } else {
    reply = await model.invoke(messages);
  }
  messages.push(reply);
  if (!reply.tool_calls?.length) break;
  for (const call of reply.tool_calls) {
    messages.push(new ToolMessage({ tool_call_id: call.id, content: await add.invoke(call.args) }));
  }
}
console.log(messages.at(-1).content);
