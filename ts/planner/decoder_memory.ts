// Bytes that a pass through the decoder holds, from what native/model/block.cc, moe.cc and transformer.cc allocate. The names of
// the terms are those of the code; docs/planning.md has the formulas in one table.
import type { NativeModelConfig } from '../native/bridge';
import { leastCommonMultiple, roundUp } from './parameter_groups';

/** Where and in what precision a role computes. */
export interface Machine {
  device: 'cpu' | 'cuda';
  /** Bytes of one value in the compute dtype: 4 or 2. */
  elementBytes: 2 | 4;
  /** Compute threads of a worker on a CPU. */
  threads: number;
}

/** One micro-batch, or a rank's part of it. */
export interface MicroBatchShape {
  /** T, whole row tiles. */
  rows: number;
  /** N', rows that predict a response token, whole row tiles. */
  predictions: number;
  /** Tokens of the longest sequence. */
  longest: number;
  /** Ranks that have such a part each: attention sees all their rows and as many times fewer heads. */
  ulysses: number;
}

export const ROW_TILE = 128; // kRowTile of base/parallel.h
const GEMM_LANES = 16; // kernels/cpu/gemm_kernels.h
const GEMM_DEPTH = 512; // kDepth of kernels/gemm.cc
const KEY_BLOCK = 512; // kKeyBlock of kernels/attention.cc
const SCORE_ROWS = 128; // kScoreRows
const FLOAT = 4;

/** Bytes of one decoder layer of a model for one micro-batch. */
export class LayerMemory {
  private readonly rows: number;
  private readonly e: number;
  private readonly hidden: number;
  private readonly q: number;
  private readonly qkv: number;
  /** Columns of qkv that attention sees, over all ranks that share the micro-batch: with key heads that are repeated. */
  private readonly attended: number;
  private readonly inner: number;
  private readonly intermediate: number;
  private readonly moe: NonNullable<NativeModelConfig['moe']> | null;

  constructor(
    private readonly config: NativeModelConfig,
    layer: number,
    private readonly shape: MicroBatchShape,
    private readonly machine: Machine,
  ) {
    this.rows = shape.rows;
    this.e = machine.elementBytes;
    this.hidden = config.hiddenSize;
    this.q = config.numHeads * config.headDim;
    this.qkv = this.q + 2 * config.numKvHeads * config.headDim;
    this.attended = this.q + 2 * leastCommonMultiple(config.numKvHeads, shape.ulysses) * config.headDim;
    this.moe = config.moe !== null && config.moeLayers[layer] === true ? config.moe : null;
    this.intermediate = this.moe?.intermediateSize ?? config.intermediateSize;
    this.inner = (config.gatedMlp ? 2 : 1) * this.intermediate;
  }

  /** The block's input, the one thing that gradient checkpointing keeps. */
  get input(): number {
    return this.rows * this.hidden * this.e;
  }

  /** BlockSaved but x. */
  get saved(): number {
    const { rows, e, hidden, config } = this;
    const norms = config.postNorms ? 4 : 2;
    const stats = (config.norm === 'layer' ? 2 : 1) * norms * rows * FLOAT;
    const outputs = (this.shape.ulysses === 1 ? 1 : 2) * this.q; // heads_attn, attn
    const attention = rows * (this.attended + outputs) * e + config.numHeads * rows * FLOAT; // qkv, lse
    const qkNorm = config.qkNorm
      ? rows * this.qkv * e + rows * (config.numHeads + config.numKvHeads) * FLOAT // qkv_pre, qk_rstd
      : 0;
    const projections = config.postNorms ? 2 * rows * hidden * e : 0; // attn_proj, mlp_proj
    const mid = rows * hidden * e;
    const mlp = this.moe === null ? rows * this.inner * e : this.savedByExperts(this.moe);
    return stats + attention + qkNorm + projections + mid + mlp;
  }

  /** A forward pass beside the block's input; `keep`: with what `saved` counts already. */
  forward(keep: boolean): number {
    const { rows, e, hidden, config } = this;
    const out = rows * hidden * e;
    const attn = keep ? 0 : rows * this.q * e;
    const tile = this.tileRows;
    const tileOfMlp = this.moe === null ? (keep ? 0 : hidden + this.inner) + hidden + this.intermediate : 0;
    const experts = this.moe === null ? 0 : this.expertForward(this.moe, keep);
    const packed = this.packed(hidden, this.q) + this.packedMlp();
    const mlpTime = out + experts + packed + tile * (tileOfMlp + (config.postNorms ? hidden : 0)) * e;
    return (
      Math.max(attn + mlpTime, this.attentionForward(keep)) + this.floatTemporaries() + this.gemmScratch()
    );
  }

  /** A backward pass beside `input` and `saved`: the gradient that comes in included. */
  backward(): number {
    const { rows, e, hidden, config } = this;
    const dy = rows * hidden * e;
    const dAttention = rows * this.q * e;
    const dMid = rows * hidden * e;
    const normed = rows * hidden * e;
    const partial = Math.ceil(rows / this.tileOf) * hidden * FLOAT; // NormGradient
    const tile = this.tileRows;

    const mlp =
      dMid +
      normed +
      (config.postNorms ? 2 * rows * hidden * e + 2 * partial : 0) +
      partial +
      this.packed(this.q, hidden) +
      (this.moe === null
        ? rows * this.intermediate * e + // activated
          this.packedMlp(true) +
          tile * (this.intermediate + hidden) * e
        : rows * hidden * e + this.expertBackward(this.moe)) +
      this.weightGradient([
        [this.inner, hidden],
        [hidden, this.intermediate],
        [hidden, this.q],
      ]);
    const inputs =
      rows * this.qkv * e + // dqkv
      normed +
      partial +
      this.packed(hidden, this.qkv) +
      tile * hidden * e +
      this.weightGradient([[this.qkv, hidden]]);
    const attentionTime = dMid + Math.max(this.attentionBackward(), inputs);
    return dy + dAttention + Math.max(mlp, attentionTime) + this.floatTemporaries() + this.gemmScratch();
  }

  /** From the block's input to the output of attention (Block::attend). */
  private attentionForward(keep: boolean): number {
    const { rows, e, q, qkv, attended, shape } = this;
    const shared = shape.ulysses > 1;
    const projecting = this.packed(qkv, this.hidden) + this.tileRows * this.hidden * e;
    const inputs = (keep && !shared ? 0 : rows * qkv * e) + projecting;
    const attending = (keep ? 0 : rows * (attended + q) * e) + this.attentionScratch(false);
    if (!shared) return Math.max(inputs, attending);
    // What is sent beside what it comes from and what is received; the output is received, then put side by side.
    const rowsIn = qkv + attended + (keep ? 0 : attended);
    const headsOut = q + (keep ? 0 : attended + 2 * q);
    return Math.max(inputs, attending, rows * Math.max(rowsIn, headsOut) * e);
  }

  /** From its gradient to that of qkv (Block::attend_backward). */
  private attentionBackward(): number {
    const { rows, e, q, qkv, attended } = this;
    const scratch = this.attentionScratch(true);
    if (this.shape.ulysses === 1) return rows * qkv * e + scratch;
    const held = q + attended; // d_output, d_input
    return Math.max(rows * held * e + scratch, rows * (held + attended + qkv) * e);
  }

  /** Rows that row-wise temporaries exist for: a tile per thread on a CPU, all of them on a GPU. */
  private get tileRows(): number {
    return this.machine.device === 'cpu' ? Math.min(this.rows, ROW_TILE * this.machine.threads) : this.rows;
  }

  private get tileOf(): number {
    return this.machine.device === 'cpu' ? ROW_TILE : this.rows;
  }

  /** PackedMatrix of a weight [out, in]: a copy, in whole words of 4 bytes along k, on a CPU that multiplies it itself. */
  private packed(cols: number, depth: number): number {
    return this.machine.device === 'cpu' ? roundUp(cols, GEMM_LANES) * roundUp(depth * this.e, FLOAT) : 0;
  }

  private packedMlp(backward = false): number {
    if (this.moe !== null) return 0;
    return backward
      ? this.packed(this.hidden, this.inner) + this.packed(this.intermediate, this.hidden)
      : this.packed(this.inner, this.hidden) + this.packed(this.hidden, this.intermediate);
  }

  /** Linear::accumulate_grad packs the input of the layer; where LibTorch multiplies bfloat16, it makes the whole product first. */
  private weightGradient(weights: readonly (readonly [out: number, depth: number])[]): number {
    const product = (out: number, depth: number): number => (this.e === FLOAT ? 0 : out * depth * this.e);
    return Math.max(
      ...weights.map(([out, depth]) => Math.max(this.packed(depth, this.rows), product(out, depth))),
    );
  }

  /** A tile of rows, packed: so many steps of k at once, in bfloat16 all of them. */
  private gemmScratch(): number {
    if (this.machine.device !== 'cpu') return 0;
    const deepest = Math.max(this.hidden, this.intermediate, this.inner, this.q, this.qkv);
    const depth = this.e === FLOAT ? GEMM_DEPTH * FLOAT : Math.max(GEMM_DEPTH * FLOAT, deepest * this.e);
    return this.machine.threads * ROW_TILE * depth;
  }

  private attentionScratch(backward: boolean): number {
    const { config, shape, machine } = this;
    const { longest } = shape;
    if (machine.device === 'cuda') {
      // The reference materialises the scores of one sequence: forward raw, scaled, masked and softmax; backward two more.
      return (backward ? 6 : 4) * (config.numHeads / shape.ulysses) * longest * longest * FLOAT;
    }
    const groups = config.numHeads / config.numKvHeads;
    let block = 32;
    while (block > 8 && block * groups > SCORE_ROWS) block /= 2;
    const rows = groups * block;
    const keys = Math.min(KEY_BLOCK, longest);
    const width = roundUp(config.headDim, GEMM_LANES);
    // Packed: K, its transpose and that of V, of all keys and of a block, and q and dO; or K and V of a block.
    const floats = backward
      ? (4 + 3) * longest * width + 3 * roundUp(keys, GEMM_LANES) * width + rows * (6 * width + 2 * keys + 2)
      : rows * (2 * config.headDim + keys) + (2 + 1) * roundUp(keys, GEMM_LANES) * width + 3 * rows;
    return machine.threads * floats * FLOAT;
  }

  /** On a GPU norms and activations run in LibTorch operations over all rows, in float32. */
  private floatTemporaries(): number {
    if (this.machine.device === 'cpu') return 0;
    return this.rows * Math.max(3 * this.hidden, 5 * this.intermediate) * FLOAT;
  }

  private savedByExperts(moe: NonNullable<NativeModelConfig['moe']>): number {
    const slots = this.rows * moe.topK;
    // probs; experts, weights, choice_of, token_of, slot_of; inner
    return this.rows * moe.numExperts * FLOAT + slots * (FLOAT + 4 * 8 + this.inner * this.e);
  }

  /** Experts at work at the same time, one per thread. */
  private expertsAtOnce(moe: NonNullable<NativeModelConfig['moe']>): number {
    return Math.min(this.machine.threads, moe.numExperts);
  }

  private expertForward(moe: NonNullable<NativeModelConfig['moe']>, keep: boolean): number {
    const { rows, e, hidden, inner, intermediate } = this;
    const own = keep ? 0 : this.savedByExperts(moe) + rows * hidden * e; // and mid
    const tile = ROW_TILE * (hidden + intermediate) * e;
    const packs = this.packed(hidden, inner) + this.packed(intermediate, hidden);
    const outputs = rows * moe.topK * hidden * e;
    const sums = this.machine.threads * 2 * ROW_TILE * hidden * FLOAT;
    return own + rows * hidden * e + outputs + Math.max(this.expertsAtOnce(moe) * (packs + tile), sums);
  }

  /** The rows of an expert are all tokens at most, where they all choose it. */
  private expertBackward(moe: NonNullable<NativeModelConfig['moe']>): number {
    const { rows, e, hidden, inner, intermediate } = this;
    const gathered = rows * moe.topK * (hidden * e + FLOAT); // d_gathered, d_slots
    const own = rows * (2 * hidden + inner + intermediate) * e; // d_output, gathered; d_inner; activated
    const packs = this.packed(inner, hidden) + this.packed(hidden, intermediate);
    const packedInput = rows * Math.max(hidden, intermediate) * FLOAT; // of the weight gradient
    return gathered + this.expertsAtOnce(moe) * (own + packs + packedInput);
  }
}
