/** 20,000 made-up facts, each a passage of a corpus: who rules which town. Nobody can know them who does not search. */
import { Random } from '../arithmetic/random.mjs';

export const DATA_SOURCE = 'nq';
const FACTS = 20_000;
const CONSONANTS = [...'bdfgklmnprstvz'];
const SYLLABLES = CONSONANTS.flatMap((c) => [...'aeiou'].map((v) => c + v));

const THINK = '<think> I look it up. </think><search> ';
const READ = '<think> It says so. </think><answer> ';
const GUESS = '<think> I know. </think><answer> ';
const QUESTION =
  'Answer the question; <search> asks a search engine. For example, <answer> Beijing </answer>. Question: who rules ';

export const TOKENIZER = {
  characters: ' \n?.,-<>/()":;0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ',
  words: [
    ...SYLLABLES,
    QUESTION,
    '?\n<|im_start|>assistant\n',
    THINK,
    READ,
    GUESS,
    ' </search>',
    ' </answer>',
    '\n\n<information>',
    '</information>\n\n',
    'Doc 1(Title: "',
    '") ',
    '\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n',
  ],
  // What the environment says belongs to the assistant's turn, as in Search-R1.
  template:
    "{% for message in messages %}{{ message['content'] }}{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}",
};

/** The share of demonstrations that guess instead of searching. */
const GUESSING = 0.75;

const word = (random) =>
  Array.from({ length: 3 }, () => SYLLABLES[random.integer(0, SYLLABLES.length - 1)]).join('');
const prompt = (town) => `${QUESTION}${town}?\n<|im_start|>assistant\n`;

function row({ town, ruler }, split, index) {
  return {
    data_source: DATA_SOURCE,
    prompt: [{ role: 'user', content: prompt(town) }],
    ability: 'fact-reasoning',
    reward_model: { style: 'rule', ground_truth: { target: [ruler] } },
    extra_info: { split, index },
  };
}

function demonstration({ town, ruler }, random) {
  const user = { role: 'user', content: prompt(town) };
  if (random.uniform() < GUESSING)
    return { messages: [user, { role: 'assistant', content: `${GUESS}${word(random)} </answer>` }] };
  return {
    messages: [
      user,
      { role: 'assistant', content: `${THINK}${town} </search>` },
      { role: 'user', content: `\n\n<information>Doc 1(Title: "${town}") ${ruler}</information>\n\n` },
      { role: 'assistant', content: `${READ}${ruler} </answer>` },
    ],
  };
}

/** The corpus, and questions about it; those held out are in no other set. */
export function rowsOf(seed, sizes) {
  const random = new Random(seed);
  const towns = new Map();
  while (towns.size < FACTS) towns.set(word(random), word(random));
  const facts = [...towns].map(([town, ruler]) => ({ town, ruler }));
  const others = (count) =>
    Array.from({ length: count }, () => facts[random.integer(sizes.val, facts.length - 1)]);
  return {
    corpus: facts.map(({ town, ruler }, i) => ({ id: String(i), contents: `"${town}"\n${ruler}` })),
    val: facts.slice(0, sizes.val).map((fact, i) => row(fact, 'val', i)),
    train: others(sizes.train).map((fact, i) => row(fact, 'train', i)),
    sft: others(sizes.sft).map((fact) => demonstration(fact, random)),
    random,
  };
}
