// Calls whose arguments are tags around plain text: how four families write them, and what is read of a response.
import { type FunctionTool, toolFamily } from '../../../ts/serve/tools/families';
import { CallCollector, type ToolCallDelta } from '../../../ts/serve/tools/tool_parser';

export type Form = 'qwen3_coder' | 'glm45' | 'minimax_m2' | 'seed_oss';
export const FORMS: Form[] = ['qwen3_coder', 'glm45', 'minimax_m2', 'seed_oss'];
/** What opens a call, or a section of them. */
export const OPENED: Record<Form, string> = {
  qwen3_coder: '<tool_call>',
  glm45: '<tool_call>',
  minimax_m2: '<minimax:tool_call>',
  seed_oss: '<seed:tool_call>',
};

const PROPERTIES = {
  text: { type: 'string' },
  count: { type: 'integer' },
  share: { type: 'number' },
  sure: { type: 'boolean' },
  where: { type: 'object', properties: { city: { type: 'string' } } },
  days: { type: 'array', items: { type: 'integer' } },
  gone: { type: 'null' },
  perhaps: { type: ['string', 'null'] },
  size: { anyOf: [{ type: 'integer' }, { type: 'string' }] },
  unit: { enum: ['C', 'F'] },
  level: { enum: [1, 2] },
  place: { $ref: '#/$defs/place' },
};
export const TOOLS: FunctionTool[] = [
  {
    type: 'function',
    function: {
      name: 'f',
      parameters: {
        type: 'object',
        properties: PROPERTIES,
        $defs: { place: { type: 'array', items: { type: 'number' } } },
      },
    },
  },
  { type: 'function', function: { name: 'time' } },
];

/** As the chat templates write it; values are plain text. */
export const WRITE: Record<Form, (name: string, args: [key: string, value: string][]) => string> = {
  qwen3_coder: (name, args) =>
    `<tool_call>\n<function=${name}>\n${args.map(([key, value]) => `<parameter=${key}>\n${value}\n</parameter>\n`).join('')}</function>\n</tool_call>`,
  glm45: (name, args) =>
    `<tool_call>${name}\n${args.map(([key, value]) => `<arg_key>${key}</arg_key>\n<arg_value>${value}</arg_value>\n`).join('')}</tool_call>`,
  minimax_m2: (name, args) =>
    `<minimax:tool_call>\n<invoke name="${name}">\n${args.map(([key, value]) => `<parameter name="${key}">${value}</parameter>\n`).join('')}</invoke>\n</minimax:tool_call>`,
  seed_oss: (name, args) =>
    `<seed:tool_call>\n<function=${name}>\n${args.map(([key, value]) => `<parameter=${key}>\n${value}\n</parameter>\n`).join('')}</function>\n</seed:tool_call>`,
};

/** Read in pieces of this many characters. */
export function read(form: Form, response: string, size: number, cut = false) {
  const parser = toolFamily(form).parser(TOOLS);
  const collector = new CallCollector();
  let text = '';
  const take = (parsed: { text: string; calls: ToolCallDelta[] }): void => {
    text += parsed.text;
    collector.add(parsed.calls);
  };
  for (let at = 0; at < response.length; at += size) take(parser.push(response.slice(at, at + size)));
  take(parser.end(cut));
  return { text, calls: collector.calls.map(({ name, arguments: source }) => [name, source]) };
}

export function expectRead(form: Form, response: string, text: string, calls: [string, unknown][]): void {
  for (const size of [1, 2, 3, 7, response.length]) {
    const parsed = read(form, response, size);
    const values = parsed.calls.map(([name, source]) => [name, JSON.parse(source as string)]);
    expect([size, parsed.text, values]).toEqual([size, text, calls]);
  }
}
