// An agent with the package openai: chat completions.
import OpenAI from 'openai';

const client = new OpenAI();
const stream = process.argv[2] === 'stream';
const tools = [
  {
    type: 'function',
    function: {
      name: 'add',
      description: 'Adds two numbers',
      parameters: {
        type: 'object',
        properties: { a: { type: 'number' }, b: { type: 'number' } },
        required: ['a', 'b'],
      },
    },
  },
];
const messages = JSON.parse(process.env.TROUPE_TASK).prompt;
for (;;) {
  const request = { model: 'gpt-4o-mini', messages, tools };
  const completion = stream
    ? await client.chat.completions.stream(request).finalChatCompletion()
    : await client.chat.completions.create(request);
  const { message } = completion.choices[0];
  messages.push(message);
  if (!message.tool_calls?.length) break;
  for (const call of message.tool_calls) {
    const { a, b } = JSON.parse(call.function.arguments);
    messages.push({ role: 'tool', tool_call_id: call.id, content: String(a + b) });
  }
}
console.log(messages.at(-1).content);
