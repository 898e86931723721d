// Reads every launch script of checkouts of verl and its relatives with `troupe import-verl` and `validate`, and compares what was
// read with what bash passes: node scripts/verl_scripts.mjs [--json FILE] [--list] CHECKOUT..., after npm run build.
// A script counts when it sets a dotted key. Truth: bash runs it, with recorders of this script's own on PATH that note their
// arguments and do nothing. Where bash stops at a variable that is not set, the variable is given to both.
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { commandLine } from './command_line.mjs';
import { askedFeatures } from './verl_features.mjs';

const require = createRequire(import.meta.url);
const { readVerlSource } = require('../dist/config/verl/source.js');
const { importVerl } = require('../dist/config/verl/import.js');
const { missingFeatures } = require('../dist/config/checks/missing.js');
const { checkTree } = require('../dist/config/config.js');
const { scriptCommand } = require('../dist/config/verl/script_sandbox.js');

const NAMES =
  'python python3 torchrun accelerate ray uv srun sbatch nvidia-smi pip pip3 git wget curl sleep tee mkdir cp mv pkill telnet docker hf huggingface-cli conda';
const RECORDER = `#!/bin/bash
case \${0##*/} in
  nvidia-smi) echo "GPU 0: NVIDIA"; exit 0;;
  telnet) echo Connected; exit 0;;
  tee) exec cat;;
  sbatch|srun) for word; do [ -f "$word" ] && exec bash "$word"; [ "$word" = bash ] && { while [ "$1" != bash ]; do shift; done; exec "$@"; }; done;;
esac
[ "$1" = -c ] && { [[ $2 == *torch_npu* ]] && exit 1; exit 0; }
if [ $# = 0 ] || [ "$1" = - ] || [[ "$*" == uv*' -' || "$*" == run*' -' ]]; then grep -q get_device_name && echo cuda; exit 0; fi
{ printf '%s\\x1f' "\${0##*/}" "$@"; printf '\\x1e'; } >>"$TROUPE_STAND_INS/records"
`;

// What a script sources or enters lies on the machine that it was written for.
const START = `
ulimit() { :; }
source() { [ ! -f "$1" ] || builtin source "$@"; }
cd() { builtin cd "$@" 2>/dev/null || :; }
`;

/** Calls that bash makes: arrays of words. */
function truth(script, args, directory, environment) {
  const { program, args: words } = scriptCommand({
    script,
    args,
    directory,
    home: environment.HOME,
    timeout: 20,
    recorder: { standIn: RECORDER, start: START, names: NAMES },
  });
  const result = spawnSync(program, words, { env: environment, cwd: '/', maxBuffer: 1 << 26 });
  const [stands, status, output, ...records] = result.stdout.toString().split('\0');
  if (status === undefined) throw new Error(`no sandbox: ${stands} ${result.stderr}`);
  const calls = records.join('\0').split('\x1e').slice(0, -1);
  return { status: Number(status), output, calls: calls.map((call) => call.split('\x1f').slice(0, -1)) };
}

const KEY = /^[+~]*[a-z_]+(\.\w+)+=|^--config-(name|path)/;
const PROGRAM = /^(verl|verl_\w+|recipe|rep_exp|main_\w+)(\.\w+)*$|main_\w+\.py$|trainer\w*\.py$/;

/** Program and arguments of the last training command: what merges or evaluates a checkpoint after it has no keys. */
function command(calls) {
  const commands = calls.flatMap((call) => {
    const at = call.findIndex((word, i) => i > 0 && PROGRAM.test(word) && !word.includes('='));
    return at < 0 ? [] : [{ program: call[at], args: call.slice(at + 1).filter((word) => word !== '') }];
  });
  return commands.findLast(({ args }) => args.some((word) => KEY.test(word))) ?? commands.at(-1) ?? null;
}

/** Times and process ids differ between two runs of one script. */
const steady = (words) =>
  words.map((word) =>
    word
      .replace(/20\d\d[-_.]?\d\d[-_.]?\d\d([-_T ]?(Time)?\d\d[:_.-]?\d\d([:_.-]?\d\d)?)?|\b\d{10}\b/g, 'TIME')
      .replace(/(\/tmp\/\w+)\.\w{6}\b/, '$1.MADE'),
  );

function study(script, directory) {
  const environment = { ...process.env, USER: process.env.USER ?? 'user' };
  let args = [];
  for (let round = 0; ; round++) {
    const found = truth(script, args, directory, environment);
    const launch = command(found.calls);
    const unset = /: line \d+: (\w+): (unbound variable|must|set )/.exec(found.output)?.[1];
    if (launch !== null || round === 12)
      return { ...judge(script, args, directory, environment, launch), found };
    if (unset !== undefined && !(unset in environment)) environment[unset] = `/given/${unset}`;
    else if (args.length === 0) args = ['8', '/given/directory'];
    else return { ...judge(script, args, directory, environment, null), found };
  }
}

function judge(script, args, directory, environment, launch) {
  const report = { script, launch, read: 'no', imported: false, validates: false, missing: [], asked: [] };
  if (launch !== null) report.asked = askedFeatures(launch.program, launch.args);
  let source;
  try {
    source = readVerlSource(script, args, { environment, directory });
  } catch (error) {
    return { ...report, missing: [error.message] };
  }
  const mine = source.launch;
  const same =
    launch !== null &&
    mine !== null &&
    mine.program === launch.program &&
    JSON.stringify(steady(mine.args)) === JSON.stringify(steady(launch.args));
  report.read = same ? 'as bash' : launch === null ? 'bash starts nothing' : 'differs';
  report.mine = mine;
  const result = importVerl(source);
  report.missing = result.notMapped.map(({ key, why }) => `${key}: ${why}`);
  report.left = [];
  report.needs = missingFeatures(result.config).map(({ path: key, message }) => `${key}: ${message}`);
  try {
    checkTree(result.config, result.program);
  } catch (error) {
    if (error.name !== 'ConfigError') throw error;
    report.left = error.message.split('\n');
  }
  report.imported = report.missing.length === 0;
  report.validates = report.imported && report.left.length === 0 && report.needs.length === 0;
  report.needs.push(...report.left.filter((line) => /needs .*not there/.test(line)));
  return report;
}

const { values, positionals: checkouts } = commandLine({
  options: { json: { type: 'string' }, list: { type: 'boolean', default: false } },
  words: Number.POSITIVE_INFINITY,
});
const { json = null, list: listed } = values;
const rows = [];
const all = [];
for (const checkout of checkouts.map((word) => path.resolve(word))) {
  const scripts = readdirSync(checkout, { recursive: true })
    .filter((name) => name.endsWith('.sh'))
    .map((name) => path.join(checkout, name))
    .filter((name) => /[a-z_]+\.[a-z_.]+=/.test(readFileSync(name, 'utf8')))
    .sort();
  const reports = scripts.map((script) => study(script, checkout));
  const count = (test) => reports.filter(test).length;
  rows.push({
    corpus: path.basename(checkout),
    scripts: reports.length,
    'bash starts a trainer': count(({ launch }) => launch !== null),
    'read as bash passes': count(({ read }) => read === 'as bash'),
    'differs in silence': count(({ read }) => read === 'differs'),
    'nothing missing': count(({ imported, needs }) => imported && needs.length === 0),
    validates: count(({ validates }) => validates),
    'validates, needs what is missing': count(({ validates, asked }) => validates && asked.length > 0),
  });
  all.push(...reports);
}
console.table(rows);
const features = new Map();
for (const { asked } of all) for (const name of asked) features.set(name, (features.get(name) ?? 0) + 1);
console.table(
  [...features].sort(([, a], [, b]) => b - a).map(([feature, scripts]) => ({ feature, scripts })),
);
if (listed)
  for (const { script, read, validates, asked, missing, left = [], needs = [], found } of all) {
    if (read !== 'as bash')
      console.log(`${read}: ${script}\n    ${found.output.trim().slice(-300).replaceAll('\n', ' | ')}`);
    else if (validates) console.log(`validates ${asked.join(', ')}: ${script}`);
    else
      console.log(
        `refused: ${script}\n    ${[...missing, ...needs, ...left].slice(0, 4).join('\n    ').slice(0, 700)}`,
      );
  }
if (json !== null) writeFileSync(json, JSON.stringify(all, null, 1));
