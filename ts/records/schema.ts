// What a run writes down beside its metrics, line by line: events.jsonl, trace.jsonl, tokens/{step}.jsonl, plan.json. Written by the
// trainer, read by `troupe ui`; docs/ui.md has the same in words.
import { z } from 'zod';

/** JSON has no NaN and no infinities: null stands for what is not a number. */
const maybeNumber = z.number().nullable();

const EVENT_KINDS = ['start', 'end', 'checkpoint', 'validation', 'warning', 'note', 'error'] as const;

/** In seconds: what a Date holds at most. */
const LATEST = 8.64e12;

/** A line of events.jsonl. Lines are only ever added; a run that begins anew in its directory empties the file. */
export const eventSchema = z.object({
  /** Seconds since 1970; beyond the bounds a calendar has no such moment. */
  time: z.number().min(-LATEST).max(LATEST),
  /** Steps done. */
  step: z.number(),
  kind: z.enum(EVENT_KINDS),
  message: z.string(),
  /** start: pid, host, version, program, device, firstStep, totalSteps; end: outcome; checkpoint: seconds, directory. */
  data: z.record(z.string(), z.unknown()).optional(),
});
export type RunEvent = z.infer<typeof eventSchema>;
export type EventKind = RunEvent['kind'];

/** Name, seconds since the beginning of the line, duration in seconds. */
const spanSchema = z.tuple([z.string(), z.number(), z.number()]);
export type Span = z.infer<typeof spanSchema>;

/** Of one worker process, in bytes. */
const rankMemorySchema = z.object({
  peakRss: z.number(),
  allocated: z.number(),
  maxAllocated: z.number(),
});

/**
 * A line of trace.jsonl: a step, or what comes after it (a checkpoint). `phases`: what the trainer did, which may lie inside each other
 * (step holds the others); `ranks`: what each worker was at, from when it was asked, or free for it, to when its answer was there.
 */
export const traceSchema = z.object({
  step: z.number(),
  /** Seconds since 1970. */
  time: z.number(),
  phases: z.array(spanSchema),
  ranks: z.array(
    z.object({
      rank: z.number(),
      /** Absent where there is one pool. */
      pool: z.string().optional(),
      calls: z.array(spanSchema),
      memory: rankMemorySchema.optional(),
    }),
  ),
  /** Memory in use on the host of the trainer, and what it has; bytes. */
  host: z.object({ used: z.number(), total: z.number() }).optional(),
});
export type TraceLine = z.infer<typeof traceSchema>;

/** A line of tokens/{step}.jsonl: one response, one number per token in each array. Absent: the run does not compute it. */
export const tokensSchema = z.object({
  step: z.number(),
  /** Row of the batch; the same as in samples/{step}.jsonl. */
  index: z.number(),
  input: z.string(),
  score: maybeNumber,
  data_source: z.string().optional(),
  /** Tokens of the response; the arrays hold the first `tokens.length` of them. */
  length: z.number(),
  tokens: z.array(z.string()),
  ids: z.array(z.number()),
  /** 1: a token of the policy; 0: of a tool or the user. */
  mask: z.array(z.number()),
  /** As the engine that sampled saw them. */
  rollout_log_probs: z.array(maybeNumber).optional(),
  /** As the trainer saw them before the update. */
  old_log_probs: z.array(maybeNumber).optional(),
  ref_log_probs: z.array(maybeNumber).optional(),
  /** After the update. */
  new_log_probs: z.array(maybeNumber).optional(),
  entropy: z.array(maybeNumber).optional(),
  advantages: z.array(maybeNumber).optional(),
  returns: z.array(maybeNumber).optional(),
  values: z.array(maybeNumber).optional(),
});
export type TokenRecord = z.infer<typeof tokensSchema>;

/** plan.json: what `troupe plan` says of the configuration that the run began with. Bytes of one rank. */
export const planFileSchema = z.object({
  pools: z.array(
    z.object({
      name: z.string(),
      device: z.string(),
      worldSize: z.number(),
      memory: z.number().nullable(),
      peak: z.object({ role: z.string(), verb: z.string(), total: z.number() }),
      phases: z.array(
        z.object({
          role: z.string(),
          verb: z.string(),
          instant: z.string(),
          memory: z.record(z.string(), z.number()),
          total: z.number(),
        }),
      ),
    }),
  ),
});
export type PlanFile = z.infer<typeof planFileSchema>;
