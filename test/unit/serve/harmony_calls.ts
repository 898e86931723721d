// Tools that gpt-oss may call, and what is read in its responses.
import { toolFamily } from '../../../ts/serve/tools/families';
import { CallCollector, type ToolParser } from '../../../ts/serve/tools/tool_parser';

export const TOOLS = ['get_weather', 'time'].map((name) => ({
  type: 'function' as const,
  function: {
    name,
    parameters: { type: 'object', properties: { x: { type: 'integer' } }, required: ['x'] },
  },
}));
export const family = toolFamily('gpt-oss');

/** Before an answer. */
export const FINAL = '<|channel|>final<|message|>';

/** What a parser makes of a response that comes in pieces of so many characters. */
export function read(parser: ToolParser, response: string, size: number, cut = false) {
  const collector = new CallCollector();
  const all = { text: '', reasoning: '' };
  const take = ({ text, reasoning = '', calls }: ReturnType<ToolParser['push']>): void => {
    all.text += text;
    all.reasoning += reasoning;
    collector.add(calls);
  };
  for (let at = 0; at < response.length; at += size) take(parser.push(response.slice(at, at + size)));
  take(parser.end(cut));
  return { ...all, calls: collector.calls.map(({ name, arguments: source }) => [name, source]) };
}
