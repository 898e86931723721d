import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { Case } from './case.mjs';
import { INIT_STD, modelConfig, modelTensors } from './presets.mjs';
import { NormalPool, Random } from './random.mjs';
import { toBfloat16, writeSafetensors } from './safetensors_file.mjs';

const PAD = 0;
/** Spread of the logarithm of response lengths. */
const SIGMA = 0.8;

/** A model of this config.json: matrices and biases N(0, INIT_STD), norms and scales of layers 1 + 0.1 N(0, 1). */
export function writeWeights(directory, config, random) {
  const dtype = config.torch_dtype === 'float32' ? 'F32' : 'BF16';
  // The shapes of published models have billions of weights.
  const pool =
    dtype === 'BF16' ? new NormalPool(random, (all) => toBfloat16(all.map((x) => INIT_STD * x))) : null;
  const tensors = modelTensors(config).map(([name, shape]) => {
    const count = shape.reduce((all, size) => all * size, 1);
    const values = () => {
      const norm = /norm|layer_scalar/.test(name);
      if (pool !== null && !norm) return pool.take(count);
      const numbers = new Float32Array(count);
      for (let i = 0; i < count; i++)
        numbers[i] = norm ? 1 + 0.1 * random.normal() : INIT_STD * random.normal();
      return dtype === 'F32' ? numbers : toBfloat16(numbers);
    };
    return [name, dtype, shape, values];
  });
  writeSafetensors(join(directory, 'model.safetensors'), tensors);
  writeFileSync(join(directory, 'config.json'), `${JSON.stringify(config, null, 2)}\n`);
}

/** Log-normal lengths of about this mean, clipped to [low, high]. */
function lengths(count, mean, low, high, random) {
  const mu = Math.log(mean) - SIGMA ** 2 / 2;
  return Array.from({ length: count }, () =>
    Math.min(high, Math.max(low, Math.round(Math.exp(mu + SIGMA * random.normal())))),
  );
}

/** Prompts padded on the left to P, responses on the right to R; the `n` rows of a group share their prompt. */
function makeBatch(vocabulary, { prompts, n, promptLength: P, responseLength: R, full }, random) {
  const rows = prompts * n;
  const token = () => BigInt(1 + random.integer(vocabulary - 1));
  const columns = {
    input_ids: new BigInt64Array(rows * (P + R)).fill(BigInt(PAD)),
    attention_mask: new BigInt64Array(rows * (P + R)),
    position_ids: new BigInt64Array(rows * (P + R)),
    responses: new BigInt64Array(rows * R).fill(BigInt(PAD)),
    response_mask: new BigInt64Array(rows * R),
  };
  const promptLengths = lengths(prompts, 0.6 * P, full ? P : Math.min(8, P), P, random);
  const responseLengths = lengths(rows, 0.45 * R, full ? R : Math.min(8, R), R, random);
  for (let group = 0; group < prompts; group++) {
    const prompt = Array.from({ length: promptLengths[group] }, token);
    for (let row = group * n; row < (group + 1) * n; row++) {
      const response = Array.from({ length: responseLengths[row] }, token);
      const start = row * (P + R) + P - prompt.length;
      columns.input_ids.set([...prompt, ...response], start);
      columns.responses.set(response, row * R);
      columns.response_mask.fill(1n, row * R, row * R + response.length);
      for (let i = 0; i < prompt.length + response.length; i++) {
        columns.attention_mask[start + i] = 1n;
        columns.position_ids[start + i] = BigInt(i);
      }
    }
  }
  return { columns, rows, P, R };
}

function writeBatch(directory, { columns, rows, P, R }, floats) {
  const shape = (name) => [rows, name === 'responses' || name === 'response_mask' ? R : P + R];
  writeSafetensors(join(directory, 'batch.safetensors'), [
    ...Object.entries(columns).map(([name, values]) => [name, 'I64', shape(name), () => values]),
    ...Object.entries(floats).map(([name, values]) => [name, 'F32', [rows, R], () => values]),
  ]);
}

/** Columns of floats that are zero on padding. */
function floatColumn(batch, values) {
  const column = new Float32Array(batch.rows * batch.R);
  let k = 0;
  batch.columns.response_mask.forEach((bit, i) => {
    if (bit) column[i] = values(k++);
  });
  return column;
}

/** Log-probs of the case's own model, so that the ratios of an update are near one. */
async function modelLogProbs(directory, threads, device) {
  const { Actor, Batch } = createRequire(import.meta.url)('../dist/index.js');
  const made = new Case(directory);
  const longest = Math.max(...made.lengths);
  const actor = await Actor.create({
    model: made.modelDirectory,
    optim: null,
    device,
    numThreads: threads,
    maxTokensPerMicroBatch: Math.max(4096, longest),
  });
  try {
    return (await actor.computeLogProb(made.batch(Batch))).logProbs;
  } finally {
    await actor.close();
  }
}

/** A model of a preset with random weights, without a tokenizer. */
export function writeModel(directory, preset, seed) {
  writeWeights(directory, modelConfig(preset), new Random(seed));
}

/**
 * Makes a case: a model with random weights, a value head, and one batch in verl's layout. It appears under its name when it
 * is complete. old_log_probs are the model's own plus 0.1 N(0, 1).
 * @param {string} directory where the case goes
 * @param {{ preset: string, prompts: number, n: number, promptLength: number, responseLength: number, seed: number,
 *   full: boolean, threads: number, device: string }} options full: every sequence has the largest length
 */
export async function makeCase(directory, options) {
  const partial = `${directory}.partial`;
  rmSync(partial, { recursive: true, force: true });
  mkdirSync(join(partial, 'model'), { recursive: true });
  const random = new Random(options.seed);
  const config = modelConfig(options.preset);
  writeWeights(join(partial, 'model'), config, random);
  const head = Float32Array.from({ length: config.hidden_size }, () => INIT_STD * random.normal());
  writeSafetensors(join(partial, 'critic_head.safetensors'), [
    ['score.weight', 'F32', [1, config.hidden_size], () => head],
    ['score.bias', 'F32', [1], () => new Float32Array(1)],
  ]);
  const batch = makeBatch(config.vocab_size, options, random);
  const normals = () => floatColumn(batch, () => random.normal());
  const floats = Object.fromEntries(
    ['old_log_probs', 'ref_log_prob', 'advantages', 'returns', 'values'].map((name) => [name, normals()]),
  );
  const { preset, prompts, n, seed } = options;
  const meta = {
    preset,
    prompts,
    n,
    prompt_len: batch.P,
    response_len: batch.R,
    sigma: SIGMA,
    seed,
    weights: true,
  };
  writeFileSync(join(partial, 'case.json'), `${JSON.stringify({ ...meta, pad_token_id: PAD }, null, 2)}\n`);
  writeBatch(partial, batch, floats);
  const logProbs = await modelLogProbs(partial, options.threads, options.device);
  for (const name of ['old_log_probs', 'ref_log_prob'])
    floats[name] = floatColumn(batch, (k) => logProbs[k] + 0.1 * random.normal());
  writeBatch(partial, batch, floats);
  if (existsSync(directory)) rmSync(directory, { recursive: true });
  renameSync(partial, directory);
}
