// Trains PPO, GRPO, EGPO and DAPO on the arithmetic example from one warm start and draws their curves together:
// node scripts/learning_curves.mjs [--steps N] [--directory DIR] [--sft key=value]... [--publish], after npm run build.
//
//   --steps N        training steps of each algorithm (default: those of examples/arithmetic/grpo.yaml, 60)
//   --directory DIR  where the runs go (default runs/learning-curves); what is finished there is not done again
//   --sft key=value  override a key of examples/arithmetic/sft.yaml, to rehearse with a shorter warm start
//   --publish        also write docs/images/learning_curves.svg and the table in docs/example.md
//
// A rehearsal of a minute: node scripts/learning_curves.mjs --steps 3 --sft trainer.total_training_steps=20 --directory runs/rehearsal
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { comparisonCurves } from '../examples/arithmetic/curves.mjs';
import { prepare } from '../examples/arithmetic/prepare.mjs';
import { ACCURACY, accuracies, readJsonLines } from '../examples/arithmetic/report.mjs';

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), '..');
const EXAMPLE = join(ROOT, 'examples', 'arithmetic');
const CLI = join(ROOT, 'dist', 'cli.js');

/** Overrides of examples/arithmetic/grpo.yaml. */
const ALGORITHMS = {
  PPO: ['algorithm.adv_estimator=gae'],
  GRPO: [],
  EGPO: ['algorithm.adv_estimator=egpo'],
  DAPO: [
    'algorithm.filter_groups.enable=true',
    'algorithm.filter_groups.metric=acc',
    'actor_rollout_ref.actor.clip_ratio_high=0.28',
    'actor_rollout_ref.actor.use_kl_loss=false',
  ],
};

/** Runs `troupe ...args` with our terminal; an exit code other than 0 ends this process with it. */
function troupe(...args) {
  const { status, signal } = spawnSync(process.execPath, [CLI, ...args], { cwd: ROOT, stdio: 'inherit' });
  if (status === 0) return;
  console.error(`troupe ${args[0]} ended with ${signal ?? `exit code ${status}`}`);
  process.exit(status ?? 1);
}

const isDone = (directory) => existsSync(join(directory, 'final_model', 'config.json'));

function warmStart(directory, overrides) {
  prepare(directory);
  const output = join(directory, 'sft');
  if (isDone(output)) return console.log('warm start: done before');
  const data = `data.train_files=${join(directory, 'data', 'sft.jsonl')}`;
  const model = `model.path=${join(directory, 'initial_model')}`;
  troupe('sft', join(EXAMPLE, 'sft.yaml'), data, model, `trainer.default_local_dir=${output}`, ...overrides);
}

function train(name, directory, overrides) {
  const output = join(directory, name.toLowerCase());
  console.log(`\n${name}${isDone(output) ? ': done before' : ''}`);
  if (isDone(output)) return output;
  const model = join(directory, 'sft', 'final_model');
  troupe(
    'train',
    join(EXAMPLE, 'grpo.yaml'),
    `data.train_files=${join(directory, 'data', 'train.jsonl')}`,
    `data.val_files=${join(directory, 'data', 'val.jsonl')}`,
    `actor_rollout_ref.model.path=${model}`,
    `critic.model.path=${model}`,
    `trainer.default_local_dir=${output}`,
    ...overrides,
  );
  return output;
}

const sum = (records, key) => records.reduce((total, record) => total + (record[key] ?? 0), 0);

/** One row of the table: accuracy, what was generated for it, and how long the steps took. */
function summarise(name, output) {
  const records = readJsonLines(join(output, 'metrics.jsonl'));
  const { data, actor_rollout_ref } = JSON.parse(readFileSync(join(output, 'config.json'), 'utf8'));
  const { before, after, steps } = accuracies(records);
  const prompts = sum(records, 'train/num_gen_prompts') || steps * data.train_batch_size;
  const seconds = sum(readJsonLines(join(output, 'timings.jsonl')), 'timing_s/step');
  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const cells = [
    name,
    steps,
    percent(before),
    percent(after),
    prompts * actor_rollout_ref.rollout.n,
    `${seconds.toFixed(0)} s`,
  ];
  return { name, records, row: `| ${cells.join(' | ')} |` };
}

const TABLE_HEAD = [
  '| algorithm | steps | accuracy before | after | responses generated | time of the steps |',
  '| --- | --- | --- | --- | --- | --- |',
];

const PICTURE =
  '![Accuracy, reward, entropy, gradient norm and length of the four algorithms](images/learning_curves.svg)';

/** Replaces what stands between the markers of docs/example.md. */
function publishTable(table) {
  const file = join(ROOT, 'docs', 'example.md');
  const [begin, end] = ['<!-- begin learning curves -->', '<!-- end learning curves -->'];
  const [before, rest] = readFileSync(file, 'utf8').split(begin);
  if (rest === undefined) throw new Error(`docs/example.md has no "${begin}"`);
  writeFileSync(file, `${before}${begin}\n${table}\n\n${PICTURE}\n${end}${rest.split(end)[1]}`);
}

function readArguments() {
  const options = {
    steps: { type: 'string' },
    directory: { type: 'string', default: join(ROOT, 'runs', 'learning-curves') },
    sft: { type: 'string', multiple: true, default: [] },
    publish: { type: 'boolean', default: false },
  };
  try {
    const { values } = parseArgs({ options });
    if (values.steps !== undefined && !/^[1-9]\d*$/.test(values.steps))
      throw new Error(`--steps: expected a positive integer but got '${values.steps}'`);
    if (!existsSync(CLI)) throw new Error('dist/cli.js is missing: npm run build');
    return values;
  } catch (error) {
    console.error(`learning_curves: ${error.message}`);
    return process.exit(2);
  }
}

const values = readArguments();
const directory = resolve(values.directory);
mkdirSync(directory, { recursive: true });
warmStart(directory, values.sft);
const steps = values.steps === undefined ? [] : [`trainer.total_training_steps=${values.steps}`];
const runs = Object.entries(ALGORITHMS).map(([name, overrides]) =>
  summarise(name, train(name, directory, [...overrides, ...steps])),
);
const svg = comparisonCurves('Arithmetic: four algorithms from one warm start', runs, ACCURACY);
const table = [...TABLE_HEAD, ...runs.map(({ row }) => row)].join('\n');
writeFileSync(join(directory, 'learning_curves.svg'), svg);
writeFileSync(join(directory, 'table.md'), `${table}\n`);
if (values.publish) {
  writeFileSync(join(ROOT, 'docs', 'images', 'learning_curves.svg'), svg);
  publishTable(table);
}
console.log(`\n${table}\n\nCurves: ${relative(process.cwd(), join(directory, 'learning_curves.svg'))}`);
