// What the process of a data set in Python (python/dataset_worker.py) and the one that starts it tell each other: JSON, a line each.

/** A set of files that the class is made with: data.train_files, or data.val_files. */
export interface GivenSet {
  /** What messages call it: training, validation. */
  what: string;
  files: readonly string[];
  /** As in the configuration; -1: all. */
  max_samples: number;
}

/** The first message, and the only one to it. */
export interface DatasetSetup {
  path: string;
  name: string;
  /** The section `data` as verl's code sees it. */
  config: object;
  /** `descriptor`: of the file in the process that its rows are written to. */
  sets: readonly (GivenSet & { descriptor: number })[];
  /** Directory of the tokenizer. */
  tokenizer: string;
  /** In place of the tokenizer's own; null: that. */
  chat_template: string | null;
  /** The model reads images: the class gets a processor. */
  reads_images: boolean;
  columns: { prompt: string; source: string; images: string };
  /** Seconds in which something has to come: the module, a data set, its next row. */
  timeout: number;
}

/** Rows that have been written down. */
export interface WrittenSet {
  what: string;
  rows: number;
  bytes: number;
  /** SHA-256 of them. */
  digest: string;
}

/**
 * at: what it is doing, several times a second while Python runs at all. done: it ends. failed: so, too; with `configuration` the error
 * begins with a key.
 */
export type DatasetMessage =
  | { type: 'at'; at: string }
  | { type: 'done'; sets: WrittenSet[] }
  | { type: 'failed'; error: string; configuration: boolean };
