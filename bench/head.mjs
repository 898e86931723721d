// linear_log_prob alone, one process: node bench/head.mjs TxHxV [options]. Forward with entropies, and forward with the gradients
// of hidden states and weight. One JSON line each.
import { createRequire } from 'node:module';
import { commandLine, refuse } from '../scripts/command_line.mjs';
import { median } from './measure.mjs';
import { NormalPool, Random } from './random.mjs';

const { loadBinding } = createRequire(import.meta.url)('../dist/native/loader.js');

const { values: args, positionals } = commandLine({
  options: {
    repeat: { type: 'string', least: 1, default: '3' },
    warmup: { type: 'string', least: 0, default: '1' },
    threads: { type: 'string', least: 1, default: '2' },
    dtype: { type: 'string', default: 'fp32' },
    device: { type: 'string', default: 'cpu' },
  },
  words: 1,
});
const [shape = 'none'] = positionals;
if (!/^[1-9]\d*x[1-9]\d*x[1-9]\d*$/.test(shape))
  refuse(`expected rows x hidden size x vocabulary, such as 1024x896x151936, got ${shape}`);
const [rows, hidden, vocabulary] = shape.split('x').map(Number);
const native = loadBinding();
native.keepFreedMemory();

const random = new Random(1);
const normals = (count, scale) => new NormalPool(random, (all) => all.map((x) => scale * x)).take(count);
const inputs = {
  hidden: normals(rows * hidden, 1),
  weight: normals(vocabulary * hidden, 0.04),
  targets: Int32Array.from({ length: rows }, () => random.integer(vocabulary)),
  hiddenSize: hidden,
  temperature: 1,
  dtype: args.dtype === 'bf16' ? 'bfloat16' : 'float32',
  device: args.device,
  numThreads: Number(args.threads),
  byLogProb: null,
  byEntropy: null,
};
const gradients = { byLogProb: normals(rows, 1), byEntropy: normals(rows, 0.01) };
for (const [op, extra, products] of [
  ['linear_log_prob', {}, 1],
  ['linear_log_prob_backward', gradients, 3],
]) {
  const seconds = [];
  for (let i = 0; i < Number(args.warmup) + Number(args.repeat); i++) {
    const result = await native.linearLogProb({ ...inputs, ...extra });
    if (i >= Number(args.warmup)) seconds.push(result.seconds);
  }
  const flops = 2 * products * rows * hidden * vocabulary;
  const line = {
    peer: 'troupe',
    variant: 'core',
    op,
    shape,
    dtype: args.dtype,
    device: args.device,
  };
  const measured = { seconds: median(seconds), seconds_all: seconds, valid_tokens: rows };
  console.log(
    JSON.stringify({
      ...line,
      threads: Number(args.threads),
      ...measured,
      tflops: flops / measured.seconds / 1e12,
    }),
  );
}
