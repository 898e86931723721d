// What a checkpoint keeps besides weights and optimisers: trainer.json.
import { z } from 'zod';
import { TroupeError } from '../errors';
import type { Checkpoint } from './checkpoint_store';

/** 2: with the run, the checksums, `identity` and `lines`. */
export const VERSION = 2;
const READABLE = [1, VERSION];

/** What has been read of an epoch, from where the loader stands in it. */
export interface EpochState {
  /** Counted from 0. */
  epoch: number;
  /** Prompts read. */
  prompts: number;
  /** Of these, the ones that have not been learnt from, by their place among them. */
  left: readonly number[];
}

/** Of a run that works on prompts ahead of its steps. */
export interface QueueState {
  /** Number of the batch of prompts at which the loader stands, counted from 1: the first one of which some have not been learnt from. */
  batch: number;
  /** What has been read since. */
  read: readonly EpochState[];
}

export interface TrainerState {
  version: number;
  /** Steps done. */
  step: number;
  /** Seed of the run; every random number follows from it and the step. */
  seed: number;
  /** Position of the data loader. */
  loader: unknown;
  /** Absent: a run of `troupe sft`. */
  klController?: { value: number };
  /** Absent: every step has learnt from the prompts that the loader gave next. */
  queue?: QueueState;
  /** Trained on so far, of a run of `troupe sft`. Absent: they were not counted. */
  tokens?: number;
  /** The configuration, as it is written down. */
  config: Record<string, unknown>;
  /** Digest of what makes the run this one: see runIdentity. Absent in version 1. */
  identity?: string;
  /** The last lines of metrics.jsonl: that of `step`, and those before it that could not be written. */
  lines?: string[];
}

const wholeNumber = z.int().min(0);

const stateSchema = z.object({
  version: z.number().refine((version) => READABLE.includes(version), `expected ${READABLE.join(' or ')}`),
  step: wholeNumber,
  seed: wholeNumber,
  loader: z.unknown().refine((loader) => loader !== undefined && loader !== null, 'expected a position'),
  klController: z.object({ value: z.number() }).optional(),
  queue: z
    .object({
      batch: z.int().min(1),
      read: z.array(z.object({ epoch: wholeNumber, prompts: wholeNumber, left: z.array(wholeNumber) })),
    })
    .optional(),
  tokens: wholeNumber.optional(),
  config: z.record(z.string(), z.unknown()),
  identity: z.string().optional(),
  lines: z.array(z.string()).optional(),
});

/**
 * The state of a checkpoint, checked.
 * @throws TroupeError IO naming the key that is not what it must be
 */
export function checkedState({ directory, step, state, files }: Checkpoint<object>): TrainerState {
  const file = `[checkpoint] ${directory}/trainer.json`;
  const parsed = stateSchema.safeParse(state);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new TroupeError(
      'IO',
      `${file}: ${issue?.path.join('.')}: ${issue?.message}: resume from another step`,
    );
  }
  const found = parsed.data as TrainerState;
  if (found.step !== step)
    throw new TroupeError(
      'IO',
      `${file}: expected step ${step}, as its directory is named, but got step ${found.step}`,
    );
  if (found.version === VERSION && files === null)
    throw new TroupeError('IO', `${file}: expected the checksums of its files: resume from another step`);
  return found;
}
