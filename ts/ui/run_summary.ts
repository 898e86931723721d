// What the overview says of a run, from the ends of its files: nothing that grows with it is read whole.
import { hostname } from 'node:os';
import { eventSchema } from '../records/schema';
import { type Inside, readAt } from './inside';
import { jsonObject } from './line_tail';
import type { RunEvent, RunState, RunSummary } from './protocol';

/** Bytes read from the end of a file. */
const END = 96 << 10;
const CONFIG_BYTES = 1 << 20;
/** Steps whose pace is taken for the next ones. */
const PACE = 20;
/** A run on another machine, or one without events, is running while it has written something within so many seconds. */
const QUIET = 300;

/** What is looked at first, in this order. */
const HEADLINES = [
  /^val-core\/.*\/(acc|reward)\/mean@/,
  /^critic\/score\/mean$/,
  /^val\/loss$/,
  /^train\/loss$/,
];
export const REWARD = ['critic/score/mean', 'train/loss'];

type Line = Record<string, unknown>;

/** Complete lines at the end of a file, the last one last, and what the file is. */
function endOf(
  inside: Inside,
  path: string,
  most = END,
): { lines: Line[]; modified: number; size: number } | null {
  return inside.with(path, ({ fd, size, modified }) => {
    const from = Math.max(0, size - most);
    const texts = readAt(fd, from, size - from)
      .toString('utf8')
      .split('\n');
    // The first may be cut, and what follows the last newline is being written.
    const whole = texts.slice(from > 0 ? 1 : 0, -1);
    return {
      lines: whole.flatMap((text): Line[] => {
        const line = jsonObject(text);
        return line === null ? [] : [line];
      }),
      modified,
      size,
    };
  });
}

/** Events at the end of a run's file. */
export function lastEvents(inside: Inside, id: string): RunEvent[] {
  const found = endOf(inside, `${id}/events.jsonl`);
  return (found?.lines ?? []).flatMap((line) => {
    const parsed = eventSchema.safeParse(line);
    return parsed.success ? [parsed.data] : [];
  });
}

function isAlive(pid: unknown): boolean {
  if (typeof pid !== 'number') return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // Somebody else's process is one, too.
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

function stateOf(events: readonly RunEvent[], changed: number, finished: boolean): RunState {
  const begin = events.findLast(({ kind }) => kind === 'start');
  const quiet = Date.now() / 1000 - changed > QUIET;
  const last = events.at(-1);
  if (last === undefined) {
    if (finished) return 'finished';
    return quiet ? 'unknown' : 'running';
  }
  const ended = last.kind === 'end' ? last : null;
  if (ended) {
    const outcome = ended.data?.['outcome'];
    return outcome === 'finished' || outcome === 'interrupted' ? outcome : 'failed';
  }
  if (begin?.data?.['host'] === hostname()) return isAlive(begin.data['pid']) ? 'running' : 'lost';
  return quiet ? 'lost' : 'running';
}

const numberOf = (value: unknown): number | null =>
  typeof value === 'number' && Number.isFinite(value) ? value : null;

/** The newest value of a metric that `pattern` names. */
function newest(lines: readonly Line[], pattern: RegExp): RunSummary['headline'] {
  for (const line of lines.toReversed()) {
    for (const name of Object.keys(line)) {
      const value = pattern.test(name) ? numberOf(line[name]) : null;
      if (value !== null) return { name, value, step: numberOf(line['step']) ?? 0 };
    }
  }
  return null;
}

const at = (tree: unknown, path: string): unknown =>
  path
    .split('.')
    .reduce<unknown>(
      (node, key) => (typeof node === 'object' && node !== null ? (node as Line)[key] : undefined),
      tree,
    );

const textOf = (value: unknown): string | null => (typeof value === 'string' ? value : null);

export function summaryOf(inside: Inside, id: string): RunSummary {
  const metrics = endOf(inside, `${id}/metrics.jsonl`);
  const timings = endOf(inside, `${id}/timings.jsonl`);
  const events = lastEvents(inside, id);
  const config = jsonObject(inside.text(`${id}/config.json`, CONFIG_BYTES) ?? '');
  const lines = metrics?.lines ?? [];
  const step = numberOf(lines.at(-1)?.['step']) ?? 0;
  const begin = events.findLast(({ kind }) => kind === 'start');
  const changed = Math.max(metrics?.modified ?? 0, timings?.modified ?? 0, events.at(-1)?.time ?? 0);
  const finished = inside.list(`${id}/final_model`).length > 0;
  const state = stateOf(events, changed, finished);
  const totalSteps =
    numberOf(begin?.data?.['totalSteps']) ?? numberOf(at(config, 'trainer.total_training_steps'));
  const paces = (timings?.lines ?? []).flatMap((line) => numberOf(line['timing_s/step']) ?? []).slice(-PACE);
  const pace = paces.length === 0 ? null : paces.reduce((sum, value) => sum + value, 0) / paces.length;
  const headline = HEADLINES.reduce<RunSummary['headline']>(
    (found, pattern) => found ?? newest(lines, pattern),
    null,
  );
  const reward = newest(lines, /^(critic\/score\/mean|train\/loss)$/);
  return {
    id,
    name: id === '' ? '(this directory)' : id,
    program: config === null ? null : at(config, 'actor_rollout_ref') === undefined ? 'sft' : 'train',
    state,
    step,
    totalSteps,
    eta:
      state === 'running' && pace !== null && totalSteps !== null
        ? Math.max(0, totalSteps - step) * pace
        : null,
    secondsPerStep: pace,
    headline,
    reward: reward && { name: reward.name, value: reward.value },
    started: events.find(({ kind }) => kind === 'start')?.time ?? null,
    changed,
    algorithm: textOf(at(config, 'algorithm.adv_estimator')),
    model: textOf(at(config, 'actor_rollout_ref.model.path')) ?? textOf(at(config, 'model.path')),
  };
}

/** Values of what the overview plots small, from lines at even distances of the file: peaks may be missed there. */
export function sparkline(inside: Inside, id: string, count = 32): [number, number][] {
  const found = inside.with(`${id}/metrics.jsonl`, ({ fd, size }) => {
    const probes = Array.from({ length: count }, (_, i) => Math.floor((i * size) / count));
    return probes.flatMap((from): [number, number][] => {
      const texts = readAt(fd, from, 24 << 10)
        .toString('utf8')
        .split('\n');
      for (const text of texts.slice(from > 0 ? 1 : 0, -1)) {
        const line = jsonObject(text);
        const value =
          line === null ? null : REWARD.reduce<number | null>((v, name) => v ?? numberOf(line[name]), null);
        const step = numberOf(line?.['step']);
        if (value !== null && step !== null) return [[step, value]];
      }
      return [];
    });
  });
  return [...new Map(found ?? [])].sort(([a], [b]) => a - b);
}
