// node bench/plan.mjs [options]: what `troupe plan` predicts against what a worker's resident set reaches. See docs/planning.md.
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const require = createRequire(import.meta.url);
const { Actor, Batch, WorkerGroup } = require('../dist/index.js');
const { resolveModelConfig } = require('../dist/model/hf_config.js');
const { tensorMapping } = require('../dist/model/tensor_names.js');
const { EngineMemory } = require('../dist/planner/engine_memory.js');
const { ON_DEVICE } = require('../dist/planner/placement.js');
const { ONE_MODEL } = require('../dist/planner/places.js');
const { planMemory } = require('../dist/planner/plan.js');
const { imageLimits, imagesWithin } = require('../dist/planner/prompt_images.js');
const { configWithTower } = require('../dist/engine/role_model.js');
const { roleAdapters } = require('../dist/roles/role_adapters.js');

const WORK = join(resolve(dirname(fileURLToPath(import.meta.url)), '..'), '.troupe', 'bench', 'plan');
const MIB = 2 ** 20;
const USAGE = `usage: node bench/plan.mjs [options]
  --models a,b        of qwen2-40m, llama-60m, qwen3-30m, mixtral-50m (default all these), qwen3-vl-50m, qwen2.5-vl-50m, whose
                      sequences are of images but for one token
  --capacities a,b    tokens per micro-batch (default 1024,4096)
  --dtypes a,b        of float32, bfloat16 (default both)
  --verbs a,b         of compute_log_prob, update, update+checkpointing (default all); also +frozen: the tower, and +lora
  --workers N         ranks that share the model, full_shard (default 1)
  --pipeline N        of which so many are stages (default 1)
  --ulysses N         of which so many share micro-batches of so many times the capacity (default 1)
  --threads N         compute threads of a worker (default 2)
  --length N          tokens of a sequence, of which three quarters are the response (default 512)
  --keep-freed        let the worker keep what it frees, as it does by default; without it every large block goes back to the
                      system, so that the resident set is what is allocated
  --markdown          a Markdown table at the end`;

/** Shapes that differ in what dominates: layers and head, wide layers, vocabulary and q/k norm, experts. */
const MODELS = {
  tiny: {
    model_type: 'llama',
    hidden_size: 32,
    intermediate_size: 64,
    num_hidden_layers: 2,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    vocab_size: 256,
  },
  'qwen2-40m': {
    model_type: 'qwen2',
    hidden_size: 512,
    intermediate_size: 1536,
    num_hidden_layers: 8,
    num_attention_heads: 8,
    num_key_value_heads: 2,
    vocab_size: 32000,
    tie_word_embeddings: true,
  },
  'llama-60m': {
    model_type: 'llama',
    hidden_size: 1024,
    intermediate_size: 2816,
    num_hidden_layers: 4,
    num_attention_heads: 16,
    num_key_value_heads: 4,
    vocab_size: 8000,
    tie_word_embeddings: false,
  },
  'qwen3-30m': {
    model_type: 'qwen3',
    hidden_size: 256,
    intermediate_size: 1024,
    num_hidden_layers: 12,
    head_dim: 64,
    num_attention_heads: 8,
    num_key_value_heads: 4,
    vocab_size: 64000,
    tie_word_embeddings: true,
  },
  'mixtral-50m': {
    model_type: 'mixtral',
    hidden_size: 384,
    intermediate_size: 768,
    num_hidden_layers: 6,
    num_attention_heads: 6,
    num_key_value_heads: 2,
    vocab_size: 8000,
    num_local_experts: 8,
    num_experts_per_tok: 2,
  },
  'qwen3-vl-50m': {
    model_type: 'qwen3_vl',
    image_token_id: 7999,
    text_config: {
      model_type: 'qwen3_vl_text',
      hidden_size: 512,
      intermediate_size: 1536,
      num_hidden_layers: 6,
      head_dim: 64,
      num_attention_heads: 8,
      num_key_value_heads: 2,
      vocab_size: 8000,
      max_position_embeddings: 32768,
      rms_norm_eps: 1e-6,
      rope_parameters: { rope_type: 'default', rope_theta: 1e6, mrope_section: [12, 10, 10] },
    },
    vision_config: {
      depth: 6,
      hidden_size: 384,
      intermediate_size: 1024,
      num_heads: 6,
      patch_size: 16,
      num_position_embeddings: 1024,
      out_hidden_size: 512,
      deepstack_visual_indexes: [1, 3],
    },
  },
  'qwen2.5-vl-50m': {
    model_type: 'qwen2_5_vl',
    image_token_id: 7999,
    hidden_size: 512,
    intermediate_size: 1536,
    num_hidden_layers: 6,
    num_attention_heads: 8,
    num_key_value_heads: 2,
    vocab_size: 8000,
    rope_scaling: { type: 'mrope', mrope_section: [12, 10, 10] },
    vision_config: {
      depth: 6,
      hidden_size: 384,
      intermediate_size: 1024,
      num_heads: 6,
      patch_size: 14,
      window_size: 112,
      fullatt_block_indexes: [2, 5],
      out_hidden_size: 512,
    },
  },
}; // prettier-ignore

function readArguments() {
  try {
    const { values } = parseArgs({
      options: {
        models: { type: 'string', default: 'qwen2-40m,llama-60m,qwen3-30m,mixtral-50m' },
        capacities: { type: 'string', default: '1024,4096' },
        dtypes: { type: 'string', default: 'float32,bfloat16' },
        verbs: { type: 'string', default: 'compute_log_prob,update,update+checkpointing' },
        workers: { type: 'string', default: '1' },
        ulysses: { type: 'string', default: '1' },
        pipeline: { type: 'string', default: '1' },
        threads: { type: 'string', default: '2' },
        length: { type: 'string', default: '512' },
        'keep-freed': { type: 'boolean', default: false },
        markdown: { type: 'boolean', default: false },
        help: { type: 'boolean', short: 'h', default: false },
      },
    });
    return values;
  } catch (error) {
    console.error(`${error.message}\n${USAGE}`);
    process.exit(2);
  }
}

/** A model directory with random weights, made once. */
function modelDirectory(name) {
  const directory = join(WORK, name);
  if (existsSync(join(directory, 'model.safetensors'))) return directory;
  mkdirSync(directory, { recursive: true });
  const raw = { max_position_embeddings: 32768, rms_norm_eps: 1e-6, ...MODELS[name] };
  writeFileSync(join(directory, 'config.json'), JSON.stringify(raw));
  if (raw.vision_config !== undefined) {
    const processor = {
      size: { shortest_edge: 1, longest_edge: 2 ** 30 },
      patch_size: raw.vision_config.patch_size,
      merge_size: 2,
      image_mean: [0.5, 0.5, 0.5],
      image_std: [0.5, 0.5, 0.5],
    };
    writeFileSync(join(directory, 'preprocessor_config.json'), JSON.stringify(processor));
  }
  const tensors = tensorMapping(resolveModelConfig(raw, 'lm', name).native);
  const header = {};
  let offset = 0;
  for (const { hf, shape } of tensors) {
    const bytes = 4 * shape.reduce((n, extent) => n * extent, 1);
    header[hf] = { dtype: 'F32', shape, data_offsets: [offset, offset + bytes] };
    offset += bytes;
  }
  const json = Buffer.from(JSON.stringify(header).padEnd(64, ' '));
  const file = Buffer.alloc(8 + json.length + offset);
  file.writeBigUInt64LE(BigInt(json.length));
  json.copy(file, 8);
  let state = 1;
  for (let at = 8 + json.length; at < file.length; at += 4) {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    file.writeFloatLE((state / 2 ** 31) * 0.03, at);
  }
  writeFileSync(join(directory, 'model.safetensors'), file);
  return directory;
}

/** Any size. */
const limitsOf = ({ vision }) => imageLimits(WORK, vision, { min_pixels: null, max_pixels: null });

const responseOf = (length, vision) => (vision === null ? length - Math.ceil(length / 4) : 1);

/** Those that the plan has in a prompt of so many tokens. */
function images(tokens, config, number) {
  const side = config.vision.patchSize * config.vision.mergeSize;
  return imagesWithin(tokens, limitsOf(config)).map(({ height, width }, i) => {
    const pixels = new Uint8Array(3 * height * width * side ** 2).fill(i);
    new DataView(pixels.buffer).setInt32(0, number);
    return { height: height * side, width: width * side, pixels };
  });
}

const SMALL = { vision: null, vocabSize: 256 };

/** Sequences with prompts of their own, for as many full micro-batches per worker (or per group of them) as the plan looks at: two, or one more than stages. */
function batchOf(capacity, length, config) {
  const each = Math.max(1, Math.floor((ulysses * capacity) / (length - 1)));
  const count = (workers / ulysses / pipeline) * (pipeline + 1) * each;
  const { vision, vocabSize } = config;
  const prompt = length - responseOf(length, vision);
  const token = (i, t) => (i * 7919 + t * 31 + 1) % (vocabSize - 1);
  const sequence = (i, from, to) => Array.from({ length: to - from }, (_, t) => token(i, from + t));
  const indices = Array.from({ length: count }, (_, i) => i);
  const all = vision && indices.map((i) => images(prompt, config, i));
  const ofImages = vision
    ? imagesWithin(prompt, limitsOf(config)).reduce((n, { height, width }) => n + height * width, 0)
    : 0;
  const batch = Batch.fromSequences(
    indices.map((i) => [
      ...sequence(i, 0, prompt - ofImages),
      ...new Array(ofImages).fill(vision?.imageToken),
    ]),
    indices.map((i) => sequence(i, prompt, length)),
    vision ? { images: all } : {},
  );
  const zeros = new Float32Array(batch.numResponseTokens);
  return batch.with({ oldLogProbs: zeros, advantages: zeros.map((_, i) => Math.sin(i)) });
}

/** What /proc says about each worker: they are the only children of this process. */
function workerStatuses() {
  const found = [];
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
      if (Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]) === process.pid)
        found.push(readFileSync(`/proc/${pid}/status`, 'utf8'));
    } catch {
      // The process ended while we looked.
    }
  }
  return found;
}
const statusBytes = (name) =>
  workerStatuses().map((status) => Number(status.match(new RegExp(`^${name}:\\s*(\\d+) kB`, 'm'))[1]) * 1024);

async function call(actor, verb, batch) {
  // Moments take up memory from the first optimiser step on: the second pass has them.
  if (verb === 'update') await actor.updatePolicy(batch, { ppoEpochs: 2 });
  else await actor.computeLogProb(batch, { entropy: true });
}

/** Bytes by which a worker's peak exceeds what it holds after the same calls on a model of a few kilobytes. */
async function measure({ directory, verb, capacity, dtype, checkpointing, frozen, lora, threads, batch }) {
  const env = args['keep-freed']
    ? {}
    : { TROUPE_RETURN_FREED_MEMORY: '1', GLIBC_TUNABLES: 'glibc.malloc.mmap_threshold=65536' };
  const launcher = { env };
  const group = await WorkerGroup.launch({
    worldSize: workers,
    device: 'cpu',
    numThreads: threads,
    launcher,
  });
  try {
    const engine = {
      group,
      dtype,
      gradientCheckpointing: checkpointing,
      activationOffload: false,
      optim: verb === 'update' ? {} : null,
      numThreads: threads,
    };
    const small = await Actor.create({
      ...engine,
      model: modelDirectory('tiny'),
      name: 'tiny',
      maxTokensPerMicroBatch: 512,
      parallel: { pp: pipeline },
    });
    await call(small, verb, batchOf(256, 64, SMALL));
    await small.close();
    const baselines = statusBytes('VmRSS');
    const actor = await Actor.create({
      ...engine,
      model: directory,
      maxTokensPerMicroBatch: ulysses * capacity,
      parallel: { ulysses, pp: pipeline },
      ...(frozen ? { freezeVisionTower: true } : {}),
      ...(lora ? { lora: LORA } : {}),
    });
    await call(actor, verb, batch);
    const growth = statusBytes('VmHWM').map((peak, rank) => peak - baselines[rank]);
    return { baseline: Math.max(...baselines), measured: Math.max(...growth) };
  } finally {
    await group.close();
  }
}

async function predict(one) {
  const { config, verb, capacity, dtype, checkpointing, frozen, lora, threads, batch, length } = one;
  const load = {
    sequences: (ulysses * pipeline * batch.size) / workers,
    longest: length,
    response: responseOf(length, config.vision),
  };
  const model = configWithTower(config, frozen);
  const adapters = lora
    ? roleAdapters({ model: one.directory, lora: { lora: LORA }, keys: { lora: 'lora' } }, model)
    : null;
  const role = {
    name: 'actor',
    model,
    ...(adapters === null ? {} : { lora: adapters }),
    ...(model.vision === null ? {} : { images: limitsOf(model) }),
    fileDtypes: new Map(tensorMapping(config).map(({ hf }) => [hf, 'F32'])),
    dtype,
    strategy: 'full_shard',
    shardSize: null,
    ulysses,
    layout: { ...ONE_MODEL, pipeline: { ...ONE_MODEL.pipeline, stages: pipeline } },
    capacity,
    gradientCheckpointing: checkpointing,
    activationOffload: false,
    inference: verb === 'update' ? null : load,
    update: verb === 'update' ? load : null,
    rollouts: [],
    placement: ON_DEVICE,
    keys: {
      capacity: '',
      dtype: '',
      gradientCheckpointing: '',
      activationOffload: '',
      layout: '',
      sharding: '',
      placement: '',
    },
  };
  const spec = { device: 'cpu', worldSize: workers, threads, memory: null, roles: [role] };
  const { phases } = await planMemory(spec, engines);
  // Nothing is saved here; and where freed memory goes back, loading is over when gradients and moments come.
  const over = (phase) =>
    phase.verb === 'save' || (verb === 'update' && phase.verb === 'load' && !args['keep-freed']);
  const totals = phases
    .filter((phase) => !over(phase))
    .map(({ instant, total, memory }) => ({ instant, predicted: total - memory.process }));
  return totals.reduce((most, one) => (one.predicted > most.predicted ? one : most));
}

function* cases(args) {
  for (const name of args.models.split(','))
    for (const dtype of args.dtypes.split(','))
      for (const capacity of args.capacities.split(',').map(Number)) {
        for (const verb of args.verbs.split(',')) {
          const [call, ...options] = verb.split('+');
          const [checkpointing, frozen, lora] = ['checkpointing', 'frozen', 'lora'].map((option) =>
            options.includes(option),
          );
          yield { name, dtype, capacity, verb: call, checkpointing, frozen, lora };
        }
      }
}

const args = readArguments();
if (args.help) {
  console.log(USAGE);
  process.exit(0);
}
const [threads, length, workers, ulysses, pipeline] = [
  args.threads,
  args.length,
  args.workers,
  args.ulysses,
  args.pipeline,
].map(Number);
const LORA = { rank: 8 };
const engines = new EngineMemory();
const rows = [];
for (const one of cases(args)) {
  if (MODELS[one.name] === undefined) throw new Error(`unknown model ${one.name}\n${USAGE}`);
  const directory = modelDirectory(one.name);
  const raw = JSON.parse(readFileSync(join(directory, 'config.json'), 'utf8'));
  const config = resolveModelConfig(raw, 'lm', directory).native;
  const batch = batchOf(one.capacity, length, config);
  const all = { ...one, directory, config, batch, threads, length };
  const { predicted, instant } = await predict(all);
  const { measured, baseline } = await measure(all);
  const row = { ...one, instant, predicted, measured, baseline, ratio: predicted / measured };
  rows.push(row);
  console.log(JSON.stringify(row));
}
await engines.close();
const worst = rows.reduce((most, { ratio }) => Math.max(most, Math.abs(ratio - 1)), 0);
console.error(`${rows.length} cases, predicted / measured off by at most ${(100 * worst).toFixed(1)} %`);
if (args.markdown) {
  console.log(
    '| model | dtype | capacity | verb | checkpointing | tower, adapters | peak at | predicted MiB | measured MiB | ratio |',
  );
  console.log('| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |');
  for (const r of rows) {
    const mib = (bytes) => (bytes / MIB).toFixed(0);
    const cells = [
      r.name,
      r.dtype,
      r.capacity,
      r.verb,
      r.verb === 'update' ? (r.checkpointing ? 'yes' : 'no') : '-',
      [r.frozen ? 'frozen' : [], r.lora ? 'LoRA' : []].flat().join(' '),
    ];
    console.log(
      `| ${[...cells, r.instant, mib(r.predicted), mib(r.measured), r.ratio.toFixed(2)].join(' | ')} |`,
    );
  }
}
