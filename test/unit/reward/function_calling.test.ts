import { scoreFunctionCalling } from '../../../ts/reward/graders/function_calling';

const call = (text: string): string => `<tool_call>\n${text}\n</tool_call>`;
const paris = { name: 'weather', arguments: { city: 'Paris', days: [1, 2], unit: { scale: 'C' } } };
const shuffled =
  '{"arguments": {"unit": {"scale": "C"}, "days": [1, 2], "city": "Paris"}, "name": "weather"}';
const now = { name: 'now', arguments: {} };

test.each<[string, string, unknown]>([
  ['order of keys', call(shuffled), [paris]],
  ['text before', `<think>hm</think> ${call(shuffled)}\n`, [paris]],
  ['two in order', call(shuffled) + call(JSON.stringify(now)), [paris, now]],
  ['truth as JSON', call(shuffled), JSON.stringify([paris])],
  ['truth is one call', call(shuffled), paris],
  ['arguments as JSON', call(shuffled), [{ name: 'weather', arguments: JSON.stringify(paris.arguments) }]],
  ['BigInt of a data file', call('{"name":"f","arguments":{"n":3}}'), [{ name: 'f', arguments: { n: 3n } }]],
  ['no call', 'It is sunny.', []],
])('right: %s', (_, response, truth) => {
  expect(scoreFunctionCalling(response, truth)).toBe(1);
});

test.each<[string, string]>([
  ['no call', 'It is sunny.'],
  ['other argument', call(shuffled.replace('Paris', 'Rome'))],
  ['other type', call(shuffled.replace('[1, 2]', '["1", 2]'))],
  ['order of a list', call(shuffled.replace('[1, 2]', '[2, 1]'))],
  ['argument too many', call(shuffled.replace('"city"', '"x": 1, "city"'))],
  ['key too many', call(shuffled.replace('"name"', '"id": 1, "name"'))],
  ['key missing', call('{"name": "weather"}')],
  ['inherited key', call(shuffled.replace('"city": "Paris"', '"__proto__": {"city": "Paris"}'))],
  ['other name', call(shuffled.replace('weather', 'Weather'))],
  ['called twice', call(shuffled).repeat(2)],
  ['not JSON', call(shuffled.slice(1))],
  ['no object', call(`[${shuffled}]`)],
  ['never closed', `<tool_call>${shuffled}`],
  ['closed only', `${shuffled}</tool_call>`],
  ['closed before', `</tool_call>${call(shuffled)}`],
  ['text after', `${call(shuffled)} done`],
  ['nested', call(`<tool_call>${shuffled}`)],
])('wrong: %s', (_, response) => {
  expect(scoreFunctionCalling(response, [paris])).toBe(0);
});

test('order of calls counts', () => {
  expect(scoreFunctionCalling(call(JSON.stringify(now)) + call(shuffled), [paris, now])).toBe(0);
});

test('a ground truth that is no call is an error', () => {
  expect(() => scoreFunctionCalling('', 'weather')).toThrow(
    /expected a ground truth of tool calls .* got "weather"/,
  );
});
