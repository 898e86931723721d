// Calls that are not as their family writes them: what there is of them is told, and they hide none behind them.
import type { FunctionTool } from '../../../ts/serve/tools/families';
import { toolFamily } from '../../../ts/serve/tools/families';
import { CallCollector, type ParsedText } from '../../../ts/serve/tools/tool_parser';

type Family = Parameters<typeof toolFamily>[0];

const toolsOf = (names: readonly string[]): FunctionTool[] =>
  names.map((name) => ({ type: 'function', function: { name } }) as FunctionTool);

/** Read in pieces of this many characters. */
function read(family: Family, response: string, size: number, names: readonly string[] = []) {
  const parser = toolFamily(family).parser(toolsOf(names));
  const collector = new CallCollector();
  let text = '';
  const take = (parsed: ParsedText): void => {
    text += parsed.text;
    collector.add(parsed.calls);
  };
  for (let at = 0; at < response.length; at += size) take(parser.push(response.slice(at, at + size)));
  take(parser.end());
  return { text, calls: collector.calls };
}

const SIZES = [1, 2, 3, 7, 1000];

/** Text, and names and arguments of the calls, which do not depend on the pieces. */
function readEverywhere(family: Family, response: string) {
  const found = SIZES.map((size) => {
    const { text, calls } = read(family, response, size);
    return { text, calls: calls.map(({ name, arguments: source }) => [name, source]) };
  });
  for (const one of found) expect([response, one]).toEqual([response, found[0]]);
  return found[0];
}

describe('arguments that lack brackets', () => {
  test.each([
    ['{"a": {"b": 1}', '}'],
    ['{"a": [{"b": "; {"', ''],
    ['{"a": 1, "b"', ''],
    ['{"a": 1}', ''],
  ])('llama3: %s', (broken, end) => {
    const call = (name: string, source: string): string => `{"name": "${name}", "parameters": ${source}`;
    const calls = [
      ['f', broken + end],
      ['g', '{}'],
    ];
    for (const separator of ['; ', ';', '<|python_tag|>'])
      expect(readEverywhere('llama3', `${call('f', broken + end)}${separator}${call('g', '{}')}}`)).toEqual({
        text: '',
        calls,
      });
    // Behind the last one.
    expect(readEverywhere('llama3', call('f', broken))).toEqual({ text: '', calls: [['f', broken]] });
  });

  test.each([
    ['{"a": 1, ', ''],
    ['{"a": {"b": 2}, ', ''],
    ['{"a": 1}', ', '],
  ])('an object in the place of a key begins another call: %s', (broken, between) => {
    const list = `{"name": "f", "arguments": ${broken}${between}{"name": "g", "arguments": {"c": [{}, {}]}}`;
    const calls = [
      ['f', broken],
      ['g', '{"c": [{}, {}]}'],
    ];
    expect(readEverywhere('mistral', `[TOOL_CALLS] [${list}] so`)).toEqual({ text: ' so', calls });
    expect(readEverywhere('llama3', list.replaceAll('arguments', 'parameters'))).toEqual({ text: '', calls });
  });

  test.each(['{"a": {"b": 1}', '{"a": [1, "[TOOL_CALLS]"', '{"a": [[1], [', '{"a": ['])(
    'mistral: %s',
    (broken) => {
      expect(readEverywhere('mistral', `[TOOL_CALLS]f[ARGS]${broken}[TOOL_CALLS]g[ARGS]{}`)).toEqual({
        text: '',
        calls: [
          ['f', broken],
          ['g', '{}'],
        ],
      });
      expect(readEverywhere('mistral', `[TOOL_CALLS]f[ARGS]${broken}`)).toEqual({
        text: '',
        calls: [['f', broken]],
      });
    },
  );

  test('mistral: a list ends where it is closed', () => {
    for (const broken of ['{"a": 1', '{"a": 1}', '{"a": [1], "b": {'])
      expect(readEverywhere('mistral', `[TOOL_CALLS] [{"name": "f", "arguments": ${broken}] so`)).toEqual({
        text: ' so',
        calls: [['f', broken]],
      });
  });

  test('what belongs to a text or an array ends nothing', () => {
    const source = '{"a": "}; {[TOOL_CALLS]<", "b": [[], {"c": {}}, {}], "d": [true]}';
    for (const [family, response] of [
      ['llama3', `{"name": "f", "parameters": ${source}}`],
      ['mistral', `[TOOL_CALLS] [{"name": "f", "arguments": ${source}}]`],
      ['mistral', `[TOOL_CALLS]f[ARGS]${source}`],
    ] as const)
      expect(readEverywhere(family, response)).toEqual({ text: '', calls: [['f', source]] });
  });
});

describe('ids of Kimi K2', () => {
  const names = ['read_file', 'exec', 'exec5', 'f'];
  test.each<[string, string, string | null]>([
    ['functions.exec:12', 'exec', 'functions.exec:12'],
    ['other.exec:1', 'other.exec', 'other.exec:1'],
    // Without a number, of any tool.
    ['functions.exec', 'exec', null],
    ['functions.nothing', 'nothing', null],
    ['functions.exec:', 'exec', null],
    ['f', 'f', null],
    // As clients make them over, of the tools that there are.
    ['functions_read_file_3', 'read_file', 'functions.read_file:3'],
    ['functions.exec4', 'exec', 'functions.exec:4'],
    ['functionsexec4', 'exec', 'functions.exec:4'],
    ['functionsexec5', 'exec5', null],
    ['read_file_0', 'read_file', 'functions.read_file:0'],
  ])('%s is a call of %s', (written, name, id) => {
    for (const size of SIZES) {
      const response = `<|tool_calls_section_begin|><|tool_call_begin|>${written}<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>`;
      const { text, calls } = read('kimi_k2', `${response}<|tool_calls_section_end|>`, size, names);
      expect([text, calls.map((call) => [call.name, call.arguments])]).toEqual(['', [[name, '{"a": 1}']]]);
      if (id === null) expect(calls[0]?.id).toMatch(/^call_\w{24}$/);
      else expect(calls[0]?.id).toBe(id);
    }
  });

  test.each(['call_abc123', '3', 'functions', 'functions.', 'nothing_3'])(
    '%s says no tool: it is text',
    (written) => {
      const response = `<|tool_calls_section_begin|><|tool_call_begin|>${written}<|tool_call_argument_begin|>{}<|tool_call_end|>`;
      for (const size of SIZES)
        expect(read('kimi_k2', response, size, names)).toEqual({ text: response, calls: [] });
    },
  );
});
