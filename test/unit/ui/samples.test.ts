// Samples: found in what runs write, chosen by what people look for, read whole from the disk.
import { appendFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Inside } from '../../../ts/ui/inside';
import { SampleIndex, type SampleQuery } from '../../../ts/ui/sample_index';
import { TRAJECTORY } from '../../helpers/synthetic_runs.mjs';

const ALL: SampleQuery = {
  kind: null,
  stepFrom: null,
  stepTo: null,
  scoreFrom: null,
  scoreTo: null,
  lengthFrom: null,
  lengthTo: null,
  source: null,
  text: '',
  sameAs: null,
  order: 'newest',
};

function indexOf(files: Record<string, object[]>, more: string[] = []) {
  const root = mkdtempSync(join(tmpdir(), 'samples-'));
  const write = (name: string, rows: object[]): void => {
    mkdirSync(join(root, 'run', name, '..'), { recursive: true });
    writeFileSync(join(root, 'run', name), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  };
  for (const [name, rows] of Object.entries(files)) write(name, rows);
  const index = new SampleIndex(new Inside(root), 'run', () => more, 0);
  index.refresh();
  const find = (query: Partial<SampleQuery>) => index.page({ ...ALL, ...query }, 0, 100).rows;
  return { root, index, find, write };
}

const row = (step: number, input: string, output: string, score: number, more: object = {}): object => ({
  step,
  input,
  output,
  gts: 'x',
  score,
  ...more,
});

const RUN = {
  'samples/1.jsonl': [
    row(1, 'p', 'first', 0, { data_source: 'a', response_length: 7, index: 0 }),
    row(1, 'q', 'second', 1, { data_source: 'b', response_length: 9, index: 4 }),
  ],
  'samples/2.jsonl': [row(2, 'p', 'later', 0.5, { data_source: 'a', response_length: 30, index: 0 })],
  'samples/validation_2.jsonl': [row(2, 'p', 'checked', 1)],
  'samples/notes.txt': [],
};

test('by kind, step, score, length, source, text, and order', () => {
  const { find } = indexOf(RUN);
  const outputs = (query: Partial<SampleQuery>): string[] => find(query).map(({ output }) => output);
  expect(outputs({ order: 'oldest' })).toEqual(['first', 'second', 'later', 'checked']);
  expect(outputs({ kind: 'validation' })).toEqual(['checked']);
  expect(outputs({ stepFrom: 2, stepTo: 2, kind: 'train' })).toEqual(['later']);
  expect(outputs({ scoreFrom: 0.5, kind: 'train', order: 'best' })).toEqual(['second', 'later']);
  expect(outputs({ lengthFrom: 8, lengthTo: 29 })).toEqual(['second']);
  expect(outputs({ source: 'a', order: 'worst' })).toEqual(['first', 'later']);
  expect(outputs({ text: ' LATE' })).toEqual(['later']);
  expect(outputs({ kind: 'train', order: 'longest' })).toEqual(['later', 'second', 'first']);
});

test('all answers to one prompt', () => {
  const { find } = indexOf(RUN);
  const [first] = find({ order: 'oldest' });
  expect(find({ sameAs: first?.key as string, order: 'oldest' }).map(({ output }) => output)).toEqual([
    'first',
    'later',
    'checked',
  ]);
});

test('text is found beyond what the list shows', () => {
  const { find } = indexOf({
    'samples/1.jsonl': [row(1, 'p', `${'long '.repeat(5000)}needle`, 0), row(1, 'p', 'short', 0)],
  });
  expect(find({ text: 'needle' })).toHaveLength(1);
  expect(find({ text: 'nowhere' })).toHaveLength(0);
});

test('one in full, with what the reward function returned', () => {
  const { index, find } = indexOf({
    'samples/3.jsonl': [row(3, 'p', 'a', 1, { acc: true, index: 2, data_source: 's' })],
  });
  const key = find({})[0]?.key as string;
  expect(index.detail(key, () => true)).toMatchObject({
    input: 'p',
    output: 'a',
    groundTruth: 'x',
    extras: { acc: true },
    turns: null,
    tokens: { step: 3, index: 2 },
  });
  expect(index.detail(key, () => false)?.tokens).toBeNull();
  for (const other of ['../../etc/passwd@0', 'samples/3.jsonl@1', ''])
    expect(index.detail(other, () => true)).toBeNull();
});

test('turns of any form are shown as far as they have one', () => {
  const call = { id: 'c', type: 'function', function: { name: 'search', arguments: '{"q":1}' } };
  const messages = [
    { role: 'user', content: 'x', versions: 3, seconds: '1', tool_calls: { a: 1 } },
    { role: 'assistant', content: null, tool_calls: [call, { name: 'b', arguments: {} }, 'c'] },
    { role: 7, text: ['part'], error: { code: 5 }, tool: { name: 't' }, versions: [1, 2] },
    null,
    'plain',
  ];
  const { index, find } = indexOf({ 'samples/1.jsonl': [row(1, 'p', 'o', 0, { messages })] });
  const [found] = find({});
  expect(found?.turns).toBe(5);
  expect(index.detail(found?.key ?? '', () => false)?.turns).toEqual([
    { role: 'user', content: 'x' },
    {
      role: 'assistant',
      content: '',
      tool_calls: [
        { name: 'search', arguments: '{"q":1}' },
        { name: 'b', arguments: {} },
        { name: '', arguments: undefined },
      ],
    },
    { role: '7', content: '["part"]', error: '{"code":5}', versions: [1, 2] },
    { role: 'turn', content: '' },
    { role: 'turn', content: 'plain' },
  ]);
});

test('trajectories: turns, tools and errors', () => {
  const { index, find } = indexOf({ 'samples/3.jsonl': [JSON.parse(TRAJECTORY)] });
  const [found] = find({});
  expect(found?.turns).toBe(6);
  const detail = index.detail(found?.key as string, () => false);
  expect(detail?.turns?.map(({ role }) => role)).toEqual([
    'user',
    'assistant',
    'tool',
    'assistant',
    'tool',
    'assistant',
  ]);
  expect(detail?.turns?.[4]).toMatchObject({ tool: 'search', error: 'no answer within 5 s' });
  expect(find({ text: 'analytical engine' })).toHaveLength(1);
});

test('dumps of rollout_data_dir by the name of their folder, torn and wrong lines left out, files that come and go', () => {
  const { root, index, find, write } = indexOf({ 'all_of_them/1.jsonl': [row(1, 'p', 'dumped', 0)] }, [
    'all_of_them',
  ]);
  expect(find({})).toHaveLength(1);
  const path = join(root, 'run/all_of_them/1.jsonl');
  appendFileSync(path, 'no json\n[1]\n{"step":1,"input":"p","output":"to');
  expect(index.refresh()).toBe(true);
  expect(find({})).toHaveLength(1);
  appendFileSync(path, 'rn","score":"NaN"}\n');
  index.refresh();
  expect(find({}).map(({ output, score }) => [output, score])).toContainEqual(['torn', null]);
  expect(index.refresh()).toBe(false);
  write('samples/9.jsonl', [row(9, 'p', 'new', 1)]);
  index.refresh();
  expect(index.count).toBe(3);
  rmSync(join(root, 'run/all_of_them'), { recursive: true });
  index.refresh();
  expect(index.count).toBe(1);
});
