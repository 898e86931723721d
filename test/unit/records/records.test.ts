// What a run writes beside its metrics: the lines themselves, and that a run writes them without changing anything else.
import { existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Batch } from '../../../ts/batch/batch';
import { EventLog } from '../../../ts/records/event_log';
import { RunRecords } from '../../../ts/records/run_records';
import { eventSchema, tokensSchema, traceSchema } from '../../../ts/records/schema';
import { spreadRows, tokenRecords } from '../../../ts/records/token_log';
import { tokenTexts } from '../../../ts/records/token_texts';
import { traceLine } from '../../../ts/records/trace_log';
import { FakeEngines, read, runDirectory, trainer } from '../../helpers/fake_run';

const temporary = (): string => mkdtempSync(join(tmpdir(), 'records-'));
const lines = (directory: string, file: string): Record<string, unknown>[] =>
  read(directory, file)
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

describe('traceLine', () => {
  const call = (rank: number, start: number, end: number, name = 'generate') => ({
    rank,
    pool: null,
    name,
    phase: null,
    busyMs: null,
    start,
    end,
  });

  test('a call begins when its rank is free; ranks in order; seconds since the first phase', () => {
    const phases = [
      { name: 'gen', start: 1100, end: 1500 },
      { name: 'step', start: 1000, end: 2000 },
    ];
    const calls = [call(1, 1100, 1200), call(0, 1100, 1300, 'b'), call(0, 1100, 1250, 'a'), call(0, 10, 20)];
    const memory = [{ rank: 0, pool: null, peakRss: 5, allocated: 0, maxAllocated: 0 }];
    const line = traceLine(7, phases, calls, memory);
    expect(line.phases).toEqual([
      ['step', 0, 1],
      ['gen', 0.1, 0.4],
    ]);
    expect(line.ranks).toEqual([
      {
        rank: 0,
        calls: [
          ['a', 0.1, 0.15],
          ['b', 0.25, 0.05],
        ],
        memory: { peakRss: 5, allocated: 0, maxAllocated: 0 },
      },
      { rank: 1, calls: [['generate', 0.1, 0.1]] },
    ]);
    expect(traceSchema.parse(line)).toEqual(line);
  });

  test('of a call that was under way before the step, as where responses are made ahead, what is within it', () => {
    const phases = [{ name: 'step', start: 1000, end: 2000 }];
    const { ranks } = traceLine(7, phases, [call(0, 900, 1040)], []);
    expect(ranks).toEqual([{ rank: 0, calls: [['generate', 0, 0.04]] }]);
  });
});

describe('tokenTexts', () => {
  const bytes = (text: string): number[] => [...Buffer.from(text)];
  const decode = (ids: readonly number[]): string => {
    if (ids.length === 0) throw new Error('tokenizers take no empty lists');
    return Buffer.from(ids).toString();
  };

  test.each(['abc', 'naïve 答え 🎉!', '🎉🎉', ''])('%s: the last byte of a character has it', (text) => {
    const texts = tokenTexts(bytes(text), decode);
    expect(texts).toHaveLength(bytes(text).length);
    expect(texts.join('')).toBe(text);
  });

  test('bytes that are no text do not hold up what follows', () => {
    const texts = tokenTexts([0xff, 0xff, 0xff, 0xff, 0xff, 0x61, 0x62], decode);
    expect(texts).toHaveLength(7);
    expect(texts.join('')).toContain('ab');
  });
});

test('spreadRows: evenly, never more than there are', () => {
  expect(spreadRows(512, 2)).toEqual([0, 256]);
  expect(spreadRows(3, 5)).toEqual([0, 1, 2]);
  expect(spreadRows(3, 0)).toEqual([]);
});

test('tokenRecords: five digits, null for what is no number, at most so many tokens', () => {
  const whole = Batch.fromSequences(
    [
      [1, 2],
      [3, 4],
    ],
    [[5, 6, 7], [8]],
  ).with({
    oldLogProbs: Float32Array.of(-0.123456789, Number.NaN, -1, -2),
    dataSource: ['a', 'b'],
    score: [1, 0.5],
  });
  const decode = (ids: readonly number[]): string => ids.map((id) => `<${id}>`).join('');
  const records = tokenRecords(3, whole.take([0]), [1], ['no', 'yes'], 2, decode);
  expect(records).toEqual([
    {
      step: 3,
      index: 1,
      input: 'yes',
      score: 1,
      data_source: 'a',
      length: 3,
      tokens: ['<5>', '<6>'],
      ids: [5, 6],
      mask: [1, 1],
      old_log_probs: [-0.12346, null],
    },
  ]);
  expect(tokensSchema.parse(records[0])).toEqual(records[0]);
});

test('EventLog: trouble in the metrics becomes a warning; the end is one of three', () => {
  const directory = temporary();
  const log = new EventLog(directory, 4);
  log.start('goes on', { totalSteps: 9 });
  log.log({ 'actor/update_skipped': 2, 'reward/failures': 0 }, 5);
  log.close('interrupted');
  const events = lines(directory, 'events.jsonl').map((line) => eventSchema.parse(line));
  expect(events.map(({ kind, step }) => [kind, step])).toEqual([
    ['start', 4],
    ['warning', 5],
    ['end', 5],
  ]);
  expect(events[0]?.data).toMatchObject({ totalSteps: 9, pid: process.pid });
  expect(events[1]?.message).toMatch(/^2 updates of the actor left out/);
});

test('a disk that takes nothing is one warning, and no end of a run', async () => {
  const directory = temporary();
  for (const name of ['trace.jsonl', 'plan.json']) mkdirSync(join(directory, name));
  writeFileSync(join(directory, 'tokens'), 'a file');
  const warned: string[] = [];
  const records = new RunRecords({ directory, firstStep: 1, trace: true, warn: (line) => warned.push(line) });
  const phases = [{ name: 'step', start: 0, end: 1 }];
  for (const step of [1, 2]) {
    records.step(step, phases, null);
    records.tokens(step, () => []);
    await records.plan(async () => ({ pools: [] }));
  }
  expect(warned).toEqual([
    expect.stringContaining('trace.jsonl failed'),
    expect.stringContaining('tokens/1.jsonl failed'),
  ]);
});

describe('a run', () => {
  const overrides = ['trainer.total_training_steps=6', 'trainer.save_freq=3', 'logging.tokens.every=2'];

  test('writes events, a trace, tokens, and what samples are of', async () => {
    const run = trainer({ overrides });
    await run.trainer.fit();
    const kinds = lines(run.directory, 'events.jsonl').map(({ kind }) => kind);
    expect(kinds).toEqual(expect.arrayContaining(['start', 'checkpoint', 'end']));
    expect(kinds.at(-1)).toBe('end');
    const trace = lines(run.directory, 'trace.jsonl').map((line) => traceSchema.parse(line));
    expect(trace.map(({ step }) => step)).toEqual([1, 2, 3, 3, 4, 5, 6, 6]);
    expect(trace[0]?.phases.map(([name]) => name)).toEqual(
      expect.arrayContaining(['step', 'gen', 'update_actor']),
    );
    for (const step of [1, 3, 5])
      expect(
        lines(run.directory, `tokens/${step}.jsonl`).map((line) => tokensSchema.parse(line).index),
      ).toEqual([0, 4]);
    expect(existsSync(join(run.directory, 'tokens/2.jsonl'))).toBe(false);
    const [sample] = lines(run.directory, 'samples/1.jsonl');
    expect(sample).toMatchObject({
      index: 0,
      data_source: expect.any(String),
      response_length: expect.any(Number),
    });
  });

  test('computes the same without them', async () => {
    const off = ['logging.trace=false', 'logging.tokens.samples=0'];
    const [plain, written] = [trainer({ overrides: [...overrides, ...off] }), trainer({ overrides })];
    await plain.trainer.fit();
    await written.trainer.fit();
    expect(existsSync(join(plain.directory, 'trace.jsonl'))).toBe(false);
    expect(existsSync(join(plain.directory, 'tokens'))).toBe(false);
    expect(read(written.directory, 'metrics.jsonl')).toBe(read(plain.directory, 'metrics.jsonl'));
    expect(written.engines.calls).toEqual(plain.engines.calls);
  });

  test('after_update: log-probs of the new policy beside the old', async () => {
    const run = trainer({ overrides: [...overrides, 'logging.tokens.after_update=true'] });
    await run.trainer.fit();
    const [record] = lines(run.directory, 'tokens/1.jsonl').map((line) => tokensSchema.parse(line));
    expect(record?.new_log_probs).toHaveLength(record?.tokens.length as number);
    expect(record?.new_log_probs).not.toEqual(record?.old_log_probs);
  });

  test('a resumed run drops the trace after its checkpoint and keeps its events', async () => {
    const directory = runDirectory();
    const dying = new FakeEngines();
    dying.onCall = (_, name) => {
      if (name === 'updatePolicy' && dying.updates.length === 4) throw new Error('killed');
    };
    await expect(trainer({ directory, overrides, engines: dying }).trainer.fit()).rejects.toThrow('killed');
    await trainer({ directory, overrides }).trainer.fit();
    expect(lines(directory, 'trace.jsonl').map(({ step }) => step)).toEqual([1, 2, 3, 3, 4, 5, 6, 6]);
    const events = readFileSync(join(directory, 'events.jsonl'), 'utf8');
    expect(events).toContain('"error","message":"killed"');
    expect(events).toContain('goes on after step 3');
  });
});
