// When the stages of a pipeline compute what: the schedule of native/megatron/schedule.h in time, for people to look at.
import { ConfigError } from '../errors';

export interface PipelineShape {
  stages: number;
  microBatches: number;
  chunks: number;
  order: '1f1b' | 'gpipe';
  /** Of a backward, where a forward takes 1: 2, or 3 with activation checkpointing. */
  backwardCost: number;
}

/** A forward or backward of one micro-batch in one chunk of a stage. */
export interface PipelineTask {
  backward: boolean;
  chunk: number;
  micro: number;
  start: number;
}

/** Idle time of every stage as a part of its work, where p divides m or there is one chunk per stage. */
export const bubbleFraction = ({ stages, microBatches, chunks }: PipelineShape): number =>
  microBatches === 0 ? 0 : (stages - 1) / (chunks * microBatches);

/** (chunk, micro-batch) in the order of a stage's forwards, or backwards: by groups of `stages` micro-batches. */
function sequence(
  { stages, microBatches, chunks }: PipelineShape,
  backward: boolean,
): Omit<PipelineTask, 'start'>[] {
  const all: Omit<PipelineTask, 'start'>[] = [];
  for (let first = 0; first < microBatches; first += stages)
    for (let i = 0; i < chunks; i++)
      for (let micro = first; micro < first + stages; micro++)
        all.push({ backward, chunk: backward ? chunks - 1 - i : i, micro });
  return all;
}

/** What a stage computes, in order. */
function orderOf(shape: PipelineShape, stage: number): Omit<PipelineTask, 'start'>[] {
  const { stages, chunks, order, microBatches } = shape;
  const forwards = sequence(shape, false);
  const after = stages - 1 - stage;
  const warmup = chunks === 1 ? after : 2 * after + (chunks - 1) * stages;
  const ahead = order === 'gpipe' ? forwards.length : Math.min(forwards.length, warmup);
  const all = forwards.slice(0, ahead);
  for (const [i, backward] of sequence(shape, true).entries()) {
    const forward = forwards[ahead + i];
    if (forward !== undefined) all.push(forward);
    all.push(backward);
  }
  // A last group that is not whole is a whole one, less what is not there.
  return all.filter(({ micro }) => micro < microBatches);
}

/**
 * The tasks of each stage with the moments at which they begin.
 * @throws ConfigError for several chunks on one stage
 */
export function pipelineTimeline(shape: PipelineShape): PipelineTask[][] {
  const { stages, chunks, backwardCost } = shape;
  if (chunks > 1 && stages === 1)
    throw new ConfigError(`expected at least 2 stages with ${chunks} chunks each, got ${stages}`);
  const orders = Array.from({ length: stages }, (_, stage) => orderOf(shape, stage));
  const done: PipelineTask[][] = orders.map(() => []);
  const free = orders.map(() => 0);
  const ended = new Map<string, number>();
  const key = (backward: boolean, part: number, micro: number): string => `${backward} ${part} ${micro}`;
  const last = stages * chunks - 1;
  const ready = (backward: boolean, part: number, micro: number): number | undefined => {
    if (!backward) return part === 0 ? 0 : ended.get(key(false, part - 1, micro));
    return part === last ? ended.get(key(false, part, micro)) : ended.get(key(true, part + 1, micro));
  };
  for (let moved = true; moved; ) {
    moved = false;
    for (const [stage, order] of orders.entries()) {
      const tasks = done[stage] as PipelineTask[];
      for (let next = order[tasks.length]; next !== undefined; next = order[tasks.length]) {
        const part = next.chunk * stages + stage;
        const when = ready(next.backward, part, next.micro);
        if (when === undefined) break;
        const start = Math.max(free[stage] as number, when);
        free[stage] = start + (next.backward ? backwardCost : 1);
        ended.set(key(next.backward, part, next.micro), free[stage] as number);
        tasks.push({ ...next, start });
        moved = true;
      }
    }
  }
  return done;
}
