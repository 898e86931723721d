// The agent example from beginning to end: node examples/agent/run.mjs [--search] [--name NAME] [key=value ...]
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { writeInitialModel } from '../arithmetic/initial_model.mjs';
import { writeTokenizer } from '../arithmetic/tokenizer.mjs';
import * as search from '../search_r1/facts.mjs';
import * as calculator from './problems.mjs';

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), '..', '..');
const CLI = join(ROOT, 'dist', 'cli.js');
const SIZES = { sft: 20480, train: 8192, val: 300 };

const USAGE = `usage: node examples/agent/run.mjs [--search] [--name NAME] [--seed N] [key=value ...]
  --search     a search engine over facts instead of a calculator
  --name NAME  results go to runs/NAME (default: agent, or search_r1)
  --seed N     seed of the tasks and of the untrained model (default 1)
  key=value    override a key of grpo.yaml`;

function wrong(message) {
  console.error(`${message}\n${USAGE}`);
  process.exit(2);
}

function readArguments() {
  const options = {
    agent: { type: 'boolean', default: false },
    search: { type: 'boolean', default: false },
    name: { type: 'string' },
    seed: { type: 'string', default: '1' },
    help: { type: 'boolean', short: 'h', default: false },
  };
  try {
    return parseArgs({ options, allowPositionals: true });
  } catch (error) {
    return wrong(error.message);
  }
}

const { values, positionals: overrides } = readArguments();
if (values.help) {
  console.log(USAGE);
  process.exit(0);
}
for (const one of overrides) if (!/^[^=]+=/.test(one)) wrong(`expected key=value but got '${one}'`);
if (!/^-?\d{1,15}$/.test(values.seed)) wrong(`--seed: expected an integer but got '${values.seed}'`);
if (!existsSync(CLI)) {
  console.error(`${relative(process.cwd(), CLI)} is missing: run \`npm start -- --agent\`, which builds it`);
  process.exit(1);
}
const task = values.search ? search : calculator;
const name = values.name ?? (values.search ? 'search_r1' : 'agent');
const here = values.search ? 'search_r1' : 'agent';

// What is wrong with overrides is said before the first stage, and leaves no directory behind. The model is made later.
const checked = spawnSync(
  process.execPath,
  [CLI, 'validate', `examples/${here}/grpo.yaml`, 'actor_rollout_ref.model.path=no/model/yet', ...overrides],
  { cwd: ROOT, stdio: ['ignore', 'ignore', 'inherit'] },
);
if (checked.status !== 0) process.exit(checked.status ?? 1);

let directory = join(ROOT, 'runs', name);
for (let i = 2; existsSync(directory); i++) directory = join(ROOT, 'runs', `${name}-${i}`);
const path = (...parts) => relative(ROOT, join(directory, ...parts));
mkdirSync(join(directory, 'data'), { recursive: true });

const running = new Set();
let stage = null;
// A Ctrl-C reaches the stage, too, which saves a checkpoint and ends; this process only waits for it.
process.on('SIGINT', () => undefined);
process.on('SIGTERM', () => {
  if (stage === null) process.exit(143);
  stage.kill('SIGTERM');
});
process.on('exit', () => {
  for (const child of running) child.kill();
});

function troupe(...args) {
  return new Promise((done) => {
    stage = spawn(process.execPath, [CLI, ...args], { cwd: ROOT, stdio: 'inherit' });
    stage.on('exit', (code) => {
      stage = null;
      if (code === 0) done();
      else process.exit(code ?? 1);
    });
  });
}

/** A retrieval server over the facts; resolves to its URL. */
function retriever() {
  return new Promise((done, fail) => {
    const args = [CLI, 'retriever', path('data', 'corpus.jsonl'), '--port', '0'];
    const child = spawn(process.execPath, args, { cwd: ROOT, stdio: ['ignore', 'pipe', 'inherit'] });
    running.add(child);
    child.on('exit', (code) => fail(new Error(`the retriever ended with ${code}`)));
    let said = '';
    child.stdout.on('data', (part) => {
      said += part;
      const url = /http:\S+/.exec(said)?.[0];
      if (url === undefined) return;
      process.stdout.write(`      ${said}`);
      done(url);
    });
  });
}

async function main() {
  console.log(`[1/3] Preparing data and an untrained model in ${relative(process.cwd(), directory)}`);
  const { random, ...sets } = task.rowsOf(Number(values.seed), SIZES);
  for (const [set, rows] of Object.entries(sets)) {
    const lines = rows.map((row) => `${JSON.stringify(row)}\n`);
    writeFileSync(join(directory, 'data', `${set}.jsonl`), lines.join(''));
  }
  const { characters, words } = task.TOKENIZER;
  const parameters = writeInitialModel(join(directory, 'initial_model'), random, {
    vocabulary: characters.length + words.length + 2,
    positions: 256,
    theta: 100,
    writeTokenizer: (to) => writeTokenizer(to, { ...task.TOKENIZER, length: 256 }),
  });
  console.log(
    `      ${parameters} parameters, ${Object.entries(sets)
      .map(([set, rows]) => `${set} ${rows.length}`)
      .join(', ')}`,
  );
  const url = values.search ? await retriever() : null;

  const started = performance.now();
  console.log('[2/3] Supervised warm start');
  await troupe(
    'sft',
    `examples/${here}/sft.yaml`,
    `data.train_files=${path('data', 'sft.jsonl')}`,
    `model.path=${path('initial_model')}`,
    `trainer.default_local_dir=${path('sft')}`,
  );
  const warm = performance.now();
  console.log('[3/3] GRPO over trajectories');
  await troupe(
    'train',
    `examples/${here}/grpo.yaml`,
    `data.train_files=${path('data', 'train.jsonl')}`,
    `data.val_files=${path('data', 'val.jsonl')}`,
    `actor_rollout_ref.model.path=${path('sft', 'final_model')}`,
    `trainer.default_local_dir=${path('rl')}`,
    ...(url === null ? [] : [`retriever.url=${url}`]),
    ...overrides,
  );
  const ended = performance.now();
  const metric = values.search ? 'reward' : 'acc';
  const key = new RegExp(`^val-(core|aux)/${task.DATA_SOURCE}/${metric}/mean@1$`);
  const found = readFileSync(join(directory, 'rl', 'metrics.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .flatMap((line) => Object.entries(JSON.parse(line)).filter(([one]) => key.test(one)))
    .map(([, value]) => 100 * value);
  const [before, after] = [found[0], found.at(-1)];
  const seconds = { sft: (warm - started) / 1000, grpo: (ended - warm) / 1000 };
  writeFileSync(join(directory, 'summary.json'), `${JSON.stringify({ before, after, seconds }, null, 2)}\n`);
  console.log(`
Held-out questions answered rightly (greedy)
  after the SFT warm start  ${before.toFixed(1).padStart(6)} %
  after GRPO                ${after.toFixed(1).padStart(6)} %   (${after >= before ? '+' : ''}${(after - before).toFixed(1)} points)

Time: SFT ${seconds.sft.toFixed(0)} s, GRPO ${seconds.grpo.toFixed(0)} s
Trajectories turn by turn  ${path('rl', 'samples')}
Trained model              ${path('rl', 'final_model')}`);
  process.exit(0);
}

await main();
