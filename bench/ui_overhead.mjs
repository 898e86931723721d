// What the page costs a run, in pairs: node bench/ui_overhead.mjs [--pairs 4] [--steps 20]. Each pair is the reinforcement-learning part of
// npm start twice, with the page and its records as the example has them and without, in turns; npm start comes first. See docs/ui.md.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from '../scripts/command_line.mjs';
import { median } from './measure.mjs';

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), '..');
const { values: args } = commandLine({
  options: {
    pairs: { type: 'string', least: 1, default: '4' },
    steps: { type: 'string', least: 1, default: '20' },
  },
});
const OFF = ['trainer.ui=false', 'logging.trace=false', 'logging.tokens.samples=0'];
const model = join(ROOT, 'runs/arithmetic/sft/final_model');
if (!existsSync(model)) throw new Error(`${model} is missing: run npm start first`);

const root = mkdtempSync(join(tmpdir(), 'ui-overhead-'));
const servers = new Set();

const linesOf = (path) =>
  readFileSync(path, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

/** In the controller alone: what it has computed itself goes into the file of TROUPE_BENCH_CPU. */
const hook = join(root, 'cpu.cjs');
writeFileSync(
  hook,
  `if (process.argv[1]?.endsWith('cli.js')) process.on('exit', () => {
    const { user, system } = process.cpuUsage();
    require('node:fs').writeFileSync(process.env.TROUPE_BENCH_CPU, String((user + system) / 1e6));
  });`,
);

/** CPU seconds of the server of trainer.ui up to now, which outlives its run by some seconds; 0: there is none. */
function serverSeconds(directory) {
  const path = join(directory, '.troupe-ui.json');
  if (!existsSync(path)) return 0;
  const { pid } = JSON.parse(readFileSync(path, 'utf8'));
  servers.add(pid);
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

/** CPU seconds of the controller, of it and its workers, of the page's server; seconds of each step, and what was learnt. */
async function run(name, more) {
  const directory = join(root, name, 'rl');
  const overrides = [
    `trainer.total_training_steps=${args.steps}`,
    'trainer.save_freq=-1',
    `trainer.default_local_dir=${directory}`,
    ...more,
  ];
  // The shell's times are those of all processes that have been waited for.
  const child = spawn(
    'bash',
    ['-c', '"$@" > /dev/null; code=$?; times; exit $code', 'bash']
      .concat([process.execPath, '--require', hook, join(ROOT, 'dist/cli.js'), 'train'])
      .concat([join(ROOT, 'examples/arithmetic/grpo.yaml'), ...overrides]),
    {
      cwd: ROOT,
      env: { ...process.env, TROUPE_BENCH_CPU: join(root, 'cpu') },
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  );
  let text = '';
  child.stdout.on('data', (part) => {
    text += part;
  });
  const code = await new Promise((done) => child.on('close', done));
  if (code !== 0) throw new Error(`troupe train ended with exit code ${code}`);
  const [user, system] = [...(text.trim().split('\n').at(-1) ?? '').matchAll(/(\d+)m([\d.]+)s/g)].map(
    ([, minutes, seconds]) => 60 * Number(minutes) + Number(seconds),
  );
  const timings = linesOf(join(directory, 'timings.jsonl'));
  return {
    all: user + system,
    controller: Number(readFileSync(join(root, 'cpu'), 'utf8')),
    server: serverSeconds(join(root, name)),
    steps: timings.flatMap((line) => line['timing_s/step'] ?? []),
    metrics: readFileSync(join(directory, 'metrics.jsonl'), 'utf8'),
  };
}

try {
  const found = { controller: [], server: [], all: [], steps: [] };
  for (let pair = 0; pair < Number(args.pairs); pair++) {
    // Whoever comes second finds warm caches: they take turns.
    const order = pair % 2 === 0 ? ['on', 'off'] : ['off', 'on'];
    const sides = {};
    for (const side of order) sides[side] = await run(`${side}-${pair}`, side === 'on' ? [] : OFF);
    const { on, off } = sides;
    if (on.metrics !== off.metrics) throw new Error('metrics.jsonl with and without the page differ');
    found.controller.push((on.controller - off.controller) / off.all);
    found.server.push(on.server / off.all);
    found.all.push(on.all / off.all - 1);
    found.steps.push(...on.steps.map((seconds, i) => seconds / off.steps[i] - 1));
    const [a, b] = [on, off].map(
      ({ controller, all }) => `${controller.toFixed(2)} s of ${all.toFixed(2)} s`,
    );
    console.log(
      `pair ${pair + 1}: CPU of the controller ${a} with, ${b} without; server ${on.server.toFixed(2)} s`,
    );
  }
  const percent = (shares) => `${(100 * median(shares)).toFixed(2)} %`;
  console.log(`with over without, medians of ${args.pairs} pairs of runs of ${args.steps} steps, in CPU time of the run:
  controller ${percent(found.controller)}, the page's server ${percent(found.server)}, all processes ${percent(found.all)};
  seconds of a step ${percent(found.steps)} (${found.steps.length} pairs of steps)`);
} finally {
  for (const pid of servers) {
    try {
      process.kill(pid);
    } catch {
      // It has ended.
    }
  }
  rmSync(root, { recursive: true, force: true });
}
