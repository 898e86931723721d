// node bench/predicted_drafts.mjs [--model DIRECTORY] [--save DIRECTORY]: what drafts by a model's own layer for further tokens gain in one worker: tokens per
// second without them and with them, by temperature, requests at a time and tokens of a draft. Without a model it trains one first, over bytes, on the pages of
// docs/ (but for the two that are generated), of which the first 20,000 bytes are kept for prompts: 300 steps take some ten minutes on two cores. So small a
// model is computed in no time at all; to read as many weights as a larger one it gets layers (--layers) that add nothing to a row, and cost what others do.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from '../scripts/command_line.mjs';
import { median } from './measure.mjs';
import { Random } from './random.mjs';
import { writeSafetensors } from './safetensors_file.mjs';
import { scratchDirectory } from './scratch.mjs';

const { Actor, Batch } = createRequire(import.meta.url)('../dist/index.js');

const { values } = commandLine({
  options: {
    model: { type: 'string' },
    save: { type: 'string' },
    steps: { type: 'string', least: 0, default: '300' },
    layers: { type: 'string', least: 1, default: '48' },
    dtype: { type: 'string', default: 'float32' },
    requests: { type: 'string', least: 1, list: true, default: '1,4,8' },
    drafts: { type: 'string', least: 1, list: true, default: '1,3' },
    temperatures: { type: 'string', default: '1,0.5,0' },
  },
});
const numbers = (list) => list.split(',').map(Number);

const DOCS = fileURLToPath(new URL('../docs/', import.meta.url));
const HELD = 20_000;
const PROMPT = 128;
const LENGTH = 192;
const ROUNDS = 5;
const SIZES = { hidden: 256, layers: 6, heads: 4, kvHeads: 2, dim: 64, ffn: 768, bytes: 256 };

const pages = readdirSync(DOCS).filter((name) => /^(?!api|config).*\.md$/.test(name));
const text = Buffer.concat(pages.map((name) => readFileSync(join(DOCS, name))));

/** MiMo's layers, small, with random weights. */
function writeModel(directory) {
  const { hidden, layers, heads, kvHeads, dim, ffn, bytes } = SIZES;
  const random = new Random(1);
  const tensors = [];
  const add = (name, shape, of) =>
    tensors.push([
      name,
      'F32',
      shape,
      () => Float32Array.from({ length: shape.reduce((a, b) => a * b) }, of),
    ]);
  const matrix = (name, rows, columns) => add(name, [rows, columns], () => 0.02 * random.normal());
  const vector = (name, size, value) => add(name, [size], () => value);
  const block = (name) => {
    for (const norm of ['input_layernorm', 'post_attention_layernorm'])
      vector(`${name}.${norm}.weight`, hidden, 1);
    for (const [part, count] of [
      ['q', heads],
      ['k', kvHeads],
      ['v', kvHeads],
    ]) {
      matrix(`${name}.self_attn.${part}_proj.weight`, count * dim, hidden);
      vector(`${name}.self_attn.${part}_proj.bias`, count * dim, 0);
    }
    matrix(`${name}.self_attn.o_proj.weight`, hidden, heads * dim);
    for (const part of ['gate', 'up']) matrix(`${name}.mlp.${part}_proj.weight`, ffn, hidden);
    matrix(`${name}.mlp.down_proj.weight`, hidden, ffn);
  };
  for (const name of ['model.embed_tokens', 'lm_head']) matrix(`${name}.weight`, bytes, hidden);
  vector('model.norm.weight', hidden, 1);
  for (let layer = 0; layer < layers; layer++) block(`model.layers.${layer}`);
  const further = 'model.mtp_layers.0';
  block(further);
  for (const norm of ['token', 'hidden', 'final']) vector(`${further}.${norm}_layernorm.weight`, hidden, 1);
  matrix(`${further}.input_proj.weight`, hidden, 2 * hidden);
  mkdirSync(directory);
  writeSafetensors(join(directory, 'model.safetensors'), tensors);
  const config = {
    architectures: ['MiMoForCausalLM'],
    model_type: 'mimo',
    hidden_size: hidden,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: dim,
    intermediate_size: ffn,
    vocab_size: bytes,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-5,
    rope_theta: 1e4,
    tie_word_embeddings: false,
    attention_bias: true,
    hidden_act: 'silu',
    num_nextn_predict_layers: 1,
  };
  writeFileSync(join(directory, 'config.json'), JSON.stringify(config));
}

async function train(from, to) {
  const optim = { lr: 1e-3, betas: [0.9, 0.98] };
  const mtp = { lossScalingFactor: 0.3 };
  const actor = await Actor.create({ model: from, numThreads: 2, device: 'cpu', mtp, optim });
  const random = new Random(2);
  const rows = 16;
  const length = 256;
  const steps = Number(values.steps);
  for (let step = 0; step < steps; step++) {
    const passages = Array.from({ length: rows }, () => {
      const start = HELD + random.integer(text.length - HELD - length);
      return [...text.subarray(start, start + length)];
    });
    const batch = Batch.fromSequences(
      passages.map((ids) => ids.slice(0, 1)),
      passages.map((ids) => ids.slice(1)),
    );
    const metrics = await actor.updateSft(batch);
    if (step % 50 === 0 || step + 1 === steps) {
      const of = (name) => metrics[name].toFixed(2);
      console.log(
        `step ${step}: loss ${of('actor/loss')}, of the layer ${of('actor/mtp_losses/mtp_1_loss')}`,
      );
    }
  }
  await actor.saveModel(to, { dtype: 'float32' });
  await actor.close();
}

/** The model with layers behind its own whose output projections are zero: what it says stays the same. */
function deepen(from, to) {
  const bytes = readFileSync(join(from, 'model.safetensors'));
  const size = Number(bytes.readBigUInt64LE(0));
  const { __metadata__: _, ...header } = JSON.parse(bytes.subarray(8, 8 + size).toString());
  const config = JSON.parse(readFileSync(join(from, 'config.json'), 'utf8'));
  const layers = Number(values.layers);
  const tensors = [];
  for (const [name, { shape, data_offsets }] of Object.entries(header)) {
    const [begin, end] = data_offsets.map((offset) => 8 + size + offset);
    const own = () => bytes.subarray(begin, end);
    tensors.push([name, 'F32', shape, own]);
    const part = /^model\.layers\.0\.(.*)$/.exec(name)?.[1];
    if (part === undefined) continue;
    const adds = /^(self_attn\.o_proj|mlp\.down_proj)\./.test(part);
    for (let layer = config.num_hidden_layers; layer < layers; layer++)
      tensors.push([
        `model.layers.${layer}.${part}`,
        'F32',
        shape,
        adds ? () => new Uint8Array(end - begin) : own,
      ]);
  }
  mkdirSync(to);
  writeSafetensors(join(to, 'model.safetensors'), tensors);
  writeFileSync(join(to, 'config.json'), JSON.stringify({ ...config, num_hidden_layers: layers }));
}

async function rate(speculative, count, temperature) {
  const actor = await Actor.create({
    model,
    optim: null,
    numThreads: 2,
    device: 'cpu',
    dtype: values.dtype,
    ...(speculative === null ? {} : { mtp: { train: false } }),
    rollout: {
      freeCacheEngine: false,
      kvCacheBytes: 2 ** 28,
      ...(speculative === null ? {} : { speculative }),
    },
  });
  try {
    const ask = (round) =>
      Promise.all(
        Array.from({ length: count }, (_, i) => {
          const start = ((round * count + i) * 997) % (HELD - PROMPT);
          return actor.rollout.submit({
            promptIds: [...text.subarray(start, start + PROMPT)],
            sampling: { maxNewTokens: LENGTH, temperature, seed: BigInt(i), stopTokenIds: [] },
          }).result;
        }),
      );
    await ask(0);
    const before = await actor.rollout.stats();
    const rates = [];
    for (let round = 1; round <= ROUNDS; round++) {
      const started = performance.now();
      await ask(round);
      rates.push((count * LENGTH * 1000) / (performance.now() - started));
    }
    const after = await actor.rollout.stats();
    const of = (name) => after[name] - before[name];
    return {
      rate: median(rates),
      right: of('acceptedTokens') / of('draftedTokens'),
      perStep: 1 + of('acceptedTokens') / of('drafts'),
    };
  } finally {
    await actor.close();
  }
}

const directory = scratchDirectory('predicted-drafts');
const trained = values.model ?? values.save ?? join(directory, 'trained');
if (values.model === undefined) {
  writeModel(join(directory, 'model'));
  await train(join(directory, 'model'), trained);
}
const model = join(directory, 'deep');
deepen(trained, model);
for (const temperature of numbers(values.temperatures)) {
  for (const count of numbers(values.requests)) {
    const plain = await rate(null, count, temperature);
    for (const numSpeculativeTokens of numbers(values.drafts)) {
      const own = await rate({ method: 'mtp', numSpeculativeTokens }, count, temperature);
      console.log(
        `temperature ${temperature}, ${count} at a time, ${numSpeculativeTokens} drafted: ${plain.rate.toFixed(0)} tokens/s without, ` +
          `${(own.rate / plain.rate).toFixed(2)} times with; ${(100 * own.right).toFixed(0)} % right, ${own.perStep.toFixed(2)} tokens per draft's step`,
      );
    }
  }
}
