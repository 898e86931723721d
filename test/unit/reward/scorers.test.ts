import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { scoreGsm8k } from '../../../ts/reward/graders/gsm8k';
import { lastBoxedAnswer, normalizeMath, scoreMath } from '../../../ts/reward/graders/math';
import { normalizeFinalAnswer, scoreMathDapo } from '../../../ts/reward/graders/math_dapo';
import { conclusion, extractAnswer, sameText, ungrouped } from '../../../ts/reward/graders/prime_answer';
import {
  normalizeAnswer,
  scoreSearchR1,
  searchR1,
  searchR1Substring,
} from '../../../ts/reward/graders/search_r1';
import { rewardFunction } from '../../../ts/reward/reward';
import { sample } from './sample';

type Case = Record<string, unknown> & { s: string; gt: string };

const recorded = JSON.parse(
  readFileSync(join(__dirname, '../../fixtures/conformance/reward_head.json'), 'utf8'),
) as Record<'gsm8k' | 'math_reward' | 'math_dapo', Case[]> & {
  search_r1: (Record<string, unknown> & { s: string; gt: string[] })[];
  normalize_answer: { s: string; out: string }[];
  route: Record<string, unknown>;
};

describe('as verl recorded', () => {
  test.each(recorded.gsm8k)('gsm8k $s', (c) => {
    expect(scoreGsm8k(c.s, c.gt)).toBe(c['strict']);
    expect(scoreGsm8k(c.s, c.gt, { method: 'flexible' })).toBe(c['flexible']);
    expect(scoreGsm8k(c.s, c.gt, { formatScore: 0.1 })).toBe(c['fmt0.1']);
  });

  test.each(recorded.math_reward)('math $s', (c) => {
    expect(scoreMath(c.s, c.gt)).toBe(c['score']);
  });

  test.each(recorded.math_dapo)('math_dapo $s', (c) => {
    expect(scoreMathDapo(c.s, c.gt)).toEqual(c['loose']);
    expect(scoreMathDapo(c.s, c.gt, { strictBox: true })).toEqual(c['strict_box']);
  });

  test.each(recorded.search_r1)('search_r1 $s', (c) => {
    expect(scoreSearchR1(c.s, c.gt)).toBe(c['em']);
    expect(scoreSearchR1(c.s, c.gt, { formatScore: 0.1 })).toBe(c['em_fmt0.1']);
    expect(scoreSearchR1(c.s, c.gt, { match: 'substring' })).toBe(c['subem']);
  });

  test.each(recorded.normalize_answer)('normalize_answer $s', ({ s, out }) => {
    expect(normalizeAnswer(s)).toBe(out);
  });

  // One response that every rule can read, ground truth 1.
  const response = '#### 1 \\boxed{1} Answer: 1<answer>1</answer>';
  test.each(Object.entries(recorded.route))('route %s', (dataSource, expected) => {
    const groundTruth = dataSource.startsWith('searchR1') ? { target: ['1'] } : '1';
    const score = (): unknown => rewardFunction(dataSource)(sample(response, { dataSource, groundTruth }));
    if (typeof expected === 'object' && expected !== null && 'error' in expected)
      expect(score).toThrow(`no reward function is registered as '${dataSource}'`);
    else expect(score()).toEqual(expected);
  });
});

// Cases below follow from verl's rules read as Python.
describe('gsm8k', () => {
  test('counts code points, and has a score of its own', () => {
    expect(scoreGsm8k(`#### 5${'😀'.repeat(294)}`, '5')).toBe(1);
    expect(scoreGsm8k(`#### 5${'😀'.repeat(295)}`, '5')).toBe(0);
    expect(scoreGsm8k('#### 5', '5', { score: 2 })).toBe(2);
    expect(scoreGsm8k('#### 1,234,567', '1234567')).toBe(1);
  });
});

describe('math', () => {
  test.each([
    ['\\boxed{a}\\boxed{{b}c}', '{b}c'],
    ['\\boxed 3$ and \\boxed{4}', '3'],
    ['\\boxed{4} \\fbox{5}', '4'],
    ['\\boxed{4', null],
    ['\\boxed}{4}', null],
    ['\\boxed{1}\\boxed{2', null],
    ['\\boxed{}', ''],
    ['\\boxedx{1}', null],
  ])('reads %s', (text, answer) => {
    expect(lastBoxedAnswer(text)).toBe(answer);
  });

  test.each([
    ['\\tfrac34 \\text{ m}', '\\frac{3}{4}'],
    ['\\frac{1}2', '\\frac{1}2'],
    ['\\frac1{2}', '\\frac{1}{2}'],
    ['\\frac𝑎𝑏c', '\\frac{𝑎}{𝑏}c'],
    ['\\frac1', '\\frac1'],
    ['\\sqrt𝑥+\\sqrt{2}', '\\sqrt{𝑥}+\\sqrt{2}'],
    ['x_1=5', 'x_1=5'],
    ['𝑥𝑦=5', '5'],
    ['a=b=c', 'a=b=c'],
    ['-3/4', '\\frac{-3}{4}'],
    ['03/4', '03/4'],
    ['-0/4', '-0/4'],
    ['1/2/3', '1/2/3'],
    ['.5', '\\frac{1}{2}'],
    ['{.5}', '{0.5}'],
    ['a\\\\b\\!c', 'a\\bc'],
    ['30^{\\circ}', '30'],
    ['5\\%', '5'],
    ['5\\\\%', '5'],
    ['5\\\\\\%', '5'],
    ['5\\\\\\\\\\%', '5\\'],
  ])('normalises %s', (answer, normal) => {
    expect(normalizeMath(answer)).toBe(normal);
  });

  test('compares what it cannot read as it stands', () => {
    expect(scoreMath('\\boxed{\\sqrt}', '\\sqrt')).toBe(1);
    expect(scoreMath('\\boxed{\\sqrt }', '\\sqrt')).toBe(0);
    expect(scoreMath('\\boxed{5\\text{ a}\\text{ b}}', '5')).toBe(0);
    expect(scoreMath('\\boxed{\\frac}', '\\frac')).toBe(1);
  });
});

describe('math_dapo', () => {
  test.each([
    ['k = 1 = 2', '2'],
    ['an apple', 'apple'],
    ['a pan 5', 'p5'],
    ['$5.$ and $6$', '5'],
    ['\\text{x}\\textbf{y}\\overline{z}', 'xyz'],
    ['\\text{a\\text{b}c}', 'a\\text{bc}'],
    ['\\boxed{\\frac{1}{2}}', '\\frac{1}{2}'],
    ['\\sqrt2', '\\sqrt{2}'],
    ['12,345', '12345'],
    ['1,2x', '1,2x'],
    ['²,³', '²³'],
    ['½,1', '½,1'],
    ['(1,\\text{and}2)', '(1,2)'],
    ['5\\mbox{m}^2', '5'],
    ['30^{\\circ}', '30'],
    ['5km', '5'],
    ['5ft', '5ft'],
  ])('normalises %s', (answer, normal) => {
    expect(normalizeFinalAnswer(answer)).toBe(normal);
  });

  test.each([
    ['ANſWER:\u00a0\n\u20287', '7'],
    ['Answer:\u001c7', '7'],
    ['Answer:\ufeff7', '\ufeff7'],
    ['Answer: 1\rAnswer: 2', '1\rAnswer:2'],
    ['Answer:\n\n', '[INVALID]'],
    ['\\boxed{1} \\boxed{2', '[INVALID]'],
    ['Answer: 3 \\boxed{4}', '34'],
  ])('reads %j', (text, pred) => {
    expect(scoreMathDapo(text, '').pred).toBe(pred);
  });

  test.each([
    [`\\boxed{4}${' '.repeat(91)}`, '4'],
    [`\\boxed{4}${' '.repeat(92)}`, '[INVALID]'],
    [`\\boxed{4} \\boxed{ 5 }${'x'.repeat(80)}`, ' 5 '],
    ['Answer: [INVALID]\n\\boxed{a 4}', 'a 4'],
    ['\\boxed{}', ''],
    ['\\boxed{2\\text{ cm}}', '2\\text{ cm}'],
  ])('without an answer the box of the last 100 characters counts, as text: %j', (text, pred) => {
    expect(scoreMathDapo(text, pred)).toEqual({ score: 1, acc: true, pred });
  });

  test.each([
    ['1,000', '1000'],
    ['\\frac12', '\\frac{1}{2}'],
    [' 42 ', '42'],
    ['x=42', '42'],
    ['\\text{B}', 'B'],
    ['$42$', '42'],
  ])('a box with %j is not %j', (pred, truth) => {
    expect(scoreMathDapo(`\\boxed{${pred}}`, truth)).toEqual({ score: -1, acc: false, pred });
    expect(scoreMathDapo(`Answer: ${pred}`, truth).score).toBe(1);
  });

  test('strict: the box must lie within the last 100 code points, as text', () => {
    expect(scoreMathDapo(`\\boxed{4}${'😀'.repeat(91)}`, '4', { strictBox: true }).score).toBe(1);
    expect(scoreMathDapo(`\\boxed{4}${'😀'.repeat(92)}`, '4', { strictBox: true }).score).toBe(-1);
    expect(scoreMathDapo('\\boxed{ 4}', '4', { strictBox: true }).pred).toBe(' 4');
  });
});

describe('search_r1', () => {
  test.each([
    ['<answer>a<answer>b</answer></answer>', 'a<answer>b'],
    ['</answer><answer>b</answer>', 'b'],
  ])('pairs tags from the left in %s', (text, target) => {
    expect(scoreSearchR1(text, target)).toBe(1);
  });

  test.each([
    ['ΑΣ ΣΑ', 'ας σα'],
    ['a_the the_a x\u0301the', 'athe thea x\u0301'],
    ['\u00e9the athe', '\u00e9the athe'],
    ['\ufeffa\x1cb\x85c', '\ufeff b c'],
  ])('normalises %j as Python', (text, normal) => {
    expect(normalizeAnswer(text)).toBe(normal);
  });

  test('tags by number cost three quarters, of any score', () => {
    const many = '<answer>x</answer>'.repeat(11);
    expect(scoreSearchR1(many, 'x', { score: 2 })).toBe(0.5);
    expect(scoreSearchR1('<answer>x</answer>'.repeat(10), 'x')).toBe(1);
    expect(scoreSearchR1(`${'</answer>'.repeat(10)}<answer>x</answer>`, 'x')).toBe(0.25);
    expect(scoreSearchR1(many, 'y', { formatScore: 0.2 })).toBe(0.2);
  });

  test('reads targets as data has them', () => {
    const text = '<answer>the big x</answer>';
    for (const groundTruth of [{ target: ['y', 'Big X'] }, { target: 'big x' }, ['big x'], 'big x'])
      expect(searchR1(sample(text, { groundTruth }))).toBe(1);
    expect(searchR1(sample(text, { groundTruth: { target: ['x'] } }))).toBe(0);
    expect(searchR1Substring(sample(text, { groundTruth: { target: ['x'] } }))).toBe(1);
  });
});

test.each([
  ['so \\boxed{x} and \\fbox{ y }', 'x'],
  ['so \\fbox{ y }', 'y'],
  ['\\boxed{3}, but the answer is 4', '4'],
  ['\\boxed{42}. The answer is correct', '42'],
  ['\\boxed{}', '\\boxed{}'],
  ['\\boxed 9', '\\boxed 9'],
  ['The final answers are 1, 2', '1, 2'],
  ['42 is the answer', '42'],
  ['What is the answer? It is \\boxed{42}.', '42'],
  ['Answer: 3\nThe answer is: $x$\nbye', '$x$'],
  ['\\boxed{1', '\\boxed{1'],
  ['answer:\n', null],
  ['answer: .', null],
  ['So the answer is $42$.', '$42$'],
  ['The answers are: 1, 2 \nand the final answer is 3.5', '3.5'],
  ['the answer is 1. Answer: \n', null],
  ['Answer:\n\\begin{pmatrix}\n1 \\\\ 2\n\\end{pmatrix}\nbye', '\\begin{pmatrix}\n1 \\\\ 2\n\\end{pmatrix}'],
  ['Answer: \\begin{pmatrix} 1\nbye', '\\begin{pmatrix} 1'],
  ['an answer', 'an answer'],
  ['nothing', 'nothing'],
  [' ', null],
])('prime_math reads %j', (text, answer) => {
  expect(extractAnswer(text)).toBe(answer);
});

test.each([
  ['So the result is 42', '42'],
  ['We get\nx=42', '42'],
  ['Let n be 12', '12'],
  ['The total is\n12', '12'],
  ['42. Bye.', '42'],
  ['f(x)=x^2', 'x^2'],
  ['İİ IS 5', '5'],
  ['42', '42'],
])('prime_math concludes from %j', (answer, conclusion_) => {
  expect(conclusion(answer)).toBe(conclusion_);
});

test.each([
  ['yes', 'Yes', true],
  ['\\text{Monday}', 'monday', true],
  ['X+1', 'x+1', true],
  ['\\frac{R}{r}', '\\frac{r}{R}', false],
  ['\\triangle ABC', '\\triangle abc', false],
  ['5 cm', '5', true],
  ['12 cm^2', '12', true],
  ['5\\text{ cm}^2', '5', true],
  ['1,234\\ ', '1234', true],
  ['1,234\\\\', '1234', false],
  ['5\\text{ cm}^{2}', '25', false],
  ['90 degrees', '90\\degree', true],
  ['\\(12\\)', '12', true],
  ['$\\text{A}$', 'A', true],
  ['\\[\\text{A}\\]', 'A', true],
  ['5\\$', '5', true],
  ['\\boxed 9', '9', true],
  ['3 and 4', '3 , 4', true],
  ['10,\\!000', '10000', true],
  ['MONDAY', 'Monday', true],
  ['Sunday', 'Sun', false],
  ['RED AND BLUE', 'red and blue', true],
  ['\\mathbf{3}', '3', true],
  ['\\text{\\textbf{(C)}}', '(C)', true],
  ['\\text{A} or \\text{B}', 'A', false],
  ['$\\begin{pmatrix}1&-2\\\\3&4\\end{pmatrix}$', '\\begin{pmatrix} 1 & -2 \\\\ 3 & 4 \\end{pmatrix}', true],
  ['\\begin{pmatrix} 1 \\\\[2pt] 5 \\end{pmatrix}', '\\begin{pmatrix} 1 \\\\ 5 \\end{pmatrix}', true],
  ['\\begin{pmatrix} 1 2 \\end{pmatrix}', '\\begin{pmatrix} 12 \\end{pmatrix}', false],
  ['$\\sin x + 1$', '\\sin x+1', true],
  ['yes', 'no', false],
  ['', '', false],
  ['\\text{ cm}', '', false],
])('prime_math: %j has the text of %j: %s', (answer, truth, same) => {
  expect(sameText(answer, truth)).toBe(same);
});

test.each([
  ['{10,000}', '10,000'],
  ['{ {x=-3} }', '{x=-3}'],
  ['{{5}}', '5'],
  ['{1}{2}', '{1}{2}'],
  ['{1}+{2}', '{1}+{2}'],
  ['{{1}+{2}}', '{1}+{2}'],
  ['{1', '{1'],
  ['1}', '1}'],
  ['}{', '}{'],
  ['\\{1,2\\}', '\\{1,2\\}'],
  ['{}', ''],
])('prime_math: %j without braces around it is %j', (text, inner) => {
  expect(ungrouped(text)).toBe(inner);
});

test.each([
  ['\\boxed{{10,000,000}}', '10,000,000', 1],
  ['\\boxed{{x=-3}}', '-3', 1],
  ['\\boxed{x={2, 5}}', '2,5', 1],
  ['\\boxed{7}', '{7^\\circ}', 1],
  ['\\boxed{{}}', '', 0],
])('prime_math: %j is %j: %d', async (response, groundTruth, score) => {
  expect(await rewardFunction('prime_math')(sample(response, { groundTruth }))).toBe(score);
});
