import { mkdirSync, readFileSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { JsonlLogger } from '../../../ts/logging/jsonl_logger';
import type { MetricLogger } from '../../../ts/logging/logger';
import { createLoggers, Loggers } from '../../../ts/logging/loggers';
import { RunDirectory } from '../../../ts/run/run_directory';
import { loggingConfig, temporary } from '../../helpers/logged_run';

const read = (directory: string, name: string): string => readFileSync(join(directory, name), 'utf8');
const silent = loggingConfig();

describe('metrics.jsonl and timings.jsonl', () => {
  test('hold what is reproducible, and what is not', async () => {
    const directory = temporary();
    const loggers = createLoggers(silent, directory);
    const timings = {
      'timing_s/step': 1.5,
      'timing_per_token_ms/gen': 0.1,
      'perf/throughput': 1e3,
      'rollout/spec_accept_rate': 0.25,
    };
    await loggers.log({ 'actor/pg_loss': -0.1, ...timings }, 1);
    await loggers.log({ 'timing_s/save_checkpoint': 2 }, 1);
    await loggers.close();
    expect(read(directory, 'metrics.jsonl')).toBe('{"step":1,"actor/pg_loss":-0.1}\n');
    expect(read(directory, 'timings.jsonl').split('\n').map(lineOf)).toEqual([
      { step: 1, ...timings },
      { step: 1, 'timing_s/save_checkpoint': 2 },
      null,
    ]);
  });

  test('numbers that JSON cannot hold are strings', async () => {
    const directory = temporary();
    await createLoggers(silent, directory).log({ a: NaN, b: Infinity, c: -Infinity, d: 5e-324 }, 7);
    expect(lineOf(read(directory, 'metrics.jsonl'))).toEqual({
      step: 7,
      a: 'NaN',
      b: 'Infinity',
      c: '-Infinity',
      d: 5e-324,
    });
  });

  test('go on after a resume where the checkpoint stands', async () => {
    const directory = temporary();
    const loggers = createLoggers(silent, directory);
    for (const step of [1, 2, 3]) await loggers.log({ loss: step }, step);
    new RunDirectory(directory).rewindLog('metrics.jsonl', 2);
    await createLoggers(silent, directory).log({ loss: 30 }, 3);
    expect(read(directory, 'metrics.jsonl').trim().split('\n').map(lineOf)).toEqual([
      { step: 1, loss: 1 },
      { step: 2, loss: 2 },
      { step: 3, loss: 30 },
    ]);
  });
});

describe('a logger that fails', () => {
  test('is named once and stops neither the run nor the others', async () => {
    const warnings: string[] = [];
    const seen: number[] = [];
    const broken: MetricLogger = {
      name: 'broken',
      log: async () => {
        throw new Error('no space left');
      },
      close: () => {
        throw new Error('again');
      },
    };
    const sound: MetricLogger = { name: 'sound', log: (_, step) => void seen.push(step), close: () => {} };
    const loggers = new Loggers([broken, sound], (line) => warnings.push(line));
    await loggers.log({}, 1);
    await loggers.log({}, 2);
    await loggers.close();
    expect(seen).toEqual([1, 2]);
    expect(warnings).toEqual([expect.stringMatching(/warning: \[logging\] broken failed.*: no space left/)]);
  });

  test('writes again once it can', async () => {
    const directory = temporary();
    const warnings: string[] = [];
    const loggers = new Loggers([new JsonlLogger(directory, 'm.jsonl')], (line) => warnings.push(line));
    mkdirSync(join(directory, 'm.jsonl'));
    await loggers.log({ a: 1 }, 1);
    rmdirSync(join(directory, 'm.jsonl'));
    await loggers.log({ a: 2 }, 2);
    expect(warnings).toHaveLength(1);
    expect(read(directory, 'm.jsonl')).toBe('{"step":1,"a":1}\n{"step":2,"a":2}\n');
  });
});

describe('answers of a validation', () => {
  const all = Array.from({ length: 10 }, (_, i) => ({ input: `p${i}`, output: `a${i}`, gts: i, score: 0 }));

  test('reach the loggers that show texts, evenly spread over all', async () => {
    const seen: string[][] = [];
    const texts: MetricLogger = {
      name: 'texts',
      log: () => {},
      logGenerations: (chosen) => void seen.push(chosen.map(({ input }) => input)),
      close: () => {},
    };
    const numbers: MetricLogger = { name: 'numbers', log: () => {}, close: () => {} };
    await new Loggers([numbers, texts], () => {}, 4).logGenerations(all, 1);
    await new Loggers([numbers, texts], () => {}, 99).logGenerations(all, 1);
    await new Loggers([numbers, texts], () => {}, 0).logGenerations(all, 1);
    expect(seen).toEqual([['p0', 'p2', 'p5', 'p7'], all.map(({ input }) => input)]);
  });
});

test('loggers hear how the run ended', async () => {
  const ends: string[] = [];
  const logger: MetricLogger = { name: 'l', log: () => {}, close: (outcome) => void ends.push(outcome) };
  await new Loggers([logger]).close('failed');
  await new Loggers([logger]).close();
  expect(ends).toEqual(['failed', 'finished']);
});

function lineOf(line: string): unknown {
  return line === '' ? null : JSON.parse(line);
}
