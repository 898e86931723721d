// Messages between a run and the threads that read and tokenize its data.
import type { Usable } from '../dataset';
import type { RlDatasetOptions } from '../rl_dataset';
import type { RowPath } from '../row';
import type { SftDatasetOptions } from '../sft_dataset';

/** What a thread is started with: a data set, and how much of its files a thread keeps in memory. */
export type DatasetSpec = {
  tokenizer: { directory: string; chatTemplate: string | null };
} & (
  | { kind: 'rl'; paths: readonly RowPath[]; options: RlDatasetOptions }
  | { kind: 'sft'; paths: readonly string[]; options: SftDatasetOptions }
);

export type ThreadSpec = DatasetSpec & { keptBytes: number };

export type SampleRequest = { id: number } & (
  | { kind: 'read'; indices: Int32Array }
  /** How many prompts of a range are not too long. */
  | { kind: 'count'; from: number; to: number }
);

export type SampleReply = { id: number } & (
  | { samples: PackedSamples; usable?: never; error?: never }
  | { usable: Usable; samples?: never; error?: never }
  | { error: string; samples?: never; usable?: never }
);

/** Outcomes one after another, each by v8.serialize; `ends[i]`: where that of sample i ends. */
export interface PackedSamples {
  bytes: Uint8Array<ArrayBuffer>;
  ends: Uint32Array<ArrayBuffer>;
}

/** A sample that cannot be read is an error for whoever asks for it, not for its neighbours. */
export type Outcome = { sample: unknown } | { code: string; message: string };
