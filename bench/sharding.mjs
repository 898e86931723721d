// node bench/sharding.mjs [MODEL] [--workers 4] [--updates 1]: memory per rank and bytes sent per update for every strategy, beside
// the theory, and seconds per update. See docs/benchmarks.md. MODEL: a Hugging Face directory; default: a made one of 30 M.
import { mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { writeSafetensors } from './safetensors_file.mjs';

const require = createRequire(import.meta.url);
const { Actor, Batch } = require('../dist/index.js');

const MIB = 2 ** 20;
const SEQUENCES = 16;
const TOKENS = 64;
const CAPACITY = 512;
const VOCABULARY = 4096;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { workers: { type: 'string', default: '4' }, updates: { type: 'string', default: '1' } },
});
const workers = Number(values.workers);
const updates = Number(values.updates);

/** A Qwen2 of 8 layers with made-up weights: what it computes does not matter here. */
function madeModel() {
  const [hidden, intermediate, layers, heads] = [512, 1536, 8, 8];
  const directory = join('.troupe', 'bench', 'sharding-model');
  const shapes = { 'model.embed_tokens.weight': [VOCABULARY, hidden], 'model.norm.weight': [hidden] };
  for (let i = 0; i < layers; i++) {
    const at = (name) => `model.layers.${i}.${name}`;
    shapes[at('input_layernorm.weight')] = [hidden];
    shapes[at('post_attention_layernorm.weight')] = [hidden];
    for (const name of ['q', 'k', 'v', 'o']) shapes[at(`self_attn.${name}_proj.weight`)] = [hidden, hidden];
    for (const name of ['q', 'k', 'v']) shapes[at(`self_attn.${name}_proj.bias`)] = [hidden];
    for (const name of ['gate', 'up']) shapes[at(`mlp.${name}_proj.weight`)] = [intermediate, hidden];
    shapes[at('mlp.down_proj.weight')] = [hidden, intermediate];
  }
  mkdirSync(directory, { recursive: true });
  const wave = (count) => new Float32Array(count).map((_, i) => 0.02 * Math.sin(i * 12.9898));
  writeSafetensors(
    join(directory, 'model.safetensors'),
    Object.entries(shapes).map(([name, shape]) => [
      name,
      'F32',
      shape,
      () => wave(shape.reduce((all, size) => all * size, 1)),
    ]),
  );
  const config = {
    architectures: ['Qwen2ForCausalLM'],
    model_type: 'qwen2',
    vocab_size: VOCABULARY,
    hidden_size: hidden,
    intermediate_size: intermediate,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: heads,
    hidden_act: 'silu',
    max_position_embeddings: 1024,
    rms_norm_eps: 1e-6,
    rope_theta: 10000,
    tie_word_embeddings: true,
    eos_token_id: 1,
    torch_dtype: 'float32',
  };
  writeFileSync(join(directory, 'config.json'), JSON.stringify(config));
  return directory;
}

function makeBatch() {
  const ids = (i, n) => Int32Array.from({ length: n }, (_, t) => 2 + ((i * 131 + t * 17) % 97));
  const prompts = Array.from({ length: SEQUENCES }, (_, i) => ids(i, TOKENS / 4));
  const responses = Array.from({ length: SEQUENCES }, (_, i) => ids(i + 7, (TOKENS * 3) / 4));
  const batch = Batch.fromSequences(prompts, responses);
  const column = (f) => Float32Array.from({ length: batch.numResponseTokens }, (_, t) => f(t));
  return batch.with({ oldLogProbs: column(() => -8), advantages: column((t) => Math.sin(t)) });
}

/** Elements of every group of parameters that is gathered at once, as the ranks hold them. */
function groupSizes(parameters, parts) {
  const groups = new Map();
  for (const { name, shape } of parameters) {
    const group = /^layers\.\d+/.exec(name)?.[0] ?? (name.includes('embed') ? 'embed' : 'head');
    const count = shape.reduce((all, size) => all * size, 1);
    groups.set(group, (groups.get(group) ?? 0) + Math.ceil(count / 16) * 16);
  }
  return [...groups].map(([name, count]) => ({ name, count: Math.ceil(count / (16 * parts)) * 16 * parts }));
}

/** Bytes that a rank sends in one update of one mini-batch: the table of docs/distributed.md. */
function theory(sharding, groups, rounds) {
  const share = (workers - 1) / workers;
  const whole = groups.reduce((sum, { count }) => sum + count, 0);
  if (workers === 1) return 0;
  if (sharding === 'no_shard') return 8 * whole * share;
  const last = groups.findLast(({ name }) => name.startsWith('layers.'));
  const once = groups.filter((g) => !g.name.startsWith('layers.') || g === last);
  const first = once.reduce((sum, { count }) => sum + count, 0);
  const gathered = sharding === 'full_shard' ? rounds * (2 * whole - first) : whole;
  return 4 * (gathered + rounds * whole) * share;
}

async function measure(model, worldSize, sharding) {
  const actor = await Actor.create({
    model,
    worldSize,
    device: 'cpu',
    parallel: { sharding },
    maxTokensPerMicroBatch: CAPACITY,
    gradientCheckpointing: true,
  });
  try {
    const { group } = actor.engine;
    const all = (method) => group.callAll(actor.name, method, () => []);
    const batch = makeBatch();
    await actor.updatePolicy(batch);
    const before = await all('bytesSent');
    const started = performance.now();
    for (let i = 0; i < updates; i++) await actor.updatePolicy(batch);
    const seconds = (performance.now() - started) / 1000 / updates;
    const after = await all('bytesSent');
    const [parameters] = await all('parameters');
    const state = (await all('stateBytes')).map((s) => s.parameters + s.gradients + s.moments);
    const peak = (await group.memoryInfo()).map((info) => info.peakRss);
    return {
      state: Math.max(...state),
      peak: Math.max(...peak),
      sent: Math.max(...after.map((bytes, rank) => (bytes - before[rank]) / updates)),
      groups: groupSizes(parameters, sharding === 'no_shard' ? 1 : worldSize),
      seconds,
    };
  } finally {
    await actor.close();
  }
}

const model = positionals[0] ?? madeModel();
console.log(
  `${cpus().length} cores, ${workers} workers, ${SEQUENCES} sequences of ${TOKENS} tokens, capacity ${CAPACITY}`,
);
console.log(
  '| strategy | workers | state, MiB per rank | share of one process | peak RSS, MiB | sent, MiB per rank and update | in theory | s per update |',
);
console.log('| --- | --- | --- | --- | --- | --- | --- | --- |');
const one = await measure(model, 1, 'full_shard');
const row = (name, n, r, expected) =>
  console.log(
    `| ${name} | ${n} | ${(r.state / MIB).toFixed(1)} | ${(r.state / one.state).toFixed(4)} | ${(r.peak / MIB).toFixed(0)} | ` +
      `${(r.sent / MIB).toFixed(2)} | ${(expected / MIB).toFixed(2)} | ${r.seconds.toFixed(2)} |`,
  );
row('one process', 1, one, 0);
const rounds = Math.ceil(((SEQUENCES / workers) * TOKENS) / CAPACITY);
for (const sharding of ['full_shard', 'shard_grad_op', 'no_shard']) {
  const result = await measure(model, workers, sharding);
  row(sharding, workers, result, theory(sharding, result.groups, rounds));
}
