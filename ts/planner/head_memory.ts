// Bytes of the heads, from native/kernels/linear_log_prob.cc (and its reference, which a GPU runs) and native/model/value_head.cc.
import type { NativeModelConfig } from '../native/bridge';
import { type Machine, ROW_TILE } from './decoder_memory';

const VOCAB_BLOCK = 768; // kVocabBlock
const LOGITS_BUDGET = 64 * 2 ** 20; // kLogitsBudget
const LEAST_CHUNK_ROWS = 3 * ROW_TILE; // kLeastChunkRows
const CHUNK_ROWS = 1024; // kChunkRows of the reference
const BLOCK_STATS = 16; // sizeof(kernels::BlockStats)
const GEMM_DEPTH = 512;
const FLOAT = 4;

/** Rows whose logits the backward pass keeps at once. */
export function logitsChunk(predictions: number, vocab: number): number {
  const affordable = Math.floor(LOGITS_BUDGET / FLOAT / vocab / ROW_TILE) * ROW_TILE;
  return Math.min(predictions, Math.max(LEAST_CHUNK_ROWS, affordable));
}

/** What the head works with in inference, beside its input `hidden`. `outputs`: float32 results per row. */
export function headForward(
  config: NativeModelConfig,
  predictions: number,
  machine: Machine,
  outputs: number,
): number {
  const rows = outputs * predictions * FLOAT;
  if (config.head === 'value') return rows + valueHead(config, predictions, machine);
  if (machine.device === 'cuda') {
    const chunk = Math.min(CHUNK_ROWS, predictions);
    return rows + 5 * chunk * config.vocabSize * FLOAT + floatWeight(config, machine);
  }
  return rows + statistics(config, predictions) + machine.threads * blockOfWeight(config, machine);
}

/** What the head works with in training, beside `hidden` and its gradient. */
export function headBackward(config: NativeModelConfig, predictions: number, machine: Machine): number {
  const { hiddenSize: hidden, vocabSize: vocab } = config;
  const rows = 3 * predictions * FLOAT; // log_probs, lse, entropy
  if (config.head === 'value') return rows + valueHead(config, predictions, machine);
  if (machine.device === 'cuda') {
    const chunk = Math.min(CHUNK_ROWS, predictions);
    const gradient = vocab * hidden * FLOAT; // dz^T hidden, before it is added
    return rows + 5 * chunk * vocab * FLOAT + floatWeight(config, machine) + gradient;
  }
  const chunk = logitsChunk(predictions, vocab);
  const ranges = Math.min(machine.threads, Math.ceil(vocab / VOCAB_BLOCK));
  const copies = machine.elementBytes === FLOAT ? 1 : 2; // packed; of bfloat16 where it is not multiplied, float32 too
  const rounded = machine.elementBytes === FLOAT ? 0 : Math.min(VOCAB_BLOCK, vocab) * machine.elementBytes; // d_logits
  return (
    rows +
    chunk * ((vocab + ranges * hidden + copies * hidden + 2) * FLOAT + machine.threads * rounded) +
    statistics(config, chunk) +
    machine.threads * (blockOfWeight(config, machine) + 8 * chunk)
  );
}

/** StatsTable */
function statistics({ vocabSize }: NativeModelConfig, rows: number): number {
  return rows * (Math.ceil(vocabSize / VOCAB_BLOCK) * BLOCK_STATS + FLOAT);
}

/** Of one thread: a block of the weight, packed (of bfloat16 that is not multiplied as such, in float32 too), and a tile of logits. */
function blockOfWeight({ hiddenSize, vocabSize }: NativeModelConfig, machine: Machine): number {
  const cols = Math.min(VOCAB_BLOCK, vocabSize);
  const converted = machine.elementBytes === FLOAT ? 0 : (cols + ROW_TILE) * hiddenSize;
  return (cols * hiddenSize + converted + ROW_TILE * (cols + GEMM_DEPTH)) * FLOAT;
}

/** The whole weight in float32, where it is not. */
function floatWeight({ hiddenSize, vocabSize }: NativeModelConfig, machine: Machine): number {
  return machine.elementBytes === FLOAT ? 0 : hiddenSize * vocabSize * FLOAT;
}

/** hidden * weight in float32, and hidden in float32 when it is not. */
function valueHead({ hiddenSize }: NativeModelConfig, predictions: number, machine: Machine): number {
  return predictions * hiddenSize * FLOAT * (machine.elementBytes === FLOAT ? 1 : 2);
}
