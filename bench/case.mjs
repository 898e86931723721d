import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';

const require = createRequire(import.meta.url);
const ARRAYS = { F32: Float32Array, I64: BigInt64Array, I32: Int32Array };

function readTensor({ file, name, dtype, shape, offset, bytes }) {
  const Type = ARRAYS[dtype];
  if (!Type)
    throw new Error(`${file}: tensor ${name} has dtype ${dtype}; expected one of ${Object.keys(ARRAYS)}`);
  const copy = Uint8Array.prototype.slice.call(readFileSync(file), offset, offset + bytes);
  return { shape, data: new Type(copy.buffer) };
}

/** Multiplications of a layer by token, and by pair of tokens of a sequence (half of them are masked, both products counted). */
function layerMultiplications(c, kind, layer) {
  // Of experts those that a token is sent to, and the router.
  const mlp = c.num_experts
    ? c.hidden_size * (3 * c.num_experts_per_tok * c.moe_intermediate_size + c.num_experts)
    : 3 * c.hidden_size * c.intermediate_size;
  if (kind === 'linear_attention') {
    const keys = c.linear_num_key_heads * c.linear_key_head_dim;
    const values = c.linear_num_value_heads * c.linear_value_head_dim;
    const projections = c.hidden_size * (2 * keys + 3 * values + 2 * c.linear_num_value_heads);
    const convolution = c.linear_conv_kernel_dim * (2 * keys + values);
    // Gated delta rule: S^T k, the correction of S, S^T q.
    return { token: mlp + projections + convolution + 3 * values * c.linear_key_head_dim, pair: 0 };
  }
  if (kind === 'conv') {
    const projections = 4 * c.hidden_size * c.hidden_size;
    return { token: mlp + projections + (c.conv_L_cache + 2) * c.hidden_size, pair: 0 };
  }
  const whole = kind === 'full_attention' ? c.global_head_dim : undefined;
  const headDim = whole ?? c.head_dim ?? c.hidden_size / c.num_attention_heads;
  const heads = c.num_attention_heads * headDim;
  const shares = layer >= c.num_hidden_layers - (c.num_kv_shared_layers ?? 0);
  const keys = shares ? 0 : c.num_key_value_heads * headDim;
  // Of Gemma 4, what a layer makes of its token's numbers.
  const numbers = 3 * c.hidden_size * (c.hidden_size_per_layer_input ?? 0);
  // Beside linear attention it has a gate, as wide as its queries.
  const queries = c.linear_num_key_heads === undefined ? heads : 2 * heads;
  const attention = c.hidden_size * (queries + heads + 2 * keys);
  return { token: mlp + attention + numbers, pair: heads };
}

/** The same of a block of Nemotron-H. */
function blockMultiplications(c, block) {
  if (block === '-') return { token: 2 * c.hidden_size * c.intermediate_size, pair: 0 };
  if (block === '*') {
    const heads = c.num_attention_heads * c.head_dim;
    return { token: 2 * c.hidden_size * (heads + c.num_key_value_heads * c.head_dim), pair: heads };
  }
  const keys = c.n_groups * c.ssm_state_size;
  const values = c.mamba_num_heads * c.mamba_head_dim;
  const projections = c.hidden_size * (2 * keys + 3 * values + c.mamba_num_heads);
  // Mamba 2: what a row adds to the state, and S^T C.
  return { token: projections + 4 * (2 * keys + values) + 2 * values * c.ssm_state_size, pair: 0 };
}

const product = (shape) => shape.reduce((all, size) => all * size, 1);

/** What a case directory of the peers holds: the model configuration, the batch in verl's layout, and its geometry. */
export class Case {
  constructor(directory) {
    const { readHeader } = require('../dist/checkpoint/safetensors.js');
    this.directory = resolve(directory);
    this.meta = JSON.parse(readFileSync(join(directory, 'case.json'), 'utf8'));
    this.config = JSON.parse(readFileSync(join(directory, 'model', 'config.json'), 'utf8'));
    const tensors = readHeader(join(this.directory, 'batch.safetensors')).map((t) => [t.name, readTensor(t)]);
    this.tensors = Object.fromEntries(tensors);
    const { attention_mask, responses, response_mask } = this.tensors;
    const [rows, width] = attention_mask.shape;
    this.responseLength = responses.shape[1];
    this.lengths = Array.from({ length: rows }, (_, i) =>
      attention_mask.data.slice(i * width, (i + 1) * width).reduce((sum, bit) => sum + Number(bit), 0),
    );
    this.validTokens = this.lengths.reduce((sum, length) => sum + length, 0);
    this.responseTokens = response_mask.data.reduce((sum, bit) => sum + Number(bit), 0);
    this.paddedTokens = product(attention_mask.shape);
  }

  get modelDirectory() {
    return join(this.directory, 'model');
  }

  /** The prompts of the groups, once each. */
  prompts(n) {
    const { input_ids, attention_mask } = this.tensors;
    const [rows, width] = attention_mask.shape;
    const length = width - this.responseLength;
    return Array.from({ length: rows / n }, (_, group) => {
      const row = group * n * width;
      const ids = Array.from(input_ids.data.subarray(row, row + length), Number);
      return ids.filter((_, i) => attention_mask.data[row + i]);
    });
  }

  /** The rows as a ragged Batch with the columns that updates need. */
  batch(Batch) {
    const { input_ids, attention_mask, response_mask, ...columns } = this.tensors;
    return Batch.fromPadded({
      inputIds: input_ids.data,
      attentionMask: attention_mask.data,
      responseLength: this.responseLength,
      responseMask: response_mask.data,
      columns: {
        oldLogProbs: columns.old_log_probs.data,
        refLogProbs: columns.ref_log_prob.data,
        advantages: columns.advantages.data,
        returns: columns.returns.data,
        values: columns.values.data,
      },
    });
  }

  /**
   * A token-classification directory beside the case: the same decoder with the case's value head, as two linked shards.
   */
  criticDirectory() {
    const { readHeader } = require('../dist/checkpoint/safetensors.js');
    const directory = `${this.directory}-critic`;
    if (existsSync(join(directory, 'config.json'))) return directory;
    rmSync(directory, { recursive: true, force: true });
    mkdirSync(directory, { recursive: true });
    const shards = {
      'model-00001-of-00002.safetensors': join(this.modelDirectory, 'model.safetensors'),
      'model-00002-of-00002.safetensors': join(this.directory, 'critic_head.safetensors'),
    };
    const weightMap = {};
    for (const [name, file] of Object.entries(shards)) {
      symlinkSync(file, join(directory, name));
      for (const tensor of readHeader(file)) weightMap[tensor.name] = name;
    }
    const index = { metadata: {}, weight_map: weightMap };
    writeFileSync(join(directory, 'model.safetensors.index.json'), JSON.stringify(index));
    const architectures = this.config.architectures.map((name) =>
      name.replace('CausalLM', 'TokenClassification'),
    );
    writeFileSync(
      join(directory, 'config.json'),
      JSON.stringify({ ...this.config, architectures, num_labels: 1 }),
    );
    return directory;
  }

  /**
   * Useful FLOPs of one operation by the peers' formula: padding and recomputation are not counted.
   * null where multiplications are not what it does. forward = 2 (those of the layers) + 2 H V T_resp (critic: 2 H T_resp); update = 3 forward.
   */
  flops(operation) {
    if (operation === 'generate' || operation === 'export_weights' || operation.startsWith('linear'))
      return null;
    const c = this.config;
    const squares = this.lengths.reduce((sum, length) => sum + length * length, 0);
    const kinds = c.layer_types ?? Array(c.num_hidden_layers).fill('full_attention');
    const blocks = c.hybrid_override_pattern;
    const parts = blocks
      ? Array.from(blocks, (block) => blockMultiplications(c, block))
      : kinds.map((kind, layer) => layerMultiplications(c, kind, layer));
    const trunk = parts.reduce((sum, { token, pair }) => sum + token * this.validTokens + pair * squares, 0);
    const outputs = operation === 'compute_values' || operation === 'update_critic' ? 1 : c.vocab_size;
    const forward = 2 * trunk + 2 * c.hidden_size * outputs * this.responseTokens;
    return operation.startsWith('update') ? 3 * forward : forward;
  }

  /** TxHxV of the head on the responses of this case. */
  headShape() {
    return `${this.responseTokens}x${this.config.hidden_size}x${this.config.vocab_size}`;
  }

  /** The matrix products of the decoder and the head, MxKxN, for the GEMM rate. */
  gemmShapes() {
    const { hidden_size: h, intermediate_size: ffn, vocab_size: vocab } = this.config;
    const chunk = Math.min(512, this.responseTokens);
    return [
      `${this.validTokens}x${h}x${h}`,
      `${this.validTokens}x${h}x${ffn}`,
      `${this.validTokens}x${ffn}x${h}`,
    ].concat([`${chunk}x${h}x${vocab}`, '2048x2048x2048']);
  }
}
