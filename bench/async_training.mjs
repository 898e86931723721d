// node bench/async_training.mjs [STEPS [MODE]...] (30 sync 0.5 1 2): the agent example with a calculator that takes its time (slow_tools.mjs), step by step (sync), and with so many batches of
// prompts ahead in the same workers (colocate_async). Times, idle shares, staleness and the held-out accuracy at the end.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine, refuse, wholeNumber } from '../scripts/command_line.mjs';
import { median } from './measure.mjs';

const [steps = '30', ...chosen] = commandLine({ words: Number.POSITIVE_INFINITY }).positionals;
wholeNumber(steps, 1, 'STEPS');
const modes = chosen.length > 0 ? chosen : ['sync', '0.5', '1', '2'];
for (const mode of modes)
  if (mode !== 'sync' && !(Number(mode) > 0))
    refuse(`MODE: expected sync, or how many batches are ahead, such as 0.5, got ${mode}`);
const root = fileURLToPath(new URL('..', import.meta.url));
const directory = mkdtempSync(join(tmpdir(), 'troupe-async-'));

/** @returns seconds that it took */
function node(...args) {
  const started = performance.now();
  return new Promise((done, fail) => {
    const child = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
    let said = '';
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text) => {
        said += text;
      });
    child.once('error', fail);
    child.once('close', (code) =>
      code === 0 ? done((performance.now() - started) / 1000) : fail(new Error(said)),
    );
  });
}

const read = (...parts) =>
  readFileSync(join(...parts), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

async function run(data, mode) {
  const target = join(directory, mode);
  const ahead =
    mode === 'sync'
      ? []
      : ['trainer.v1.trainer_mode=colocate_async', `trainer.v1.colocate_async.num_warmup_batches=${mode}`];
  const seconds = await node(
    join(root, 'dist/cli.js'),
    'train',
    'examples/agent/grpo.yaml',
    `data.train_files=${join(data, 'data/train.jsonl')}`,
    `data.val_files=${join(data, 'data/val.jsonl')}`,
    `actor_rollout_ref.model.path=${join(data, 'sft/final_model')}`,
    `actor_rollout_ref.rollout.agent.tools=${join(root, 'bench/slow_tools.mjs')}`,
    `trainer.default_local_dir=${target}`,
    `trainer.total_training_steps=${steps}`,
    `trainer.test_freq=${steps}`,
    ...ahead,
  );
  const lines = read(target, 'metrics.jsonl');
  const timings = read(target, 'timings.jsonl').filter((line) => 'timing_s/step' in line);
  const of = (rows, name) => rows.flatMap((row) => (name in row ? [row[name]] : []));
  const accuracy = lines
    .flatMap((line) => Object.entries(line).filter(([name]) => /^val-core\/.*\/acc\/mean@1$/.test(name)))
    .map(([, x]) => `${(100 * x).toFixed(1)} %`);
  const share = (name) => (of(timings, name).length > 0 ? mean(of(timings, name)).toFixed(2) : '-');
  const stale = (name) => {
    const values = of(lines, `training/off_policy/trajectory_${name}`);
    return values.length > 0 ? mean(values).toFixed(2) : '-';
  };
  const kl = of(lines, 'rollout_corr/kl');
  console.log(
    [
      mode === 'sync' ? 'sync' : `${mode} ahead`,
      `${seconds.toFixed(0)} s`,
      `${median(of(timings, 'timing_s/step')).toFixed(2)} s a step (median)`,
      `idle: trainer ${share('trainer/idle_ratio')}, rollout ${share('rollouter/idle_ratio')}`,
      `weights old (mean): ${stale('staleness_worst/mean')} steps at the first token, ${stale('staleness/mean')} at the last`,
      `rollout_corr/kl ${mean(kl).toExponential(1)}`,
      `accuracy ${accuracy.join(' -> ')}`,
    ].join(' | '),
  );
}

try {
  // The example itself makes data and the model to begin with.
  const name = `async-${process.pid}`;
  const data = join(root, 'runs', name);
  await node(
    'examples/agent/run.mjs',
    '--name',
    name,
    'trainer.total_training_steps=1',
    'trainer.test_freq=-1',
  );
  try {
    for (const mode of modes) await run(data, mode);
  } finally {
    if (existsSync(data)) rmSync(data, { recursive: true });
  }
} finally {
  rmSync(directory, { recursive: true });
}
