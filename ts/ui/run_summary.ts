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
const HEADLINES: readonly (readonly [string, RegExp])[] = [
  ['"val-core/', /^val-core\/.*\/(acc|reward)\/mean@/],
  ['"critic/score/mean"', /^critic\/score\/mean$/],
  ['"val/loss"', /^val\/loss$/],
  ['"train/loss"', /^train\/loss$/],
];
const REWARD = ['critic/score/mean', 'train/loss'];

type Line = Record<string, unknown>;

/** Complete lines at the end of a file, the last one last, and when it was written. */
function endOf(inside: Inside, path: string): { texts: string[]; modified: number } {
  const found = inside.with(path, ({ fd, size, modified }) => {
    const from = Math.max(0, size - END);
    const texts = readAt(fd, from, size - from)
      .toString('utf8')
      .split('\n');
    // The first may be cut, and what follows the last newline is being written.
    return { texts: texts.slice(from > 0 ? 1 : 0, -1), modified };
  });
  return found ?? { texts: [], modified: 0 };
}

/** Lines from the last one on, each read when it is needed. */
function* fromLast(texts: readonly string[], having = ''): Generator<Line> {
  for (let i = texts.length - 1; i >= 0; i--) {
    const text = texts[i] as string;
    const line = text.includes(having) ? jsonObject(text) : null;
    if (line !== null) yield line;
  }
}

interface Session {
  last: RunEvent | null;
  begin: RunEvent | null;
}

/** The newest event, and the beginning of its session. */
function lastSession(texts: readonly string[]): Session {
  const found: Session = { last: null, begin: null };
  for (const line of fromLast(texts)) {
    const parsed = eventSchema.safeParse(line);
    if (!parsed.success) continue;
    found.last ??= parsed.data;
    if (parsed.data.kind !== 'start') continue;
    found.begin = parsed.data;
    break;
  }
  return found;
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

function stateOf({ last, begin }: Session, changed: number, finished: boolean): RunState {
  const quiet = Date.now() / 1000 - changed > QUIET;
  if (last === null) {
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

/** The newest value of the first metric that `pattern` names; `having` is in the names of all of these. */
function newest(texts: readonly string[], having: string, pattern: RegExp): RunSummary['headline'] {
  for (const line of fromLast(texts, having)) {
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
  const session = lastSession(endOf(inside, `${id}/events.jsonl`).texts);
  const { begin } = session;
  const config = jsonObject(inside.text(`${id}/config.json`, CONFIG_BYTES) ?? '');
  const step = numberOf(fromLast(metrics.texts).next().value?.['step']) ?? 0;
  const changed = Math.max(metrics.modified, timings.modified, session.last?.time ?? 0);
  const finished = inside.list(`${id}/final_model`).length > 0;
  const state = stateOf(session, changed, finished);
  const totalSteps =
    numberOf(begin?.data?.['totalSteps']) ?? numberOf(at(config, 'trainer.total_training_steps'));
  const paces = timings.texts
    .slice(-PACE)
    .flatMap((text) => numberOf(jsonObject(text)?.['timing_s/step']) ?? []);
  const pace = paces.length === 0 ? null : paces.reduce((sum, value) => sum + value, 0) / paces.length;
  const first = (names: typeof HEADLINES): RunSummary['headline'] =>
    names.reduce<RunSummary['headline']>(
      (found, [having, pattern]) => found ?? newest(metrics.texts, having, pattern),
      null,
    );
  const reward = first(HEADLINES.filter(([having]) => /score|train/.test(having)));
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
    headline: first(HEADLINES),
    reward: reward && { name: reward.name, value: reward.value },
    started: begin?.time ?? null,
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
