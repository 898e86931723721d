// Where the samples of a run lie and what they can be chosen by; their texts stay on the disk.
import { createHash } from 'node:crypto';
import { type Inside, readAt } from './inside';
import { jsonObject } from './line_tail';
import type { SampleDetail, SamplePage, SampleRow } from './protocol';
import { isTurnsKey, numberOf, textOf, turnsOf, turnTexts } from './turns';

/** Folders of a run that hold samples: those that every run writes, and where all of them go by custom or configuration. */
const FOLDERS = ['samples', 'rollout', 'rollouts', 'rollout_data', 'validation', 'validation_data'];
const FILE = /^(validation_)?(\d{1,12})\.jsonl$/;
const LARGEST_FILE = 1 << 30;
const LARGEST_LINE = 32 << 20;
const PREVIEW = 240;
/** Milliseconds. */
const NOW_AND_THEN = 3_000;
/** Keys of a row that are shown elsewhere. */
const SHOWN = new Set([
  'step',
  'input',
  'output',
  'gts',
  'score',
  'index',
  'data_source',
  'prompt_length',
  'response_length',
]);

interface Entry {
  file: string;
  offset: number;
  bytes: number;
  step: number;
  kind: SampleRow['kind'];
  score: number | null;
  source: string | null;
  length: number;
  inTokens: boolean;
  turns: number;
  input: string;
  output: string;
  prompt: string;
}

export interface SampleQuery {
  kind: SampleRow['kind'] | null;
  stepFrom: number | null;
  stepTo: number | null;
  scoreFrom: number | null;
  scoreTo: number | null;
  lengthFrom: number | null;
  lengthTo: number | null;
  source: string | null;
  text: string;
  /** Only answers to the prompt of the sample with this key. */
  sameAs: string | null;
  order: 'newest' | 'oldest' | 'best' | 'worst' | 'longest';
}

const hashOf = (text: string): string => createHash('sha1').update(text).digest('base64url').slice(0, 16);

export class SampleIndex {
  private readonly files = new Map<string, { stamp: string; entries: Entry[] }>();
  private flat: Entry[] | null = null;
  private lastQuery = '';
  private lastResult: Entry[] = [];
  private folders = '';
  private looked = Number.NEGATIVE_INFINITY;
  /** Grows with every change. */
  stamp = 0;

  constructor(
    private readonly inside: Inside,
    private readonly run: string,
    private readonly moreFolders: () => readonly string[],
    private readonly nowAndThen = NOW_AND_THEN,
  ) {}

  /**
   * Reads files that are new or have changed, and forgets those that are gone. Files of samples are written once as a rule: while their
   * folders are as they were, they are looked at now and then only.
   */
  refresh(): boolean {
    const folders = [...new Set([...FOLDERS, ...this.moreFolders()])].map((name) => `${this.run}/${name}`);
    const stamp = folders.map((folder) => this.inside.stamp(folder)).join('|');
    const now = performance.now();
    if (stamp === this.folders && now - this.looked < this.nowAndThen) return false;
    this.folders = stamp;
    this.looked = now;
    const seen = new Set<string>();
    let changed = false;
    for (const folder of folders) {
      for (const entry of this.inside.list(folder)) {
        const name = FILE.exec(entry.name);
        if (name === null || !entry.isFile()) continue;
        const path = `${folder.slice(this.run.length + 1)}/${entry.name}`;
        seen.add(path);
        const kind = name[1] !== undefined || path.startsWith('validation') ? 'validation' : 'train';
        changed = this.read(path, Number(name[2]), kind) || changed;
      }
    }
    for (const path of this.files.keys()) {
      if (seen.has(path)) continue;
      this.files.delete(path);
      changed = true;
    }
    if (changed) {
      this.flat = null;
      this.lastQuery = '';
      this.stamp++;
    }
    return changed;
  }

  get count(): number {
    return this.entries().length;
  }

  page(query: SampleQuery, offset: number, limit: number): SamplePage {
    const all = this.entries();
    const key = JSON.stringify(query);
    if (key !== this.lastQuery) {
      this.lastResult = this.choose(all, query);
      this.lastQuery = key;
    }
    const rows = this.lastResult.slice(offset, offset + limit).map(rowOf);
    const sources = [...new Set(all.flatMap(({ source }) => source ?? []))].sort();
    const steps = [...new Set(all.map(({ step }) => step))].sort((a, b) => a - b);
    return {
      total: this.lastResult.length,
      all: all.length,
      offset,
      rows,
      sources: sources.slice(0, 200),
      steps,
    };
  }

  /** null: there is none with this key, or it has changed. */
  detail(key: string, hasTokens: (step: number, index: number) => boolean): SampleDetail | null {
    const entry = this.entries().find((one) => keyOf(one) === key);
    const row = entry && this.rowAt(entry);
    if (!entry || !row) return null;
    const index = numberOf(row['index']);
    const turns = turnsOf(row);
    const extras = Object.entries(row).filter(([name]) => !SHOWN.has(name) && !(turns && isTurnsKey(name)));
    const known = entry.kind === 'train' && index !== null && hasTokens(entry.step, index);
    return {
      row: rowOf(entry),
      input: textOf(row['input']),
      output: textOf(row['output']),
      groundTruth: row['gts'] ?? null,
      extras: Object.fromEntries(extras),
      turns,
      tokens: known ? { step: entry.step, index } : null,
    };
  }

  private entries(): Entry[] {
    this.flat ??= [...this.files.values()].flatMap(({ entries }) => entries);
    return this.flat;
  }

  private read(path: string, step: number, kind: Entry['kind']): boolean {
    const stamp = this.inside.stamp(`${this.run}/${path}`);
    if (this.files.get(path)?.stamp === stamp) return false;
    const done = this.inside.with(`${this.run}/${path}`, ({ fd, size }) => {
      const bytes = size > LARGEST_FILE ? Buffer.alloc(0) : readAt(fd, 0, size);
      this.files.set(path, { stamp, entries: [...entriesOf(path, bytes, step, kind)] });
      return true;
    });
    return done ?? false;
  }

  private rowAt({ file, offset, bytes }: Entry): Record<string, unknown> | null {
    return this.inside.with(`${this.run}/${file}`, ({ fd }) =>
      jsonObject(readAt(fd, offset, Math.min(bytes, LARGEST_LINE)).toString('utf8')),
    );
  }

  private choose(all: readonly Entry[], query: SampleQuery): Entry[] {
    const { kind, source, text, sameAs } = query;
    const within = (value: number | null, from: number | null, to: number | null): boolean =>
      (from === null || (value !== null && value >= from)) &&
      (to === null || (value !== null && value <= to));
    const prompt = sameAs === null ? null : (all.find((entry) => keyOf(entry) === sameAs)?.prompt ?? '');
    const found = all.filter(
      (entry) =>
        (kind === null || entry.kind === kind) &&
        (prompt === null || entry.prompt === prompt) &&
        (source === null || entry.source === source) &&
        within(entry.step, query.stepFrom, query.stepTo) &&
        within(entry.score, query.scoreFrom, query.scoreTo) &&
        within(entry.length, query.lengthFrom, query.lengthTo),
    );
    const wanted = text.trim().toLowerCase();
    const chosen = wanted === '' ? found : this.withText(found, wanted);
    const score = ({ score: value }: Entry): number => value ?? Number.NEGATIVE_INFINITY;
    const orders: Record<SampleQuery['order'], (a: Entry, b: Entry) => number> = {
      newest: (a, b) => b.step - a.step,
      oldest: (a, b) => a.step - b.step,
      best: (a, b) => score(b) - score(a) || b.step - a.step,
      worst: (a, b) => score(a) - score(b) || b.step - a.step,
      longest: (a, b) => b.length - a.length,
    };
    return chosen.sort(orders[query.order]);
  }

  /** Those whose text has it, whole texts read from the disk, a file at a time. */
  private withText(entries: readonly Entry[], wanted: string): Entry[] {
    const short = (entry: Entry): boolean => `${entry.input}\n${entry.output}`.toLowerCase().includes(wanted);
    const byFile = new Map<string, Entry[]>();
    const hits = new Set<Entry>();
    for (const entry of entries) {
      if (short(entry)) hits.add(entry);
      else if (entry.input.length >= PREVIEW || entry.output.length >= PREVIEW || entry.turns > 0)
        byFile.set(entry.file, [...(byFile.get(entry.file) ?? []), entry]);
    }
    for (const [file, candidates] of byFile) {
      this.inside.with(`${this.run}/${file}`, ({ fd, size }) => {
        if (size > LARGEST_FILE) return;
        const whole = readAt(fd, 0, size);
        for (const entry of candidates) {
          const row = jsonObject(whole.toString('utf8', entry.offset, entry.offset + entry.bytes));
          const texts = row === null ? [] : [textOf(row['input']), textOf(row['output']), ...turnTexts(row)];
          if (texts.some((text) => text.toLowerCase().includes(wanted))) hits.add(entry);
        }
      });
    }
    return entries.filter((entry) => hits.has(entry));
  }
}

const keyOf = ({ file, offset }: Entry): string => `${file}@${offset}`;

function rowOf(entry: Entry): SampleRow {
  const { step, kind, score, source, length, inTokens, turns, input, output } = entry;
  return { key: keyOf(entry), step, kind, score, source, length, inTokens, turns, input, output };
}

function* entriesOf(file: string, bytes: Buffer, step: number, kind: Entry['kind']): Generator<Entry> {
  let from = 0;
  for (let end = bytes.indexOf(10); end >= 0; end = bytes.indexOf(10, from)) {
    const row = end > from ? jsonObject(bytes.toString('utf8', from, end)) : null;
    const offset = from;
    const size = end - from;
    from = end + 1;
    if (row === null) continue;
    const [input, output] = [textOf(row['input']), textOf(row['output'])];
    const tokens = numberOf(row['response_length']);
    yield {
      file,
      offset,
      bytes: size,
      step: numberOf(row['step']) ?? step,
      kind,
      score: numberOf(row['score']),
      source: typeof row['data_source'] === 'string' ? row['data_source'] : null,
      length: tokens ?? output.length,
      inTokens: tokens !== null,
      turns: turnsOf(row)?.length ?? 0,
      input: input.slice(0, PREVIEW),
      output: output.slice(0, PREVIEW),
      prompt: hashOf(input),
    };
  }
}
