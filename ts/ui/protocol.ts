// What the page and its server say to each other: types alone, so that the page takes nothing else from here.
import type { PlanFile, RunEvent, TokenRecord, TraceLine } from '../records/schema';

export type { PlanFile, RunEvent, TokenRecord, TraceLine };

/** lost: it was running and its process is gone, or nothing was heard of it for long. */
export type RunState = 'running' | 'finished' | 'interrupted' | 'failed' | 'lost' | 'unknown';

/** A row of the overview. */
export interface RunSummary {
  /** Path below the runs directory. */
  id: string;
  name: string;
  program: 'train' | 'sft' | null;
  state: RunState;
  step: number;
  totalSteps: number | null;
  /** Seconds left at the pace of the last steps; null: not running, or not known. */
  eta: number | null;
  secondsPerStep: number | null;
  /** The newest value of the first that it has of: validation accuracy, score, loss. */
  headline: { name: string; value: number; step: number } | null;
  reward: { name: string; value: number } | null;
  /** Seconds since 1970. */
  started: number | null;
  changed: number;
  algorithm: string | null;
  model: string | null;
}

export interface MetricInfo {
  name: string;
  points: number;
  last: number | null;
  lastStep: number;
}

/** What a run has, for the page to choose from. */
export interface RunDetail {
  summary: RunSummary;
  metrics: MetricInfo[];
  tokenSteps: number[];
  traceSteps: { first: number; last: number; count: number } | null;
  hasPlan: boolean;
  warnings: number;
  stamp: RunStamp;
}

/** Counts that grow as a run writes; what has changed is asked for again. */
export interface RunStamp {
  metrics: number;
  samples: number;
  events: number;
  trace: number;
  tokens: number;
}

export type XAxis = 'step' | 'time' | 'tokens';

/** One metric of one run. y null: not a finite number. */
export interface Series {
  name: string;
  x: number[];
  y: (number | null)[];
  /** Smoothed, as many as y; absent without smoothing. */
  smooth?: (number | null)[];
  /** Points in the range before they were thinned out. */
  total: number;
  /** x of values that are NaN or infinite; at most 200. */
  bad: number[];
}

export interface SampleRow {
  /** Names it in {@link SampleDetail}. */
  key: string;
  step: number;
  kind: 'train' | 'validation';
  score: number | null;
  source: string | null;
  /** Response tokens; characters where tokens are not known. */
  length: number;
  inTokens: boolean;
  turns: number;
  input: string;
  output: string;
}

export interface SamplePage {
  total: number;
  /** Of all samples of the run, whatever the filter. */
  all: number;
  offset: number;
  rows: SampleRow[];
  sources: string[];
  steps: number[];
}

/** One turn of a trajectory. */
export interface Turn {
  role: string;
  content: string;
  seconds?: number;
  versions?: [number, number];
  tool?: string;
  error?: string;
  tool_calls?: { name: string; arguments: unknown }[];
}

export interface SampleDetail {
  row: SampleRow;
  input: string;
  output: string;
  groundTruth: unknown;
  /** What the reward function returned besides the score. */
  extras: Record<string, unknown>;
  turns: Turn[] | null;
  /** Whether there is a per-token record of it. */
  tokens: { step: number; index: number } | null;
}

export interface TokensPage {
  steps: number[];
  step: number | null;
  records: TokenRecord[];
}

export interface TracePage {
  first: number;
  last: number;
  lines: TraceLine[];
}

export interface PlanPage {
  plan: PlanFile | null;
  /** Largest of the run so far, bytes, by rank of each pool. */
  measured: { pool: string; rank: number; peakRss: number; maxAllocated: number }[];
}

export interface LiveMessage {
  runs: { id: string; summary: RunSummary; stamp: RunStamp | null }[];
  /** Runs that are gone. */
  gone: string[];
}
