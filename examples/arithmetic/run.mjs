// The example from beginning to end: node examples/arithmetic/run.mjs [--ppo] [--experts N] [--name NAME] [key=value ...]
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { writeMixture } from './mixture.mjs';
import { prepare } from './prepare.mjs';
import { Random } from './random.mjs';
import { report } from './report.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const ROOT = resolve(HERE, '..', '..');
const CLI = join(ROOT, 'dist', 'cli.js');
const MOST_EXPERTS = 64;
const USAGE = `usage: node examples/arithmetic/run.mjs [--ppo] [--experts N] [--name NAME] [--seed N] [--sft key=value]... [key=value ...]
  --ppo            train with PPO and a critic instead of GRPO
  --experts N      after the warm start every MLP becomes a mixture of N experts, 2 for each token
  --name NAME      results go to runs/NAME (default: arithmetic, -ppo and -experts added)
  --seed N         seed of the problems and of the untrained model (default 1)
  --sft key=value  override a key of examples/arithmetic/sft.yaml
  key=value        override a key of examples/arithmetic/grpo.yaml`;

class UsageError extends Error {}

function readArguments(argv) {
  const options = {
    ppo: { type: 'boolean', default: false },
    experts: { type: 'string' },
    name: { type: 'string' },
    seed: { type: 'string', default: '1' },
    sft: { type: 'string', multiple: true, default: [] },
    help: { type: 'boolean', short: 'h', default: false },
  };
  let parsed;
  try {
    parsed = parseArgs({ args: argv, options, allowPositionals: true });
  } catch (error) {
    throw new UsageError(error.message);
  }
  const { values, positionals } = parsed;
  for (const override of [...values.sft, ...positionals]) {
    if (!/^[^=]+=/.test(override)) throw new UsageError(`expected key=value but got '${override}'`);
  }
  if (!/^-?\d{1,15}$/.test(values.seed))
    throw new UsageError(`--seed: expected an integer but got '${values.seed}'`);
  const experts = values.experts === undefined ? undefined : Number(values.experts);
  if (experts !== undefined && !(Number.isInteger(experts) && experts >= 2 && experts <= MOST_EXPERTS))
    throw new UsageError(
      `--experts: expected an integer from 2 to ${MOST_EXPERTS} but got '${values.experts}'`,
    );
  return { ...values, seed: Number(values.seed), experts, overrides: positionals };
}

/**
 * runs/NAME, or runs/NAME-2 and so on where that holds a finished run or one with other arguments. An
 * interrupted run with the same arguments is taken up where it stopped.
 */
function runDirectory(name, settings) {
  const wanted = JSON.stringify(settings);
  for (let i = 1; ; i++) {
    const directory = join(ROOT, 'runs', i === 1 ? name : `${name}-${i}`);
    const file = join(directory, 'arguments.json');
    if (!existsSync(directory)) {
      mkdirSync(directory, { recursive: true });
      writeFileSync(file, `${wanted}\n`);
      return directory;
    }
    const same = existsSync(file) && readFileSync(file, 'utf8').trim() === wanted;
    if (same && !existsSync(join(directory, 'summary.json'))) return directory;
  }
}

let child = null;

/** Runs `troupe ...args` with our terminal; an exit code other than 0 ends this process with it. */
const troupe = (...args) => run('inherit', args);

/** What is wrong with overrides, before the first stage and not after it. */
const check = (...args) => run('ignore', ['validate', ...args]);

function run(stdout, args) {
  return new Promise((done, fail) => {
    child = spawn(process.execPath, [CLI, ...args], { cwd: ROOT, stdio: ['inherit', stdout, 'inherit'] });
    child.on('error', fail);
    child.on('exit', (code, signal) => {
      child = null;
      if (code === 0) return done();
      if (signal) console.error(`troupe ${args[0]} was killed by ${signal}`);
      process.exit(code ?? 1);
    });
  });
}

// A Ctrl-C reaches the child too, which saves a checkpoint and exits; this process only waits for it.
process.on('SIGINT', () => {
  if (!child) process.exit(130);
});
process.on('SIGTERM', () => {
  if (!child) process.exit(143);
  child.kill('SIGTERM');
});

async function timed(seconds, phase, work) {
  const start = performance.now();
  await work();
  seconds[phase] = (performance.now() - start) / 1000;
}

async function main() {
  const args = readArguments(process.argv.slice(2));
  if (args.help) return console.log(USAGE);
  if (!existsSync(CLI))
    throw new Error(`${relative(process.cwd(), CLI)} is missing: run \`npm start\`, which builds it`);
  const { ppo, seed, sft, experts, overrides } = args;
  const estimator = ppo ? ['algorithm.adv_estimator=gae'] : [];
  // Of models that are made later nothing is known yet, and those of earlier runs say nothing of them.
  const [toCome, models] = ['no/model/yet', ['actor_rollout_ref', 'critic']];
  await check(join(HERE, 'sft.yaml'), `model.path=${toCome}`, ...sft);
  await check(
    join(HERE, 'grpo.yaml'),
    ...models.map((role) => `${role}.model.path=${toCome}`),
    ...estimator,
    ...overrides,
  );
  const name = args.name ?? `arithmetic${ppo ? '-ppo' : ''}${experts ? '-experts' : ''}`;
  const directory = runDirectory(name, { ppo, seed, sft, experts, overrides });
  const path = (...parts) => relative(ROOT, join(directory, ...parts));
  const seconds = {};

  console.log(`[1/3] Preparing problems and an untrained model in ${relative(process.cwd(), directory)}`);
  const { parameters: dense, sizes } = prepare(directory, { seed });
  console.log(
    `      ${dense} parameters, ${sizes.sft} demonstrations, ${sizes.train} prompts, ${sizes.val} held-out`,
  );

  const warmStart = path('sft', 'final_model');
  console.log('[2/3] Supervised warm start');
  if (existsSync(join(ROOT, warmStart, 'config.json'))) console.log('      done before');
  else {
    await timed(seconds, 'SFT', () =>
      troupe(
        'sft',
        join(HERE, 'sft.yaml'),
        `data.train_files=${path('data', 'sft.jsonl')}`,
        `model.path=${path('initial_model')}`,
        `trainer.default_local_dir=${path('sft')}`,
        ...sft,
      ),
    );
  }

  let [start, parameters] = [warmStart, dense];
  if (experts) {
    start = path('mixture');
    parameters = writeMixture(join(ROOT, warmStart), join(ROOT, start), experts, new Random(seed));
    console.log(`      a mixture of ${experts} experts in each layer: ${parameters} parameters`);
  }

  const algorithm = ppo ? 'PPO' : 'GRPO';
  console.log(`[3/3] Reinforcement learning with ${algorithm}`);
  await timed(seconds, algorithm, () =>
    troupe(
      'train',
      join(HERE, 'grpo.yaml'),
      `data.train_files=${path('data', 'train.jsonl')}`,
      `data.val_files=${path('data', 'val.jsonl')}`,
      `actor_rollout_ref.model.path=${start}`,
      `critic.model.path=${start}`,
      `trainer.default_local_dir=${path('rl')}`,
      ...estimator,
      ...overrides,
    ),
  );
  report({ directory, algorithm, parameters, seconds });
}

main().catch((error) => {
  console.error(error instanceof UsageError ? `${error.message}\n${USAGE}` : error.message);
  process.exit(error instanceof UsageError ? 2 : 1);
});
