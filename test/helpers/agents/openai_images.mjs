// An agent with the package openai whose task has images: it asks twice, each time with all of them.

import { text } from 'node:stream/consumers';
import OpenAI from 'openai';

const { prompt, images } = JSON.parse(await text(process.stdin));
const client = new OpenAI();
let next = 0;
const messages = prompt.map(({ role, content }) => ({
  role,
  content: content.map((part) =>
    part.type === 'image' ? { type: 'image_url', image_url: { url: images[next++] } } : part,
  ),
}));
for (const more of ['and', null]) {
  const { choices } = await client.chat.completions.create({ model: 'any', messages, max_tokens: 6 });
  messages.push(choices[0].message);
  if (more !== null) messages.push({ role: 'user', content: more });
}
console.log(JSON.stringify({ reward: 1 }));
