/** Products of two-digit numbers, which nobody of this size works out in their head: the agent has a calculator. */
import { Random } from '../arithmetic/random.mjs';

export const DATA_SOURCE = 'calculator';
const [SMALLEST, LARGEST] = [10, 99];

/** What a call of the tool looks like around its expression; one token each. */
export const CALL = {
  open: '<tool_call>{"name": "calculator", "arguments": {"expression": "',
  close: '"}}</tool_call>',
};

export const TOKENIZER = {
  characters: '0123456789*=[]',
  words: [CALL.open, CALL.close],
  // A question, calls, what the tool told in brackets, an answer: the turns of the model end with <eos>.
  template:
    "{% for message in messages %}{% if message['role'] == 'tool' %}[{{ message['content'] }}]{% else %}{{ message['content'] }}" +
    `{% for call in message['tool_calls'] or [] %}${CALL.open.replace('{"name"', '{{ \'{\' }}"name"').replace('{"expression"', '{{ \'{\' }}"expression"')}` +
    `{{ call['function']['arguments']['expression'] }}"{{ '}}' }}</tool_call>{% endfor %}` +
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endif %}{% endfor %}",
};

/** The share of demonstrations that estimate instead of asking the calculator: 47*83 is about 40*80. */
const ESTIMATING = 0.75;
const tens = (number) => number - (number % 10);

const question = ({ left, right }) => `${left}*${right}=`;

function draw(random) {
  return { left: random.integer(SMALLEST, LARGEST), right: random.integer(SMALLEST, LARGEST) };
}

function row(problem, split, index) {
  return {
    data_source: DATA_SOURCE,
    prompt: [{ role: 'user', content: question(problem) }],
    reward_model: { style: 'rule', ground_truth: String(problem.left * problem.right) },
    extra_info: { split, index },
  };
}

function demonstration({ left, right }, random) {
  const user = { role: 'user', content: question({ left, right }) };
  if (random.uniform() < ESTIMATING)
    return { messages: [user, { role: 'assistant', content: String(tens(left) * tens(right)) }] };
  const call = `${CALL.open}${left}*${right}${CALL.close}`;
  const answer = String(left * right);
  return {
    messages: [
      user,
      { role: 'assistant', content: call },
      { role: 'tool', content: answer },
      { role: 'assistant', content: answer },
    ],
  };
}

/** Rows of all data sets; the held-out problems are in no other. */
export function rowsOf(seed, sizes) {
  const random = new Random(seed);
  const held = new Map();
  while (held.size < sizes.val) {
    const problem = draw(random);
    held.set(question(problem), problem);
  }
  const others = (count) =>
    Array.from({ length: count }, () => {
      for (;;) {
        const problem = draw(random);
        if (!held.has(question(problem))) return problem;
      }
    });
  return {
    val: [...held.values()].map((problem, i) => row(problem, 'val', i)),
    train: others(sizes.train).map((problem, i) => row(problem, 'train', i)),
    sft: others(sizes.sft).map((problem) => demonstration(problem, random)),
    random,
  };
}
