// node bench/killed_server.mjs [STEPS [KIND]...] (6 native sglang tgi): the arithmetic example's GRPO with responses from our own engine, and from one managed server in the protocol of
// SGLang and of TGI (our engine behind them), each undisturbed and with the server killed (SIGKILL) in the middle of the run and of a response.
import { spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { prepare } from '../examples/arithmetic/prepare.mjs';
import { commandLine, oneOf, wholeNumber } from '../scripts/command_line.mjs';
import { scratchDirectory } from './scratch.mjs';

const KINDS = ['native', 'sglang', 'tgi'];
const [given = '6', ...chosen] = commandLine({ words: 1 + KINDS.length }).positionals;
const steps = wholeNumber(given, 1, 'STEPS');
const kinds = chosen.length > 0 ? chosen.map((kind) => oneOf(kind, KINDS, 'KIND')) : KINDS;
const root = fileURLToPath(new URL('..', import.meta.url));
const directory = scratchDirectory('killed');
const file = (...parts) => join(directory, ...parts);
/** Of the example's 512 responses of a step; the weights are those after half of the steps. */
const DIES = { DIE_AT: '100', DIE_IN: `version_${Math.floor(steps / 2)}` };
const SERVER = join(root, 'test/helpers/serve/our_server.cjs');

/** Its output; an error when it fails. */
function troupe(args, env = {}) {
  return new Promise((done, fail) => {
    const child = spawn(process.execPath, [join(root, 'dist/cli.js'), ...args], {
      cwd: root,
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let said = '';
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text) => {
        said += text;
      });
    child.once('error', fail);
    child.once('close', (code) => (code === 0 ? done(said) : fail(new Error(said))));
  });
}

async function run(kind, killed) {
  const name = `${kind}${killed ? '_killed' : ''}`;
  const mark = file(`mark_${name}`);
  const remote =
    kind === 'native'
      ? []
      : [
          `actor_rollout_ref.rollout.name=${kind}`,
          'actor_rollout_ref.rollout.mode=managed',
          `actor_rollout_ref.rollout.server.command=[${[process.execPath, SERVER, mark, kind].join(',')}]`,
        ];
  const started = performance.now();
  const said = await troupe(
    [
      'train',
      join(root, 'examples/arithmetic/grpo.yaml'),
      `data.train_files=${file('data', 'train.jsonl')}`,
      `data.val_files=${file('data', 'val.jsonl')}`,
      `actor_rollout_ref.model.path=${file('sft', 'final_model')}`,
      `trainer.default_local_dir=${file(name)}`,
      `trainer.total_training_steps=${steps}`,
      `trainer.test_freq=${steps}`,
      'trainer.save_freq=-1',
      'trainer.ui=false',
      ...remote,
    ],
    killed ? DIES : { DIE_AT: '0' },
  );
  const lines = readFileSync(file(name, 'metrics.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  const accuracies = lines.flatMap((line) =>
    Object.entries(line).filter(([key]) => /^val-core\/.*mean@1$/.test(key)),
  );
  const scores = lines.filter(({ step }) => step > 0).map((line) => line['critic/score/mean'].toFixed(4));
  const off = Math.max(
    ...lines.filter(({ step }) => step > 0).map((line) => line['training/rollout_probs_diff_max']),
  );
  const share = (entry) => `${(100 * entry[1]).toFixed(1)} %`;
  console.log(
    `${name}: ${share(accuracies[0])} -> ${share(accuracies.at(-1))} after ${steps} steps, scores ${scores.join(' ')}, ` +
      `rollout_probs_diff_max ${off.toExponential(1)}, ${((performance.now() - started) / 1000).toFixed(0)} s`,
  );
  for (const line of said.split('\n'))
    if (/ server 1 (was lost|is back)/.test(line)) console.log(`  ${line.trim()}`);
  if (killed !== existsSync(mark)) throw new Error(`${name}: the server was ${killed ? 'not ' : ''}killed`);
}

prepare(directory);
await troupe([
  'sft',
  join(root, 'examples/arithmetic/sft.yaml'),
  `data.train_files=${file('data', 'sft.jsonl')}`,
  `model.path=${file('initial_model')}`,
  `trainer.default_local_dir=${file('sft')}`,
]);
for (const kind of kinds)
  for (const killed of kind === 'native' ? [false] : [false, true]) await run(kind, killed);
