import { rlla, scoreRlla } from '../../../ts/reward/graders/rlla';
import { rewardFunction } from '../../../ts/reward/reward';
import { sample } from './sample';

const THOUGHT = '<think>t</think>';
const add = (a: unknown, b: unknown) => ({ name: 'add', parameters: { a, b } });
const days = (from: number, to: number, step: number): object => ({
  name: 'days',
  parameters: { from, to, step },
});
const id = (digits: string): string => `{"name": "get", "parameters": {"id": ${digits}}}`;
const get = { name: 'get', parameters: {} };
const other = { name: 'add', parameters: { a: 1, c: 2 } };
const calls = (...lines: unknown[]): string =>
  `${THOUGHT}\n<tool_call>\n${lines.map((line) => (typeof line === 'string' ? line : JSON.stringify(line))).join('\n')}\n</tool_call>`;
const TWO = calls(add(1, 2), add(3, 2));
const THREE = calls(add(1, 2), get, add(3, 2));
const BOTH = `${calls(add(1, 2))}\n<response>z</response>`;
const SAID = `${THOUGHT}\n<response>x</response>`;

// What verl's reward_score/rlla.py gives.
test.each<[string, string, number, number]>([
  [TWO, TWO, 1, 3],
  [TWO, SAID, 0, -3],
  [TWO, calls(add(1, 2)), 1, 0],
  [TWO, calls(add(3, 2), add(1, 2)), 1, 3],
  [TWO, BOTH, 0, 0],
  [TWO, THREE, 1, 2.7142857142857144],
  [TWO, calls(get), 1, -3],
  [TWO, calls(add(1, [1, { x: 2 }])), 1, -0.8571428571428572],
  [TWO, calls(add(1, 2), add(1, 2)), 1, 2.1428571428571432],
  [TWO, calls(other), 1, -1.4285714285714286],
  [THREE, calls(get, add(1, 2)), 1, 0.49999999999999956],
  [THREE, calls(get, get), 1, -2.0625],
  [THREE, calls({ name: 'add' }), 1, -3],
  [THREE, calls('{bad'), 1, -3],
  [THREE, calls('null'), 1, -3],
  [calls(get), calls({ name: 'get', parameters: [1] }), 1, -3],
  // As Python compares: true is 1, integers are exact, and there may be no name.
  [calls(add(1, 2)), calls(add(true, 2)), 1, 3],
  [calls(add(1, [0, { x: true }])), calls(add(1, [false, { x: 1 }])), 1, 3],
  [calls(add(1, true), add(3, 2)), calls(add(1, 1), add(0, 2)), 1, 2.1428571428571432],
  [calls(add(1, 2)), calls(add('1', 2)), 1, 1.5],
  [calls(add(0, 2)), calls(add(null, 2)), 1, 1.5],
  [calls(id('12345678901234567890')), calls(id('12345678901234567891')), 1, 1],
  [calls(days(1, 2, 3)), calls(days(1, 2, 4)), 1, 1.7999999999999998],
  [calls(id('12345678901234567890')), calls(id('12345678901234567890')), 1, 3],
  [calls(add(1, 2)), calls({ name: null, parameters: {} }, add(1, 2)), 1, 2.25],
  [calls(add(1, 2)), calls({ name: ['add'], parameters: {} }, add(1, 2)), 1, -3],
  [BOTH, BOTH, 1, 3],
  [BOTH, calls(add(1, 2)), 0, 3],
  [BOTH, calls(other, add(3, 2)), 0, 0.75],
  [SAID, SAID, 1, 0],
  [SAID, `${THOUGHT}\n<response>a</response><response>b</response>`, 0, 0],
  [SAID, calls(add(1, 2)), 0, 0],
  [THOUGHT, ` ${THOUGHT} \n`, 1, 0],
  [THOUGHT, SAID, 0, 0],
])('%j: %j has the form %d and calls worth %d', (truth, response, format, accuracy) => {
  const score = scoreRlla(response, truth);
  expect(score.format_reward).toBe(format);
  expect(score.accuracy_reward).toBe(accuracy);
  expect(score.score).toBe(format + accuracy);
});

test('a ground truth whose calls cannot be read is an error', () => {
  for (const line of ['{bad', '{"name": "add"}', '5'])
    expect(() => scoreRlla(SAID, calls(line))).toThrow(
      /expected a ground truth whose <tool_call> has lines of/,
    );
});

test('rows of rlla are scored by it', () => {
  expect(rewardFunction('rlla')).toBe(rlla);
  expect(rlla(sample(SAID, { groundTruth: SAID }))).toMatchObject({ score: 1 });
});
