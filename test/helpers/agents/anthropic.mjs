// An agent with @anthropic-ai/sdk.
import Anthropic from '@anthropic-ai/sdk';

const client = new Anthropic({ maxRetries: 0 });
const messages = JSON.parse(process.env.TROUPE_TASK).prompt;
const tools = [
  {
    name: 'add',
    description: 'Adds two numbers',
    input_schema: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } } },
  },
];
let reply;
for (;;) {
  const request = { model: 'claude-sonnet-4-5', max_tokens: 1024, messages, tools };
  reply =
    process.argv[2] === 'stream'
      ? await client.messages.stream(request).finalMessage()
      : await client.messages.create(request);
  messages.push({ role: 'assistant', content: reply.content });
  const uses = reply.content.filter(({ type }) => type === 'tool_use');
  if (uses.length === 0) break;
  messages.push({
    role: 'user',
    content: uses.map(({ id, input }) => ({
      type: 'tool_result',
      tool_use_id: id,
      content: String(input.a + input.b),
    })),
  });
}
console.log(reply.content.map(({ text = '' }) => text).join(''));
