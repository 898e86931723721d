// Writes the data sets and the untrained model of the example: node examples/arithmetic/prepare.mjs DIRECTORY [--seed N]
import { mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { writeInitialModel } from './initial_model.mjs';
import { answerText, DATA_SOURCE, drawProblems, promptText, sloppyAnswerText } from './problems.mjs';
import { Random } from './random.mjs';

/** Of the demonstrations that supervised fine-tuning learns from, the share that forgets to carry and to borrow. */
const SLOPPY_SHARE = 0.7;

export const SIZES = { sft: 20480, train: 16384, val: 500 };

const user = (problem) => ({ role: 'user', content: promptText(problem) });

/** One prompt in verl's schema. */
function promptRow(problem, split, index) {
  return {
    data_source: DATA_SOURCE,
    prompt: [user(problem)],
    ability: 'math',
    reward_model: { style: 'rule', ground_truth: answerText(problem) },
    extra_info: { split, index },
  };
}

/** One demonstration: a conversation whose last message is learnt. */
function demonstrationRow(problem, random) {
  const answer = random.uniform() < SLOPPY_SHARE ? sloppyAnswerText(problem) : answerText(problem);
  return { messages: [user(problem), { role: 'assistant', content: answer }] };
}

/**
 * Writes data/{sft,train,val}.jsonl and initial_model/. The held-out problems of val.jsonl are all different and appear in no other file.
 * @param {string} directory
 * @param {{ seed?: number, sizes?: typeof SIZES }} options
 * @returns {{ parameters: number, sizes: typeof SIZES }}
 */
export function prepare(directory, { seed = 1, sizes = SIZES } = {}) {
  const data = join(directory, 'data');
  mkdirSync(data, { recursive: true });
  const random = new Random(seed);
  const write = (name, rows) => {
    writeFileSync(join(data, `${name}.jsonl`), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  };
  const held = drawProblems(random, sizes.val, { distinct: true });
  const excluded = new Set(held.map(promptText));
  write(
    'val',
    held.map((problem, i) => promptRow(problem, 'val', i)),
  );
  write(
    'train',
    drawProblems(random, sizes.train, { excluded }).map((problem, i) => promptRow(problem, 'train', i)),
  );
  write(
    'sft',
    drawProblems(random, sizes.sft, { excluded }).map((problem) => demonstrationRow(problem, random)),
  );
  return { parameters: writeInitialModel(join(directory, 'initial_model'), random), sizes };
}

function readArguments() {
  try {
    const options = { seed: { type: 'string', default: '1' } };
    const { values, positionals } = parseArgs({ options, allowPositionals: true });
    const [to, ...others] = positionals;
    if (to === undefined || others.length > 0)
      throw new Error(`expected one directory, got ${positionals.length}`);
    if (!/^-?\d{1,15}$/.test(values.seed))
      throw new Error(`--seed: expected an integer but got '${values.seed}'`);
    return { to, seed: Number(values.seed) };
  } catch (error) {
    console.error(
      `prepare: ${error.message}\nusage: node examples/arithmetic/prepare.mjs DIRECTORY [--seed N]`,
    );
    return process.exit(2);
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { to, seed } = readArguments();
  const directory = resolve(to);
  const { parameters, sizes } = prepare(directory, { seed });
  console.log(`${directory}: ${parameters} parameters, ${sizes.sft} demonstrations, ${sizes.train} prompts`);
}
