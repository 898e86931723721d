// node bench/data.mjs [--rows N] [--groups N]: time and memory until the first batch of a large parquet file. See docs/data.md.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { writeByteTokenizer } from './byte_tokenizer.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const WORK = join(resolve(HERE, '..'), '.troupe', 'bench');
const BATCH = 1024;
const options = {
  rows: { type: 'string', default: '100000' },
  groups: { type: 'string', default: '1' },
  measure: { type: 'string' },
  filter: { type: 'boolean', default: false },
};

const WORDS =
  'the quick brown fox jumps over a lazy dog while seven apples cost three dollars each and she sold clips to her friends in April';

/** verl's columns for GSM8K-like problems, about 900 bytes a row, nested as pyarrow writes them. */
async function writeData(file, rows, groups) {
  const { parquetWriteBuffer } = await import('hyparquet-writer');
  const words = WORDS.split(' ');
  let state = 1;
  const random = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
  const text = (n) => Array.from({ length: n }, () => words[Math.floor(random() * words.length)]).join(' ');
  const string = (name) => ({
    name,
    type: 'BYTE_ARRAY',
    converted_type: 'UTF8',
    repetition_type: 'OPTIONAL',
  });
  const group = (name, children) => ({ name, num_children: children, repetition_type: 'OPTIONAL' });
  const questions = Array.from({ length: rows }, (_, i) => `${i} ${text(60)}`);
  const buffer = parquetWriteBuffer({
    schema: [
      { name: 'root', num_children: 5 },
      string('data_source'),
      { ...group('prompt', 1), converted_type: 'LIST' },
      { name: 'list', num_children: 1, repetition_type: 'REPEATED' },
      group('element', 2),
      string('content'),
      string('role'),
      string('ability'),
      group('reward_model', 2),
      string('ground_truth'),
      string('style'),
      group('extra_info', 4),
      { name: 'index', type: 'INT64', repetition_type: 'OPTIONAL' },
      string('split'),
      string('question'),
      string('answer'),
    ],
    columnData: [
      { name: 'data_source', data: questions.map(() => 'openai/gsm8k') },
      { name: 'prompt', data: questions.map((content) => [{ content, role: 'user' }]) },
      { name: 'ability', data: questions.map(() => 'math') },
      { name: 'reward_model', data: questions.map((_, i) => ({ ground_truth: String(i), style: 'rule' })) },
      {
        name: 'extra_info',
        data: questions.map((question, i) => ({
          index: BigInt(i),
          split: 'train',
          question,
          answer: text(50),
        })),
      },
    ],
    rowGroupSize: Math.ceil(rows / groups),
  });
  writeFileSync(file, Buffer.from(buffer));
}

/** In a process of its own: opens the file, reads the first shuffled batch and ten more. */
async function measure(file, filter) {
  const require = createRequire(import.meta.url);
  const { RlDataset } = require('../dist/data/rl_dataset.js');
  const { BatchLoader } = require('../dist/data/loader.js');
  const { Tokenizer } = require('../dist/data/tokenizer.js');
  const tokenizer = Tokenizer.load(join(WORK, 'tokenizer'));
  const peakMb = () => Math.round(process.resourceUsage().maxRSS / 1024);
  const before = Math.round(process.memoryUsage().rss / 2 ** 20);
  const start = performance.now();
  const seconds = () => Number(((performance.now() - start) / 1000).toFixed(3));
  const dataset = await RlDataset.open([file], tokenizer, {
    promptKey: 'prompt',
    dataSourceKey: 'data_source',
    maxPromptLength: 400,
    filterOverlongPrompts: filter,
    truncation: 'left',
    maxSamples: -1,
    shuffle: true,
    seed: 1,
  });
  const loader = new BatchLoader(dataset.length, (indices) => dataset.samples(indices), {
    batchSize: BATCH,
    shuffle: true,
    seed: 1,
  });
  const opened = seconds();
  await loader.next();
  const first = seconds();
  const firstPeak = peakMb();
  for (let i = 0; i < 10; i++) await loader.next();
  const later = (seconds() - first) / 10;
  console.log(
    JSON.stringify({ rows: dataset.length, opened, first, later, before, firstPeak, peak: peakMb() }),
  );
}

const { values } = parseArgs({ options });
if (values.measure) await measure(values.measure, values.filter);
else {
  mkdirSync(WORK, { recursive: true });
  writeByteTokenizer(join(WORK, 'tokenizer'));
  const file = join(WORK, `rows-${values.rows}-${values.groups}.parquet`);
  if (!existsSync(file)) await writeData(file, Number(values.rows), Number(values.groups));
  console.log(`node ${process.version}, ${cpus().length} x ${cpus()[0]?.model.trim()}`);
  for (const filter of [false, true]) {
    const args = [fileURLToPath(import.meta.url), '--measure', file, ...(filter ? ['--filter'] : [])];
    const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    if (status !== 0) throw new Error(stderr);
    const r = JSON.parse(stdout);
    console.log(
      `${r.rows} rows, ${values.groups} row groups${filter ? ', filter_overlong_prompts' : ''}: open ${r.opened} s, ` +
        `first batch of ${BATCH} after ${r.first} s, later ones ${r.later.toFixed(3)} s; ` +
        `peak RSS ${r.before} MB before, ${r.firstPeak} MB after the first, ${r.peak} MB in the end`,
    );
  }
}
