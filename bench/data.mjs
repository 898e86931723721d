// node bench/data.mjs [--rows N] [--groups N] [--filter] [--all] [--batches N] [--pause SECONDS] [--tokenizer DIRECTORY]:
// time and memory of shuffled batches of a large parquet file, and of tokenizing all of it. See docs/data.md.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, renameSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import { commandLine } from '../scripts/command_line.mjs';
import { writeByteTokenizer } from './byte_tokenizer.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const WORK = join(resolve(HERE, '..'), '.troupe', 'bench');
const BATCH = 1024;
const options = {
  rows: { type: 'string', least: 1, default: '100000' },
  groups: { type: 'string', least: 1, default: '1' },
  measure: { type: 'string' },
  filter: { type: 'boolean', default: false },
  all: { type: 'boolean', default: false },
  batches: { type: 'string', least: 1, default: '10' },
  pause: { type: 'string', default: '1' },
  tokenizer: { type: 'string', default: join(WORK, 'tokenizer') },
};

const WORDS =
  'the quick brown fox jumps over a lazy dog while seven apples cost three dollars each and she sold clips to her friends in April';

/** verl's columns for GSM8K-like problems, about 900 bytes a row, nested as pyarrow writes them; one row group at a time. */
async function writeData(file, rows, groups) {
  const { fileWriter, ParquetWriter } = await import('hyparquet-writer');
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
  const schema = [
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
  ];
  const writer = new ParquetWriter({ writer: fileWriter(file), schema });
  const size = Math.ceil(rows / groups);
  for (let from = 0; from < rows; from += size) {
    const numbers = Array.from({ length: Math.min(size, rows - from) }, (_, i) => from + i);
    const questions = numbers.map((i) => `${i} ${text(60)}`);
    const extra = (question, i) => ({
      index: BigInt(from + i),
      split: 'train',
      question,
      answer: text(50),
    });
    writer.write({
      columnData: [
        { name: 'data_source', data: questions.map(() => 'openai/gsm8k') },
        { name: 'prompt', data: questions.map((content) => [{ content, role: 'user' }]) },
        { name: 'ability', data: questions.map(() => 'math') },
        { name: 'reward_model', data: numbers.map((i) => ({ ground_truth: String(i), style: 'rule' })) },
        { name: 'extra_info', data: questions.map(extra) },
      ],
      rowGroupSize: size,
    });
  }
  writer.finish();
}

/** In a process of its own: opens the file, reads the first shuffled batch and as many more as are asked for, a pause before each. */
async function measure(file, { filter, all: whole, batches, pause, tokenizer: directory }) {
  const require = createRequire(import.meta.url);
  const { samplesOf } = require('../dist/data/dataset.js');
  const { RlDataset } = require('../dist/data/rl_dataset.js');
  const { SampleSource } = require('../dist/data/reading/sample_source.js');
  const { BatchLoader } = require('../dist/data/loader.js');
  const { Tokenizer } = require('../dist/data/tokenizer.js');
  const tokenizer = Tokenizer.load(directory);
  const peakMb = () => Math.round(process.resourceUsage().maxRSS / 1024);
  const before = Math.round(process.memoryUsage().rss / 2 ** 20);
  const start = performance.now();
  const seconds = () => Number(((performance.now() - start) / 1000).toFixed(3));
  const options = {
    promptKey: 'prompt',
    dataSourceKey: 'data_source',
    maxPromptLength: 400,
    filterOverlongPrompts: filter,
    truncation: 'left',
    maxSamples: -1,
    shuffle: true,
    seed: 1,
  };
  const dataset = await RlDataset.open([file], tokenizer, options);
  const spec = { kind: 'rl', paths: [file], tokenizer: tokenizer.source, options };
  const source = SampleSource.of(dataset, spec);
  const loader = new BatchLoader(dataset.length, source.load, { batchSize: BATCH, shuffle: true, seed: 1 });
  const opened = seconds();
  await loader.next();
  const first = seconds();
  const firstPeak = peakMb();
  const waits = [];
  const blocked = monitorEventLoopDelay({ resolution: 5 });
  blocked.enable();
  for (let i = 0; i < Number(batches); i++) {
    // Where a run trains.
    await new Promise((resolve) => setTimeout(resolve, 1000 * Number(pause)));
    const from = seconds();
    await loader.next();
    waits.push(seconds() - from);
  }
  blocked.disable();
  const cpu = process.cpuUsage();
  const timed = async (work) => {
    const from = seconds();
    await work();
    return seconds() - from;
  };
  let all = null;
  if (whole) {
    const indices = Array.from({ length: dataset.length }, (_, i) => i);
    all = {
      beside: await timed(() => source.all()),
      inPlace: await timed(() => samplesOf(dataset, indices)),
    };
  }
  await source.close();
  const mean = waits.reduce((sum, wait) => sum + wait, 0) / waits.length;
  console.log(
    JSON.stringify({
      rows: dataset.length,
      opened,
      first,
      mean,
      longest: Math.max(...waits),
      blocked: blocked.max / 1e9,
      cpu: (cpu.user + cpu.system) / 1e6,
      all,
      before,
      firstPeak,
      peak: peakMb(),
    }),
  );
}

const { values } = commandLine({ options });
if (values.measure) await measure(values.measure, values);
else {
  mkdirSync(WORK, { recursive: true });
  writeByteTokenizer(join(WORK, 'tokenizer'));
  const file = join(WORK, `rows-${values.rows}-${values.groups}.parquet`);
  if (!existsSync(file)) {
    await writeData(`${file}.partial`, Number(values.rows), Number(values.groups));
    renameSync(`${file}.partial`, file);
  }
  console.log(`node ${process.version}, ${cpus().length} x ${cpus()[0]?.model.trim()}`);
  for (const filter of values.filter ? [true] : [false, true]) {
    const args = [
      fileURLToPath(import.meta.url),
      '--measure',
      file,
      ...(filter ? ['--filter'] : []),
      ...(values.all ? ['--all'] : []),
    ];
    args.push('--batches', values.batches, '--pause', values.pause, '--tokenizer', values.tokenizer);
    const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    if (status !== 0) throw new Error(stderr);
    const r = JSON.parse(stdout);
    const s = (number) => `${number.toFixed(3)} s`;
    console.log(
      `${r.rows} rows, ${values.groups} row groups${filter ? ', filter_overlong_prompts' : ''}: open ${s(r.opened)}, first batch of ` +
        `${BATCH} after ${s(r.first)}, ${values.batches} more, ${values.pause} s after one another: waited ${s(r.mean)} each, ` +
        `${s(r.longest)} at most; the thread of the run blocked for ${s(r.blocked)} at most; ${s(r.cpu)} of processors in all` +
        `${r.all ? `; all of them tokenized in ${s(r.all.beside)} in threads, ${s(r.all.inPlace)} in place` : ''}; peak RSS ${r.before} MB before, ` +
        `${r.firstPeak} MB after the first, ${r.peak} MB in the end`,
    );
  }
}
