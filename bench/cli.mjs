import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { OPERATIONS } from './measure.mjs';
import { PRESETS } from './presets.mjs';

export const USAGE = `usage: npm run bench -- [options]
  --peer [DIR]        beside our side run bench/peer/peer_hf.py (or the peer_hf.py of DIR), which needs Python
  --case NAME|DIR     ${PRESETS.join(', ')};
                      or a case directory (default cpu-40m)
  --prompts N  --n N  --prompt-len N  --response-len N
                      the batch of a named case: N prompts (4), N responses each (4), longest prompt (128) and response (384)
  --full              every prompt and response of a named case has the largest length
  --variants a,b      of the peer: padded, packed, compile, continuous, vllm (default padded,packed;
                      continuous: its batching of generate; vllm: vLLM's, where Python has it)
  --ops a,b           of ${OPERATIONS.join(', ')},
                      linear_log_prob (default: all but linear_log_prob)
  --head TxHxV        rows, hidden size and vocabulary of linear_log_prob (default: of the case)
  --sweep a,b         instead of one batch: sequences of these lengths, one after the other (2048,4096,8192)
  --rounds N          how often all sides take turns (default 2)
  --repeat N          timed runs per side and round (default 3)
  --warmup N          untimed runs before them (default 1)
  --threads N         compute threads of every side (default 2)
  --dtype fp32|bf16   (default fp32)
  --device cpu|cuda   (default cpu)
  --micro-tokens N    tokens per micro-batch (default 4096)
  --new-tokens N      tokens per response in generate (default 64)
  --quantization X    int8 or fp8: weights of our generate
  --peak-tflops X     peak of the device, for MFU = useful FLOPs / seconds / peak
  --compare FILE      results of an earlier run: what became faster or slower`;

const DEFAULTS = {
  case: 'cpu-40m',
  prompts: '4',
  n: '4',
  'prompt-len': '128',
  'response-len': '384',
  variants: 'padded,packed',
  ops: OPERATIONS.join(','),
  rounds: '2',
  repeat: '3',
  warmup: '1',
  threads: '2',
  dtype: 'fp32',
  device: 'cpu',
  'micro-tokens': '4096',
  'new-tokens': '64',
};
const OPTIONAL = ['peer', 'head', 'sweep', 'peak-tflops', 'compare', 'quantization'];
const CHOICES = { dtype: ['fp32', 'bf16'], device: ['cpu', 'cuda'], quantization: ['int8', 'fp8'] };
const COUNTS = [
  'prompts',
  'n',
  'prompt-len',
  'response-len',
  'rounds',
  'repeat',
  'threads',
  'micro-tokens',
  'new-tokens',
];
const VARIANTS = ['padded', 'packed', 'compile', 'continuous', 'vllm'];

/** `--peer` may stand alone: then it is our own. */
function completePeer(argv) {
  const at = argv.indexOf('--peer');
  const alone = at >= 0 && (argv[at + 1] === undefined || argv[at + 1].startsWith('--'));
  return alone ? argv.toSpliced(at + 1, 0, 'own') : argv;
}

/** The options as strings, checked. @throws Error that says what was expected */
export function readArguments(argv) {
  const strings = [...Object.keys(DEFAULTS), ...OPTIONAL].map((name) => [
    name,
    { type: 'string', ...(name in DEFAULTS ? { default: DEFAULTS[name] } : {}) },
  ]);
  const flag = { type: 'boolean', default: false };
  const options = { ...Object.fromEntries(strings), full: flag, help: { ...flag, short: 'h' } };
  const { values } = parseArgs({ args: completePeer(argv), options, allowPositionals: false });
  for (const name of COUNTS) {
    if (!/^[1-9]\d*$/.test(values[name]))
      throw new Error(`--${name}: expected a positive integer but got '${values[name]}'`);
  }
  if (!/^\d+$/.test(values.warmup))
    throw new Error(`--warmup: expected a whole number from 0 on but got '${values.warmup}'`);
  if (values['peak-tflops'] !== undefined && !(Number(values['peak-tflops']) > 0))
    throw new Error(`--peak-tflops: expected a number above 0 but got '${values['peak-tflops']}'`);
  for (const [name, choices] of Object.entries(CHOICES)) {
    if (values[name] !== undefined && !choices.includes(values[name]))
      throw new Error(`--${name}: expected ${choices.join(' or ')} but got '${values[name]}'`);
  }
  const known = [...OPERATIONS, 'linear_log_prob'];
  const unknown = values.ops.split(',').find((op) => !known.includes(op));
  if (unknown !== undefined)
    throw new Error(`--ops: expected some of ${known.join(', ')} but got '${unknown}'`);
  // Whoever brings a peer knows its variants.
  const strange = values.variants.split(',').find((name) => name !== '' && !VARIANTS.includes(name));
  if (values.peer === 'own' && strange !== undefined)
    throw new Error(`--variants: expected some of ${VARIANTS.join(', ')} but got '${strange}'`);
  if (values.head !== undefined && !/^[1-9]\d*x[1-9]\d*x[1-9]\d*$/.test(values.head))
    throw new Error(`--head: expected TxHxV but got '${values.head}'`);
  if (values.sweep !== undefined && !/^[1-9]\d*(,[1-9]\d*)*$/.test(values.sweep))
    throw new Error(`--sweep: expected lengths with commas between them but got '${values.sweep}'`);
  checkFiles(values);
  return { ...values, ...(values.compare === undefined ? {} : { before: earlierPoints(values.compare) }) };
}

/** Before anything is installed or made for them. */
function checkFiles({ case: name, peer }) {
  if (!PRESETS.includes(name) && !existsSync(join(name, 'case.json')))
    throw new Error(`--case: expected one of ${PRESETS.join(', ')} or a case directory but got '${name}'`);
  if (peer !== undefined && peer !== 'own' && !existsSync(join(peer, 'peer_hf.py')))
    throw new Error(`--peer: expected nothing or a directory with a peer_hf.py but got '${peer}'`);
}

/** Of the results that an earlier run has written. */
function earlierPoints(file) {
  const refuse = (why) => {
    throw new Error(`--compare: expected results of an earlier run, runs/bench/*.json, but ${file} ${why}`);
  };
  let points;
  try {
    ({ points } = JSON.parse(readFileSync(file, 'utf8')));
  } catch (error) {
    refuse(error.code === undefined ? 'is no JSON' : `cannot be read (${error.code})`);
  }
  if (!Array.isArray(points)) refuse('has no points');
  return points;
}
