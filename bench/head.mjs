// linear_log_prob alone, one process: node bench/head.mjs TxHxV [options]. Forward with entropies, and forward with the gradients
// of hidden states and weight. One JSON line each.
import { createRequire } from 'node:module';
import { parseArgs } from 'node:util';
import { median } from './measure.mjs';
import { NormalPool, Random } from './random.mjs';

const { loadBinding } = createRequire(import.meta.url)('../dist/native/loader.js');

const { values: args, positionals } = parseArgs({
  options: Object.fromEntries(
    Object.entries({ repeat: '3', warmup: '1', threads: '2', dtype: 'fp32', device: 'cpu' }).map(
      ([name, value]) => [name, { type: 'string', default: value }],
    ),
  ),
  allowPositionals: true,
});
const [rows, hidden, vocabulary] = positionals[0].split('x').map(Number);
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
    shape: positionals[0],
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
