import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WorkerLogs } from '../../../ts/controller/worker_log';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'worker-logs-'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const withoutTimes = (path: string): string =>
  readFileSync(path, 'utf8').replace(/^\d{4}-\d\d-\d\dT[\d:.]+Z /gm, '');

test('a file per start, pool and rank; only the last starts stay', () => {
  writeFileSync(join(directory, 'start_notes.txt'), 'not ours');
  for (let start = 1; start <= 12; start++) {
    const logs = new WorkerLogs(directory, { maxBytes: 1000, starts: 3 });
    logs.of(null, 1).line(`in start ${start}`, true);
    logs.of('reward', 0).line('scored', false);
  }
  expect(readdirSync(directory).sort()).toEqual([
    'start_0010',
    'start_0011',
    'start_0012',
    'start_notes.txt',
  ]);
  expect(readdirSync(join(directory, 'start_0012')).sort()).toEqual(['rank_1.log', 'reward_rank_0.log']);
  expect(withoutTimes(join(directory, 'start_0012', 'rank_1.log'))).toBe('stderr in start 12\n');
  expect(withoutTimes(join(directory, 'start_0012', 'reward_rank_0.log'))).toBe('stdout scored\n');
});

test('a worker that writes without end takes no more than its size, and its last lines are there', () => {
  const log = new WorkerLogs(directory, { maxBytes: 10_000, starts: 1 }).of(null, 0);
  for (let i = 0; i < 5_000; i++) log.line(`line ${i}`, true);
  log.line('x'.repeat(1 << 20), true);
  log.line('the last words', true);
  const file = log.path as string;
  const sizes = [file, `${file}.1`].map((path) => statSync(path).size);
  expect(Math.min(...sizes)).toBeGreaterThan(0);
  // A single line is cut, but never split.
  expect(Math.max(...sizes)).toBeLessThan(70_000);
  expect(withoutTimes(file)).toMatch(/stderr the last words\n$/);
  rmSync(`${file}.1`);
  rmSync(file);
  const again = new WorkerLogs(directory, { maxBytes: 10_000, starts: 1 }).of(null, 0);
  for (let i = 0; i < 5_000; i++) again.line(`line ${i}`, true);
  expect(statSync(again.path as string).size + statSync(`${again.path}.1`).size).toBeLessThanOrEqual(10_000);
});

test('a worker that says nothing has no file, and a start without files no directory', () => {
  const logs = new WorkerLogs(join(directory, 'logs'), { maxBytes: 10_000, starts: 1 });
  const [silent, hangs] = [logs.of(null, 0), logs.of(null, 1)];
  for (const log of [silent, hangs]) log.note('it is started');
  silent.note('it has ended');
  expect(silent.path).toBeNull();
  expect(readdirSync(directory)).toEqual([]);
  hangs.stacks('thread 1\n  in poll');
  hangs.note('it has ended');
  expect(readdirSync(logs.directory)).toEqual(['rank_1.log']);
  expect(withoutTimes(hangs.path as string)).toBe(
    '------ it is started\n------ thread 1\n------   in poll\n------ it has ended\n',
  );
});

test('what cannot be written is counted, and ends nothing', () => {
  const logs = new WorkerLogs(directory, { maxBytes: 10_000, starts: 1 });
  const log = logs.of(null, 0);
  rmSync(logs.directory, { recursive: true });
  writeFileSync(logs.directory, 'a file is in the way');
  log.line('one', false);
  log.line('two', false);
  expect(existsSync(log.path as string)).toBe(false);
  rmSync(logs.directory);
  const found = new WorkerLogs(directory, { maxBytes: 10_000, starts: 1 });
  expect(found.directory).toBe(logs.directory);
  log.line('three', false);
  expect(withoutTimes(log.path as string)).toBe('------ 2 lines could not be written\nstdout three\n');
});
