import type { ToolFamilyName } from '../../../ts/base/tool_formats';
import { conversationText, replyMessage } from '../../../ts/serve/call/conversation';
import { familyOf, toolFamily } from '../../../ts/serve/tools/families';
import { CallCollector } from '../../../ts/serve/tools/tool_parser';
import { chatTokenizer, TAG_TEMPLATES } from '../agent/chat_world';
import { OPENED, TOOLS, WRITE } from './tag_writing';

const LFM2 = `{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% if m.tool_calls %}<|tool_call_start|>[{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}{{ '' if loop.last else ', ' }}{% endfor %}){{ '' if loop.last else ', ' }}{% endfor %}]<|tool_call_end|>{% endif %}<|im_end|>
{% endfor %}`;

test('calls of LFM2 go back through the template as they were written', () => {
  const tokenizer = chatTokenizer(LFM2);
  const family = familyOf(tokenizer.toolTemplate);
  expect(family?.name).toBe('lfm2');
  const response = `<|tool_call_start|>[f(text="a \\"b\\"\\n", count=12, days=[1, null]), time()]<|tool_call_end|>`;
  const parser = toolFamily('lfm2').parser(TOOLS);
  const collector = new CallCollector();
  for (const { calls } of [parser.push(response), parser.end()]) collector.add(calls);
  const messages = [{ role: 'user', content: 'go' }, replyMessage({ text: 'Hm.', calls: collector.calls })];
  expect(conversationText(tokenizer, { messages, tools: TOOLS, variables: {}, opened: false })).toBe(
    `<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\nHm.${response}<|im_end|>\n`,
  );
});

test('the family is what the template writes between the tags', () => {
  const opened = '{% for m in messages %}<tool_call>';
  expect(familyOf(`${opened}\n<function={{ m.name }}>\n<parameter=`)?.name).toBe('qwen3_coder');
  expect(familyOf(`${opened}{{ m.name }}\n<arg_key>{{ k }}</arg_key>`)?.name).toBe('glm45');
  expect(familyOf(`${opened}[{{ m.name }}]`)?.name).toBe('hermes');
  for (const form of ['minimax_m2', 'seed_oss'] as const)
    expect(familyOf(`{% for m in messages %}${OPENED[form]}\n<function={{ m.name }}>`)?.name).toBe(form);
});

test.each<[ToolFamilyName, string, string]>([
  ['hermes', '<tool_call>', '{"x": '],
  ['llama3', '<|python_tag|>', '{"x": '],
  ['mistral', '[TOOL_CALLS]', '{"x": '],
  ['qwen3_coder', '<tool_call><function=', '{}'],
  ['glm45', '<tool_call><arg_key>', '{}'],
  ['minimax_m2', '<minimax:tool_call>', '{}'],
  ['kimi_k2', '<|tool_calls_section_begin|>', '{"x": '],
])(
  '%s: arguments of a call that was cut off are shown as they are, unless its templates need an object',
  (name, opened, shown) => {
    const tokenizer = chatTokenizer(`${opened}{{ messages[0].tool_calls[0].function.arguments }}`);
    expect(familyOf(tokenizer.toolTemplate)?.name).toBe(name);
    const calls = [{ id: 'a', name: 'f', arguments: '{"x": ' }];
    const messages = [replyMessage({ text: '', calls })];
    expect(conversationText(tokenizer, { messages, tools: TOOLS, variables: {}, opened: false })).toBe(
      opened + shown,
    );
  },
);

test.each(['qwen3_coder', 'glm45', 'minimax_m2'] as const)(
  '%s: calls go back through the template as they were written',
  (form) => {
    const tokenizer = chatTokenizer(TAG_TEMPLATES[form]);
    expect(familyOf(tokenizer.toolTemplate)?.name).toBe(form);
    const qwen = form === 'qwen3_coder';
    const response = WRITE[form]('f', [
      ['text', '\n  a < "b"\n'],
      ['count', '12'],
      ['share', '0.5'],
      ['sure', qwen ? 'True' : 'true'],
      ['where', '{"city": "K\u00f6ln", "at": [1, null]}'],
      ['days', '[]'],
      ['gone', qwen ? 'None' : 'null'],
      ['perhaps', ''],
    ]);
    const parser = toolFamily(form).parser(TOOLS);
    const collector = new CallCollector();
    for (const { calls } of [parser.push(response), parser.end()]) collector.add(calls);
    const messages = [{ role: 'user', content: 'go' }, replyMessage({ text: 'Hm.', calls: collector.calls })];
    const written = conversationText(tokenizer, { messages, tools: TOOLS, variables: {}, opened: false });
    expect(written).toBe(`<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\nHm.${response}<|im_end|>\n`);
  },
);

test('templates that add arguments to other texts get them as text', () => {
  const call = (args: string, end = " + '<｜tool▁call▁end｜>'"): string =>
    `{%- for m in messages %}{%- for tool in m['tool_calls'] or [] %}{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + ${args}${end} }}{%- endfor %}{%- endfor %}`;
  const calls = [{ id: 'a', name: 'f', arguments: '{"text":"a\\n\u00e4","days":[1,{"n":null}]}' }];
  const messages = [replyMessage({ text: '', calls })];
  const separately = " }}{{ '<｜tool▁call▁end｜>'";
  for (const written of [
    call("tool['function']['arguments']"),
    call("tool['function']['arguments']|tojson"),
    call('tool.function.arguments'),
    call('tool["function"]["arguments"]'),
    call("m['tool_calls'][0]['function']['arguments']"),
    call("tool['function']['arguments']", separately),
    call("tool['function']['arguments'] | tojson", separately),
  ]) {
    const tokenizer = chatTokenizer(written);
    expect(conversationText(tokenizer, { messages, tools: TOOLS, variables: {}, opened: false })).toBe(
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"text": "a\\n\u00e4", "days": [1, {"n": null}]}<｜tool▁call▁end｜>',
    );
  }
});
