// GSM8K (openai/gsm8k) into the schema that `troupe train` and `troupe sft` read:
//   node examples/gsm8k/prepare.mjs --train FILE --test FILE [--out data/gsm8k]
// Files are the parquet files of the data set, or JSONL with the same two columns, `question` and `answer`. Written are train.jsonl,
// test.jsonl (prompts with the number to be found) and sft.jsonl (the training problems with their solutions).
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet';
import { compressors } from 'hyparquet-compressors';

const INSTRUCTION = 'Think step by step, and end with "#### " and the number that answers the question.';

/** What stands behind the last "#### " of a solution, without thousands commas: what the gsm8k reward compares with. */
function groundTruth(answer, where) {
  const mark = answer.lastIndexOf('#### ');
  const number = answer
    .slice(mark + 5)
    .replaceAll(',', '')
    .trim();
  if (mark < 0 || !/^-?\d+(\.\d+)?$/.test(number)) {
    throw new Error(
      `${where}: expected an answer that ends with "#### " and a number, got "${answer.slice(-40)}"`,
    );
  }
  return number;
}

const user = (question) => ({ role: 'user', content: `${question} ${INSTRUCTION}` });

/** One prompt in verl's schema. `data_source` chooses the reward. */
function promptRow({ question, answer }, split, index) {
  return {
    data_source: 'openai/gsm8k',
    prompt: [user(question)],
    ability: 'math',
    reward_model: { style: 'rule', ground_truth: groundTruth(answer, `${split} row ${index}`) },
    extra_info: { split, index, question, answer },
  };
}

/** One demonstration. */
const demonstrationRow = ({ question, answer }) => ({
  messages: [user(question), { role: 'assistant', content: answer }],
});

function readLine(line, where) {
  try {
    return JSON.parse(line);
  } catch (error) {
    throw new Error(`${where}: expected a row of JSON: ${error.message}`);
  }
}

async function readRows(file) {
  const rows = file.endsWith('.parquet')
    ? await parquetReadObjects({ file: await asyncBufferFromFile(file), compressors })
    : readFileSync(file, 'utf8')
        .split('\n')
        .map((line, i) => (line.trim() === '' ? null : readLine(line, `${file} line ${i + 1}`)))
        .filter((row) => row !== null);
  for (const [i, row] of rows.entries()) {
    if (typeof row.question !== 'string' || typeof row.answer !== 'string')
      throw new Error(
        `${file} row ${i}: expected the texts "question" and "answer", got ${Object.keys(row).join(', ')}`,
      );
  }
  return rows;
}

/** Whole files only: a reader never sees half of one. */
function writeRows(file, rows) {
  writeFileSync(`${file}.part`, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  renameSync(`${file}.part`, file);
  console.log(`${file}: ${rows.length} rows`);
}

async function prepare({ train, test, out }) {
  const [training, held] = [await readRows(train), await readRows(test)];
  const files = {
    'train.jsonl': training.map((row, i) => promptRow(row, 'train', i)),
    'test.jsonl': held.map((row, i) => promptRow(row, 'test', i)),
    'sft.jsonl': training.map(demonstrationRow),
  };
  mkdirSync(out, { recursive: true });
  for (const [name, rows] of Object.entries(files)) writeRows(path.join(out, name), rows);
}

/** Of the command line. */
function wrong(message) {
  console.error(
    `prepare: ${message}\nusage: node examples/gsm8k/prepare.mjs --train FILE --test FILE [--out data/gsm8k]`,
  );
  process.exit(2);
}

function readArguments() {
  const options = {
    train: { type: 'string' },
    test: { type: 'string' },
    out: { type: 'string', default: 'data/gsm8k' },
  };
  try {
    return parseArgs({ options }).values;
  } catch (error) {
    return wrong(error.message);
  }
}

const values = readArguments();
if (!values.train || !values.test) wrong('expected --train and --test');
try {
  await prepare(values);
} catch (error) {
  console.error(`prepare: ${error.message}`);
  process.exit(1);
}
