import { scoreFunctionCalling } from '../../../ts/reward/graders/function_calling';
import { scoreGsm8k } from '../../../ts/reward/graders/gsm8k';
import { scoreMath } from '../../../ts/reward/graders/math';
import { scoreMathDapo } from '../../../ts/reward/graders/math_dapo';
import { conclusion, extractAnswer } from '../../../ts/reward/graders/prime_answer';
import { scoreRlla } from '../../../ts/reward/graders/rlla';
import { scoreSearchR1 } from '../../../ts/reward/graders/search_r1';

// Quadratic time on any of these would take hours: the time-out of the test is what bounds it.
const MANY = 400_000;
const texts: [string, string][] = [
  ['nested braces', '\\boxed{'.repeat(MANY) + '}'.repeat(MANY - 1)],
  ['open boxes', '\\boxed{{'.repeat(MANY)],
  ['spaced boxes', '\\boxed '.repeat(MANY)],
  ['a box of roots', `\\boxed{${'\\sqrt2'.repeat(MANY)}}`],
  ['a box of fractions', `\\boxed{${'\\frac12'.repeat(MANY)}}`],
  ['a box of digits', `\\boxed{${'9'.repeat(MANY)}/${'9'.repeat(MANY)}}`],
  ['a box of texts', `\\boxed{${'\\text{'.repeat(MANY)}}`],
  ['answer tags', '<answer>'.repeat(MANY)],
  ['answers', '<answer>x</answer>'.repeat(MANY)],
  ['long answer', `<answer>${'a the an. '.repeat(MANY)}</answer>`],
  ['answer markers', 'Answer: '.repeat(MANY)],
  ['marker and spaces', `Answer${' '.repeat(MANY)}Answer:${'\n'.repeat(MANY)}`],
  ['hashes', '#### '.repeat(MANY)],
  ['digits', '1,'.repeat(MANY)],
  ['tool calls', '<tool_call>'.repeat(MANY)],
  [
    'deep JSON',
    `<tool_call>{"name":"f","arguments":${'{"a":'.repeat(MANY)}1${'}'.repeat(MANY)}}</tool_call>`,
  ],
  ['deep lists', `<tool_call>${'['.repeat(MANY)}`],
  ['control characters', '\0\x07\x1b[2J\x85\u2028'.repeat(MANY)],
  ['lone surrogates', '\ud800'.repeat(MANY) + '\udc00'.repeat(3)],
];

test.each(texts)('%s: linear time and no points', (_, text) => {
  expect(scoreGsm8k(text, '42')).toBe(0);
  expect(scoreGsm8k(text, '42', { method: 'flexible' })).toBe(0);
  expect(scoreMath(text, '42')).toBe(0);
  expect(scoreMathDapo(text, '42').score).toBe(-1);
  expect(scoreMathDapo(text, '42', { strictBox: true }).score).toBe(-1);
  expect(scoreSearchR1(text, '42')).toBe(0);
  expect(scoreSearchR1(text, '42', { match: 'substring' })).toBe(0);
  expect(scoreFunctionCalling(text, [{ name: 'f', arguments: {} }])).toBe(0);
  for (const truth of ['<think>', '<response>', '<tool_call>{"name":"f","parameters":{}}</tool_call>'])
    expect(scoreRlla(`<think>${text}`, truth).score).toBeLessThanOrEqual(0);
  expect(extractAnswer(text)).not.toBe('42');
  expect(conclusion(text)).not.toBe('42');
});

test('a ground truth may be long, too', () => {
  for (const text of ['\\text{', '\\boxed{', '$', 'frac', 'Answer:']) {
    expect(scoreMathDapo('Answer: 1', text.repeat(MANY)).score).toBe(-1);
    expect(scoreMath('\\boxed{1}', text.repeat(MANY))).toBe(0);
  }
});

test('the right answer behind megabytes still counts', () => {
  const noise = '\\boxed{<answer>'.repeat(MANY);
  expect(scoreGsm8k(`${noise} #### 5`, '5')).toBe(1);
  expect(scoreMath(`${noise} \\boxed{5}`, '5')).toBe(1);
  expect(scoreMathDapo(`${noise} Answer: 5`, '5').score).toBe(1);
});
