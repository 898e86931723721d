import { endTokenIds } from '../../../ts/data/end_tokens';
import { conversationText, replyMessage } from '../../../ts/serve/call/conversation';
import { callReading, familyOf, responseReading, toolFamily } from '../../../ts/serve/tools/families';
import { CallCollector, type ToolParser } from '../../../ts/serve/tools/tool_parser';
import { GEMMA4_TOKENS, gemma4Template } from '../../helpers/gemma4_template';
import { chatTokenizer } from '../agent/chat_world';
import { read } from './harmony_calls';
import { TOOLS } from './tag_writing';

const family = toolFamily('gemma4');
const OPEN = '<|channel>thought\n';
const CALL = '<|tool_call>call:time{}<tool_call|>';
const time: [string, string] = ['time', '{}'];

/** However it is cut. */
function expectRead(
  parser: () => ToolParser,
  response: string,
  expected: Partial<ReturnType<typeof read>>,
  cut = false,
): void {
  for (let size = 1; size <= response.length; size++)
    expect([size, read(parser(), response, size, cut)]).toEqual([
      size,
      { text: '', reasoning: '', calls: [], ...expected },
    ]);
}

describe('thoughts', () => {
  const reading = callReading(family, TOOLS);

  test.each<[string, string, Partial<ReturnType<typeof read>>]>([
    [
      'before an answer',
      `${OPEN}I think.\nSo.\n<channel|>Four.`,
      { reasoning: 'I think.\nSo.', text: 'Four.' },
    ],
    ['of nothing', `${OPEN}<channel|>Four.`, { text: 'Four.' }],
    ['of a label alone', '<|channel>thought<channel|>Four.', { text: 'Four.' }],
    ['without a label', '<|channel>thoughtful<channel|>Four.', { reasoning: 'thoughtful', text: 'Four.' }],
    ['without a line break before its end', `${OPEN}so<channel|>Four.`, { reasoning: 'so', text: 'Four.' }],
    ['with line breaks of its own', `${OPEN}\nso\n\n<channel|>Four.`, { reasoning: '\nso\n', text: 'Four.' }],
    ['before calls', `${OPEN}so\n<channel|>${CALL}${CALL}`, { reasoning: 'so', calls: [time, time] }],
    ['that a call ends', `${OPEN}so\n${CALL}well`, { reasoning: 'so', text: 'well', calls: [time] }],
    ['that what is no call ends', `${OPEN}so<|tool_call>time`, { reasoning: 'so', text: '<|tool_call>time' }],
    ['several', `${OPEN}one\n<channel|>a${OPEN}two<channel|>b`, { reasoning: 'one\ntwo', text: 'ab' }],
    ['behind a call', `${CALL}${OPEN}so<channel|>b`, { reasoning: 'so', text: 'b', calls: [time] }],
    ['an end without a beginning', 'a<channel|>b', { text: 'ab' }],
    [
      'none: part of a text in a call',
      '<|tool_call>call:f{a:<|"|><|channel>b<channel|><|"|>}<tool_call|>',
      {
        calls: [['f', '{"a": "<|channel>b<channel|>"}']],
      },
    ],
    [
      'none: part of what is no call',
      '<|tool_call>call:f{a:<|"|><|channel>b',
      {
        text: '<|tool_call>call:f{a:<|"|><|channel>b',
      },
    ],
    ['no tag', 'a <|channel|> <|chan', { text: 'a <|channel|> <|chan' }],
  ])('%s', (_, response, expected) => {
    expectRead(() => reading.parser(), response, expected);
  });

  test('that the prompt has opened', () => {
    const parser = () => reading.parser(true);
    expectRead(parser, 'so\n<channel|>Four.', { reasoning: 'so', text: 'Four.' });
    expectRead(parser, `thought\n${CALL}`, { reasoning: 'thought', calls: [time] });
    expectRead(parser, '<channel|>Four.', { text: 'Four.' });
  });

  test('one that is cut off is a thought; a call that is cut off is text, whatever of it there is', () => {
    expectRead(() => reading.parser(), `${OPEN}so\n<chan`, { reasoning: 'so\n<chan' }, true);
    expectRead(() => reading.parser(), '<|channel>thou', {}, true);
    const call = '<|tool_call>call:f{a:<|"|>x}<|"|>,b:[1,{c:true}]}<tool_call|>';
    for (let end = 1; end < call.indexOf('}<tool_call|>') + 1; end++) {
      const response = call.slice(0, end);
      expect(read(reading.parser(), response, 3, true)).toEqual({ text: response, reasoning: '', calls: [] });
    }
  });

  test('where no tool may be called, there are thoughts and text', () => {
    const plain = responseReading(family, null);
    expect(plain?.tags).toEqual(['<|channel>', '<channel|>']);
    expectRead(() => plain?.parser() as ToolParser, `${OPEN}so\n<channel|>a${CALL}`, {
      reasoning: 'so',
      text: `a${CALL}`,
    });
  });
});

describe.each([
  ['with a thought of nothing before answers', true],
  ['without', false],
])('the template, %s', (_, emptyThought) => {
  const tokenizer = chatTokenizer(gemma4Template(emptyThought), GEMMA4_TOKENS);
  const idOf = (token: string): number => 256 + GEMMA4_TOKENS.indexOf(token);
  const written = (messages: object[], variables = {}): string =>
    conversationText(tokenizer, {
      messages: messages as Parameters<typeof conversationText>[1]['messages'],
      tools: TOOLS,
      variables,
      opened: true,
    });
  const told = (id: string, content: string): object => ({ role: 'tool', tool_call_id: id, content });
  const asked = [{ role: 'user', content: 'go' }];

  test('says that it is this family, and what ends a response', () => {
    expect(familyOf(tokenizer.toolTemplate)?.name).toBe('gemma4');
    expect(endTokenIds([], tokenizer).sort()).toEqual([idOf('<|tool_response>'), idOf('<turn|>')]);
  });

  test('calls go back as they were written, with what tools told behind them', () => {
    const calls =
      '<|tool_call>call:f{count:12,days:[1,null],text:<|"|>a "b"\n, c}<|"|>,where:{city:<|"|><|"|>}}<tool_call|>' +
      '<|tool_call>call:time{}<tool_call|>';
    const collector = new CallCollector();
    const parser = callReading(family, TOOLS).parser();
    const response = `${OPEN}I ask.\n<channel|>${calls}`;
    const parts = [parser.push(response), parser.end()];
    for (const part of parts) collector.add(part.calls);
    const reasoning = parts.map((part) => part.reasoning ?? '').join('');
    const reply = replyMessage({ text: '', reasoning, calls: collector.calls });
    const [first, second] = collector.calls.map(({ id }) => id);
    const messages = [...asked, reply, told(first as string, 'one'), told(second as string, '{"n": 2}')];
    const opened = `<|turn>user\ngo<turn|>\n<|turn>model\n${response}`;
    const answers =
      '<|tool_response>response:f{value:<|"|>one<|"|>}<tool_response|>' +
      '<|tool_response>response:time{value:<|"|>{"n": 2}<|"|>}<tool_response|>';
    expect(written(messages).endsWith(opened + answers)).toBe(true);
    expect(written(messages, { enable_thinking: true }).endsWith(`${opened}${answers}${OPEN}`)).toBe(true);
    const after = [...messages, { role: 'assistant', content: 'Two.' }, { role: 'user', content: 'so' }];
    expect(written(after)).toContain(
      `<|turn>model\n${calls}${answers}Two.<turn|>\n<|turn>user\nso<turn|>\n<|turn>model\n${emptyThought ? `${OPEN}<channel|>` : ''}`,
    );
  });

  test('whatever arguments there are: what the template writes of them is read as they were', () => {
    let seed = 11;
    const draw = (count: number): number => {
      seed = (seed * 48271) % 2147483647;
      return seed % count;
    };
    const words = [
      'a',
      '{',
      '}',
      '[',
      ']',
      ',',
      ':',
      '"',
      '\\',
      '\n',
      ' ',
      '<|',
      '|>',
      '<',
      'call:',
      '\u{1f44d}',
      '1',
    ];
    const plain = [true, false, null, 0, -1, 12.5, 1e-7, 1e21, 123456789012];
    const text = (): string => Array.from({ length: draw(6) }, () => words[draw(words.length)]).join('');
    const key = (): string => ['a', 'Key', 'a b', '\u00e4', 'x_1', 'a.b', 'a-b', '2'][draw(8)] as string;
    const value = (level: number): unknown => {
      const kind = draw(level > 2 ? 2 : 4);
      if (kind === 0) return text();
      if (kind === 1) return plain[draw(plain.length)];
      const items = Array.from({ length: draw(4) }, () => value(level + 1));
      return kind === 2 ? items : Object.fromEntries(items.map((item) => [key(), item]));
    };
    for (let round = 0; round < 300; round++) {
      const args = Object.fromEntries(Array.from({ length: draw(5) }, () => [key(), value(0)]));
      const calls = [{ id: 'c', name: 'f', arguments: JSON.stringify(args) }];
      const whole = written([...asked, replyMessage({ text: '', calls })]);
      const response = whole.slice(whole.indexOf('<|tool_call>'), whole.lastIndexOf('<|tool_response>'));
      const made = read(callReading(family, TOOLS).parser(), response, 1 + draw(9));
      expect([response, made.text, ...made.calls.map(([, source]) => JSON.parse(source as string))]).toEqual([
        response,
        '',
        args,
      ]);
    }
  });

  test('words beside a call are left out, which would end the turn behind what tools told', () => {
    const call = { id: 'c', name: 'time', arguments: '{}' };
    const reply = replyMessage({ text: 'Let me see.', calls: [call] });
    const text = written([...asked, reply, told('c', 'noon')]);
    expect(text.endsWith(`${CALL}<|tool_response>response:time{value:<|"|>noon<|"|>}<tool_response|>`)).toBe(
      true,
    );
    expect(text).not.toContain('Let me see.');
  });

  test('arguments that were cut off are left out', () => {
    const reply = replyMessage({ text: '', calls: [{ id: 'c', name: 'time', arguments: '{"x": ' }] });
    expect(written([...asked, reply])).toContain(`${CALL}<|tool_response>`);
  });
});
