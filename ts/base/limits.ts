// The largest values that anyone can mean. More is a slip of the keyboard, or a file that was made to do harm: it would take all
// memory, start processes without end, or run for years, and be noticed long after the line that caused it. Each is far above what
// the largest runs and models of the field have.

/** Of a run. */
export const RUN_LIMITS = {
  /** Worker processes over all machines. */
  ranks: 65_536,
  /** Worker processes on one machine. */
  ranksPerMachine: 1_024,
  /** LibTorch's threads in one worker: more than a machine has cores. */
  threads: 1_024,
  /** Processes or connections beside the workers: scorers, sandboxes, requests. */
  processes: 4_096,
  /** Responses to one prompt. */
  samples: 65_536,
  /** Sequences in one batch, or rows in one step. */
  sequences: 2 ** 24,
  /** Tokens that a place has in common with the end of a text, to draft from. */
  match: 256,
  /** Tokens of responses that have ended, to draft from. */
  history: 2 ** 31,
  /** In one sequence. */
  tokens: 2 ** 24,
  /** In one micro-batch, or in one batch: they are addressed with 31 bits. */
  batchTokens: 2 ** 31 - 1,
  /** Passes over a batch or a data set. */
  passes: 1_000_000,
  /** Optimiser steps. */
  steps: 1e12,
  /** Of an image. */
  pixels: 2 ** 27,
  /** Rank of an adapter. */
  loraRank: 65_536,
  /** Learning rate. AdamW moves every weight by about so much in one step. */
  learningRate: 1e6,
  /** Memory of one program. */
  mebibytes: 2 ** 30,
  /** Seconds: what a timer of Node.js can count. */
  seconds: 2_147_483,
} as const;

/** Logits divided by less would overflow, and are greedy long before, for which 0 is the word. */
export const MIN_TEMPERATURE = 1e-6;
export const MAX_TEMPERATURE = 1e6;

/** Of a model, in the units of config.json. */
export const MODEL_LIMITS = {
  layers: 4_096,
  /** Layers times experts. */
  expertBlocks: 2 ** 20,
  width: 2 ** 20,
  heads: 2 ** 16,
  headDim: 2 ** 16,
  vocabulary: 2 ** 24,
  positions: 2 ** 31 - 1,
} as const;
