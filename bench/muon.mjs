// node bench/muon.mjs [--hidden 1024] [--ffn 2816] [--layers 4] [--threads 2]: seconds of an optimiser step by Muon, with products of the iteration in
// bfloat16 and in float32: those of an update on one short sequence, less those of the same update by AdamW, whose own step is one pass over memory. Beside them torch.optim.Muon on the same matrices, in turn, and how long the products alone take there (TROUPE_PYTHON).
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from '../scripts/command_line.mjs';
import { writeWeights } from './make_case.mjs';
import { median } from './measure.mjs';
import { Python } from './python.mjs';
import { Random } from './random.mjs';
import { scratchDirectory } from './scratch.mjs';

const { Actor, Batch } = createRequire(import.meta.url)('../dist/index.js');

const { values } = commandLine({
  options: {
    hidden: { type: 'string', least: 64, default: '1024' },
    ffn: { type: 'string', least: 64, default: '2816' },
    layers: { type: 'string', least: 1, default: '4' },
    threads: { type: 'string', least: 1, default: '2' },
    rounds: { type: 'string', least: 1, default: '5' },
  },
});
const [hidden, ffn, layers, threads, rounds] = ['hidden', 'ffn', 'layers', 'threads', 'rounds'].map((name) =>
  Number(values[name]),
);
const HEAD = 64;
const PEER = fileURLToPath(new URL('peer/peer_muon.py', import.meta.url));

const config = {
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  hidden_size: hidden,
  num_hidden_layers: layers,
  num_attention_heads: hidden / HEAD,
  num_key_value_heads: hidden / HEAD,
  intermediate_size: ffn,
  vocab_size: 1000,
  max_position_embeddings: 64,
  rms_norm_eps: 1e-5,
  torch_dtype: 'float32',
};
const shapes = Array.from({ length: layers }, () => [
  ...Array.from({ length: 4 }, () => [hidden, hidden]),
  ...Array.from({ length: 2 }, () => [ffn, hidden]),
  [hidden, ffn],
]).flat();

const directory = scratchDirectory('muon');
const model = join(directory, 'model');
mkdirSync(model);
writeWeights(model, config, new Random(1));
const python = new Python(fileURLToPath(new URL('../.troupe/peers', import.meta.url)));
await python.prepare(false);

const FORMS = { adamw: {}, bfloat16: { muon: {} }, float32: { muon: { dtype: 'float32' } } };
const seconds = { adamw: [], bfloat16: [], float32: [], peer: [] };
const products = { bfloat16: [], float32: [] };
const actors = {};
for (const [form, optim] of Object.entries(FORMS))
  actors[form] = await Actor.create({ model, numThreads: threads, device: 'cpu', dtype: 'float32', optim });
const batch = Batch.fromSequences([[1, 2, 3, 4]], [[5, 6, 7, 8]]);
for (let round = 0; round <= rounds; round++) {
  for (const [form, actor] of Object.entries(actors)) {
    const started = performance.now();
    await actor.updateSft(batch);
    if (round > 0) seconds[form].push((performance.now() - started) / 1000);
  }
  const [peer] = await python.jsonLines(PEER, [
    String(threads),
    '1',
    ...shapes.map((shape) => shape.join('x')),
  ]);
  if (round === 0) continue;
  seconds.peer.push(...peer.seconds);
  for (const dtype of Object.keys(products)) products[dtype].push(peer[dtype]);
}
for (const actor of Object.values(actors)) await actor.close();

const rest = median(seconds.adamw);
console.log(
  `${layers} layers of ${hidden} x ${hidden} and ${ffn} x ${hidden}, ${threads} threads; an update by AdamW: ${rest.toFixed(3)} s`,
);
for (const dtype of ['bfloat16', 'float32']) {
  const own = median(seconds[dtype]) - rest;
  const floor = median(products[dtype]);
  console.log(
    `Muon in ${dtype}: ${own.toFixed(3)} s more, ${(own / floor).toFixed(2)} times its products alone (${floor.toFixed(3)} s)`,
  );
}
console.log(`torch.optim.Muon (bfloat16): ${median(seconds.peer).toFixed(3)} s`);
