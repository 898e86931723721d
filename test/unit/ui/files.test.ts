// How the page's server reads what runs write: nothing outside, nothing twice, nothing torn.
import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Inside } from '../../../ts/ui/inside';
import { jsonObject, LineTail } from '../../../ts/ui/line_tail';
import { RunList } from '../../../ts/ui/run_list';
import { sparkline, summaryOf } from '../../../ts/ui/run_summary';
import { RunView } from '../../../ts/ui/run_view';
import { makeFifo } from '../../helpers/fifo';
import { writeRun } from '../../helpers/synthetic_runs.mjs';

const temporary = (): string => mkdtempSync(join(tmpdir(), 'ui-'));
const idsOf = (inside: Inside): string[] => {
  const list = new RunList(inside);
  list.scan();
  return list.all().map(({ id }) => id);
};

describe('Inside', () => {
  test('links and what they lead to are not there, nor pipes', () => {
    const [root, outside] = [temporary(), temporary()];
    writeFileSync(join(outside, 'secret'), 'secret');
    mkdirSync(join(root, 'run'));
    writeFileSync(join(root, 'run', 'plain'), 'text');
    symlinkSync(join(outside, 'secret'), join(root, 'run', 'link'));
    symlinkSync(outside, join(root, 'directory'));
    makeFifo(join(root, 'run', 'pipe'));
    const inside = new Inside(root);
    expect(inside.text('run/plain')).toBe('text');
    for (const path of [
      'run/link',
      'directory/secret',
      'run/pipe',
      'run',
      'run/none',
      '../secret',
      `../${outside.split('/').at(-1)}/secret`,
    ])
      expect([path, inside.text(path)]).toEqual([path, null]);
    expect(
      inside
        .list('run')
        .map(({ name }) => name)
        .sort(),
    ).toEqual(['pipe', 'plain']);
    expect(inside.list('directory')).toEqual([]);
    expect(inside.list('..')).toEqual([]);
  });

  test('what cannot be looked at is not there', () => {
    const root = temporary();
    writeFileSync(join(root, 'plain'), 'text');
    const inside = new Inside(root);
    expect(inside.stamp('plain')).not.toBe('');
    for (const path of ['none', 'plain/metrics.jsonl', 'x'.repeat(300), 'nul\0'])
      expect([path, inside.stamp(path)]).toEqual([path, '']);
  });
});

describe('LineTail', () => {
  function watched() {
    const root = temporary();
    const path = join(root, 'log');
    const seen: string[] = [];
    const tail = new LineTail(new Inside(root), 'log', {
      line: (text) => seen.push(text),
      reset: () => seen.push('RESET'),
    });
    const poll = (): string[] => {
      seen.length = 0;
      tail.poll();
      return [...seen];
    };
    return { path, poll };
  }

  test('each line once; a torn one when it is whole', () => {
    const { path, poll } = watched();
    expect(poll()).toEqual([]);
    writeFileSync(path, 'one\ntwo\nthr');
    expect(poll()).toEqual(['one', 'two']);
    expect(poll()).toEqual([]);
    appendFileSync(path, 'ee\n');
    expect(poll()).toEqual(['three']);
  });

  test('truncated, replaced, rewritten in place, deleted: what was read does not hold any more', () => {
    const { path, poll } = watched();
    writeFileSync(path, 'one\ntwo\n');
    poll();
    truncateSync(path, 4);
    expect(poll()).toEqual(['RESET', 'one']);
    writeFileSync(`${path}.new`, 'uno\ndos\ntres\n');
    renameSync(`${path}.new`, path);
    expect(poll()).toEqual(['RESET', 'uno', 'dos', 'tres']);
    writeFileSync(path, 'another beginning\nand a longer file than before\n');
    expect(poll()).toEqual(['RESET', 'another beginning', 'and a longer file than before']);
    rmSync(path);
    expect(poll()).toEqual(['RESET']);
    expect(poll()).toEqual([]);
  });

  test('replaced by a file that goes on alike: its beginning is another one', () => {
    const { path, poll } = watched();
    const alike = 'x'.repeat(100);
    writeFileSync(path, `one\n${alike}\n`);
    poll();
    writeFileSync(`${path}.new`, `uno\n${alike}\nmore\n`);
    renameSync(`${path}.new`, path);
    expect(poll()).toEqual(['RESET', 'uno', alike, 'more']);
  });

  test('a line of many megabytes', () => {
    const { path, poll } = watched();
    const long = 'x'.repeat(9 << 20);
    writeFileSync(path, `a\n${long}\nb\n`);
    expect(poll().map((line) => line.length)).toEqual([1, 9 << 20, 1]);
  });

  test('what is no object of JSON is null', () => {
    for (const text of ['', '{"a":', '[1]', 'null', '3']) expect(jsonObject(text)).toBeNull();
  });
});

describe('runs', () => {
  test('found at any depth, in the directory itself, and not through links', () => {
    const root = temporary();
    for (const id of ['a', 'deep/er/b']) writeRun(join(root, id), { steps: 5 });
    writeRun(join(temporary(), 'elsewhere'), { steps: 5 });
    symlinkSync(join(root, 'a'), join(root, 'linked'));
    expect(idsOf(new Inside(root)).sort()).toEqual(['a', 'deep/er/b']);
    expect(idsOf(new Inside(join(root, 'a')))).toEqual(['']);
    expect(new RunView(new Inside(join(root, 'a')), '').planPage().plan?.pools).toHaveLength(1);
  });

  test('whatever they are called, and not in the directories of a run', () => {
    const root = temporary();
    const names = ['samples', 'tokens_32k', 'tensorboard-off', 'final_model2', 'global_step_1b'];
    for (const id of ['a', 'a/inner', 'a/samples', 'a/global_step_3', ...names])
      writeRun(join(root, id), { steps: 2 });
    for (const id of ['.hidden', 'node_modules']) writeRun(join(root, id), { steps: 2 });
    expect(idsOf(new Inside(root)).sort()).toEqual(['a', 'a/inner', ...names].sort());
  });

  test.each([
    ['running', 'running'],
    ['finished', 'finished'],
    ['failed', 'failed'],
    ['interrupted', 'interrupted'],
  ])('a run that is %s', (state, expected) => {
    const root = temporary();
    writeRun(join(root, 'a'), { steps: 100, state });
    const summary = summaryOf(new Inside(root), 'a');
    expect(summary).toMatchObject({ state: expected, step: 100, algorithm: 'gae', program: 'train' });
    expect(summary.headline?.name).toBe('val-core/math/acc/mean@4');
    expect(summary.totalSteps).toBe(state === 'running' ? 200 : 100);
    expect(summary.eta === null).toBe(state !== 'running');
  });

  test('a run whose process is gone without an end is lost', () => {
    const root = temporary();
    writeRun(join(root, 'a'), { steps: 3, state: 'lost' });
    const path = join(root, 'a', 'events.jsonl');
    const inside = new Inside(root);
    const events = inside.text('a/events.jsonl') as string;
    writeFileSync(path, `${events.split('\n')[0]}\n`);
    expect(summaryOf(inside, 'a').state).toBe('lost');
  });

  test('the small curve has steps in order and both ends of a run', () => {
    const root = temporary();
    writeRun(join(root, 'a'), { steps: 2000 });
    const steps = sparkline(new Inside(root), 'a').map(([step]) => step);
    expect(steps.length).toBeGreaterThan(20);
    expect(steps).toEqual([...steps].sort((a, b) => a - b));
    expect([(steps[0] as number) < 50, (steps.at(-1) as number) > 1900]).toEqual([true, true]);
  });
});

describe('RunView', () => {
  test('follows a run that writes, and one that goes back', () => {
    const root = temporary();
    const directory = join(root, 'a');
    writeRun(directory, { steps: 20, state: 'running' });
    const view = new RunView(new Inside(root), 'a');
    view.refresh();
    const before = view.stamp;
    const points = (): number =>
      view.series.metrics().find(({ name }) => name === 'critic/score/mean')?.points as number;
    expect(points()).toBe(20);
    view.refresh();
    expect(view.stamp).toEqual(before);
    appendFileSync(
      join(directory, 'metrics.jsonl'),
      '{"step":21,"critic/score/mean":0.5}\n{"step":22,"critic/sc',
    );
    view.refresh();
    expect([points(), view.stamp.metrics > before.metrics]).toEqual([21, true]);
    // As a resumed run does: another file under the same name, with fewer lines.
    const text = new Inside(root).text('a/metrics.jsonl') as string;
    writeFileSync(
      join(directory, 'new'),
      text
        .split('\n')
        .slice(0, 10)
        .map((line) => `${line}\n`)
        .join(''),
    );
    renameSync(join(directory, 'new'), join(directory, 'metrics.jsonl'));
    view.refresh();
    expect(points()).toBe(10);
    expect(view.series.metrics().some(({ name }) => name === 'timing_s/gen')).toBe(true);
    rmSync(directory, { recursive: true });
    view.refresh();
    expect(view.series.metrics()).toEqual([]);
    expect(view.events).toEqual([]);
  });

  test('an event at a time that no calendar has is left out, and no state of the run', () => {
    const root = temporary();
    writeRun(join(root, 'a'), { steps: 3 });
    const inside = new Inside(root);
    const before = [new RunView(inside, 'a'), summaryOf(inside, 'a')] as const;
    before[0].refresh();
    for (const time of [1e20, -1e20, 8.7e12])
      appendFileSync(
        join(root, 'a', 'events.jsonl'),
        `${JSON.stringify({ time, step: 3, kind: 'note', message: 'n' })}\n`,
      );
    const view = new RunView(inside, 'a');
    view.refresh();
    expect(view.events).toEqual(before[0].events);
    expect(view.events.map(({ time }) => new Date(time * 1000).toISOString())).not.toHaveLength(0);
    expect(summaryOf(inside, 'a').state).toBe(before[1].state);
  });

  test('trace, tokens, plan and peaks of memory', () => {
    const root = temporary();
    writeRun(join(root, 'a'), { steps: 50, ranks: 3 });
    const view = new RunView(new Inside(root), 'a');
    view.refresh();
    expect(view.trace(null, null).lines.map(({ step }) => step)).toEqual([46, 47, 48, 49, 50]);
    expect(view.trace(20, 21).lines[0]?.ranks).toHaveLength(3);
    expect(view.tokens(null).records).toHaveLength(2);
    expect(view.hasTokens(41, 64)).toBe(true);
    expect(view.hasTokens(41, 63)).toBe(false);
    expect(view.planPage().measured.map(({ rank }) => rank)).toEqual([0, 1, 2]);
  });
});
