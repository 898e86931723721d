/** Additions and subtractions of two-digit numbers, answered units digit first: 47+85= is 231 (132). */

export const DATA_SOURCE = 'arithmetic';
const [SMALLEST, LARGEST] = [10, 99];

/** @typedef {{ left: number, right: number, operator: '+' | '-' }} Problem */

/** @returns {Problem} with a result >= 0 */
export function randomProblem(random) {
  const a = random.integer(SMALLEST, LARGEST);
  const b = random.integer(SMALLEST, LARGEST);
  if (random.uniform() < 0.5) return { left: a, right: b, operator: '+' };
  return { left: Math.max(a, b), right: Math.min(a, b), operator: '-' };
}

/** The prompt, such as "47+85=". */
export function promptText({ left, right, operator }) {
  return `${left}${operator}${right}=`;
}

const unitsFirst = (value) => [...String(value)].reverse().join('');

/** The right answer, units digit first: carries then flow in reading order. */
export function answerText({ left, right, operator }) {
  return unitsFirst(operator === '+' ? left + right : left - right);
}

/** The answer of someone who forgets to carry and to borrow: 47+85 gives 22, 42-17 gives 35. */
export function sloppyAnswerText({ left, right, operator }) {
  let result = 0;
  for (let place = 1; place <= Math.max(left, right); place *= 10) {
    const [a, b] = [Math.floor(left / place) % 10, Math.floor(right / place) % 10];
    result += place * ((operator === '+' ? a + b : a - b + 10) % 10);
  }
  return unitsFirst(result);
}

/**
 * `count` problems that are not in `excluded`.
 * @param {import('./random.mjs').Random} random
 * @param {{ distinct?: boolean, excluded?: ReadonlySet<string> }} options `excluded`: prompt texts
 * @returns {Problem[]}
 */
export function drawProblems(random, count, { distinct = false, excluded = new Set() } = {}) {
  const seen = new Set();
  const problems = [];
  while (problems.length < count) {
    const problem = randomProblem(random);
    const text = promptText(problem);
    if (excluded.has(text) || (distinct && seen.has(text))) continue;
    seen.add(text);
    problems.push(problem);
  }
  return problems;
}
