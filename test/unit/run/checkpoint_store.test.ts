import { execFileSync } from 'node:child_process';
import fs, {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { CheckpointStore } from '../../../ts/run/checkpoint_store';
import { type DumpRow, RunDirectory, writeDump } from '../../../ts/run/run_directory';

const real = fs.renameSync;
const root = (): string => mkdtempSync(join(tmpdir(), 'checkpoints-'));
const fill = (text: string) => async (directory: string) => {
  mkdirSync(join(directory, 'actor'));
  writeFileSync(join(directory, 'actor', 'weights'), text);
};

describe('CheckpointStore', () => {
  test('saves, finds the latest, keeps the newest N', async () => {
    const store = new CheckpointStore<{ n: number }>(root(), 2);
    expect(store.latest()).toBeNull();
    for (const step of [2, 4, 10]) await store.save(step, { n: step }, fill(String(step)));
    expect(readdirSync(store.root).sort()).toEqual([
      'global_step_10',
      'global_step_4',
      'latest_checkpointed_iteration.txt',
    ]);
    const latest = store.latest();
    expect(latest).toMatchObject({ step: 10, state: { n: 10 } });
    expect(readFileSync(join(latest?.directory as string, 'actor', 'weights'), 'utf8')).toBe('10');
  });

  test('a failing save leaves the earlier checkpoint and nothing else', async () => {
    const store = new CheckpointStore<object>(root());
    await store.save(1, {}, fill('1'));
    const full = Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' });
    const saving = store.save(2, {}, async (directory) => {
      await fill('2')(directory);
      throw full;
    });
    await expect(saving).rejects.toMatchObject({
      code: 'NO_SPACE',
      message: expect.stringContaining('global_step_2'),
    });
    expect(readdirSync(store.root).sort()).toEqual(['global_step_1', 'latest_checkpointed_iteration.txt']);
    expect(store.latest()?.step).toBe(1);
  });

  test('a step that is saved again stays as it was until the new one can take its place', async () => {
    const store = new CheckpointStore<{ n: number }>(root());
    await store.save(1, { n: 1 }, fill('1'));
    const rename = jest.spyOn(fs, 'renameSync').mockImplementation((from, to) => {
      if (basename(String(to)) === 'global_step_1' && existsSync(join(String(from), 'trainer.json'))) {
        rename.mockRestore();
        throw Object.assign(new Error('EIO: i/o error, rename'), { code: 'EIO' });
      }
      real(from, to);
    });
    await expect(store.save(1, { n: 2 }, fill('2'))).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringContaining('global_step_1 is as it was'),
    });
    expect(store.latest()?.state).toEqual({ n: 1 });
    await store.save(1, { n: 2 }, fill('2'));
    expect(store.latest()?.state).toEqual({ n: 2 });
    expect(readdirSync(store.root).filter((name) => name.startsWith('.'))).toEqual([]);
  });

  test('survives what a process leaves that is killed as it writes, before it names the step, or as it overwrites', async () => {
    const store = new CheckpointStore<object>(root());
    await store.save(1, {}, fill('1'));
    // Killed while writing step 2; and after its rename, before `latest`.
    mkdirSync(join(store.root, '.incomplete_global_step_2', 'actor'), { recursive: true });
    expect(store.latest()?.step).toBe(1);
    mkdirSync(join(store.root, 'global_step_2'));
    writeFileSync(join(store.root, 'global_step_2', 'trainer.json'), '{}');
    expect(store.latest()?.step).toBe(1);
    await store.save(2, {}, fill('2'));
    expect(store.latest()?.step).toBe(2);
    expect(readdirSync(store.root).filter((name) => name.startsWith('.'))).toEqual([]);
    // Killed while step 2 was being overwritten.
    rmSync(join(store.root, 'global_step_2'), { recursive: true });
    expect(store.latest()?.step).toBe(1);
  });

  test('names what is not a checkpoint', async () => {
    const store = new CheckpointStore<object>(root());
    expect(() => store.read(join(store.root, 'global_step_9'))).toThrow(/global_step_9 is not a checkpoint/);
    expect(() => store.read(store.root)).toThrow(/is not a checkpoint/);
    await store.save(3, {}, fill('3'));
    writeFileSync(join(store.root, 'global_step_3', 'trainer.json'), '{"ste');
    expect(() => store.latest()).toThrow(/trainer\.json is damaged/);
    writeFileSync(join(store.root, 'latest_checkpointed_iteration.txt'), 'three');
    expect(() => store.latest()).toThrow(
      /expected a step number but got "three": write that of .*, or remove the file/,
    );
  });
});

describe('RunDirectory', () => {
  it('writes integers beyond 2^53 of a data set as their digits', () => {
    const row: DumpRow = {
      step: 1,
      input: 'a',
      output: 'b',
      gts: 2n ** 60n,
      score: 1,
      extra: { id: [2n ** 53n + 1n] },
    };
    const dump = join(root(), 'dump');
    writeDump(dump, '1', [row]);
    expect(JSON.parse(readFileSync(join(dump, '1.jsonl'), 'utf8'))).toMatchObject({
      gts: '1152921504606846976',
      extra: { id: ['9007199254740993'] },
    });
  });

  test('refuses a path it cannot write to', () => {
    const file = join(root(), 'file');
    writeFileSync(file, '');
    expect(() => new RunDirectory(join(file, 'run'))).toThrow(/default_local_dir .*file\/run/);
    expect(() => new RunDirectory('/proc/no/run')).toThrow(/default_local_dir \/proc\/no\/run/);
  });

  test('rewinds a log to a step and drops a torn last line', () => {
    const directory = new RunDirectory(root());
    const log = directory.file('metrics.jsonl');
    const lines = [0, 1, 2, 3].map((step) => `{"step":${step},"x":1}\n`);
    writeFileSync(log, `${lines.join('')}{"step":4,"x`);
    directory.rewindLog('metrics.jsonl', 2);
    expect(readFileSync(log, 'utf8')).toBe(lines.slice(0, 3).join(''));
    directory.rewindLog('metrics.jsonl', 0);
    expect(readFileSync(log, 'utf8')).toBe('');
    directory.rewindLog('absent.jsonl', 0);
    expect(existsSync(directory.file('absent.jsonl'))).toBe(false);
  });

  test('samples are spread over the batch; a dump has them all', () => {
    const directory = new RunDirectory(root());
    const rows: DumpRow[] = Array.from({ length: 10 }, (_, i) => ({
      step: 1,
      input: `${i}`,
      output: '',
      gts: 1,
      score: 0,
    }));
    directory.writeSamples('1', rows);
    const inputs = (path: string): string[] =>
      readFileSync(path, 'utf8')
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line).input);
    expect(inputs(join(directory.path, 'samples', '1.jsonl'))).toEqual(['0', '2', '4', '6']);
    const dump = join(directory.path, 'dump');
    writeDump(dump, '1', rows);
    writeDump(dump, '1', rows);
    expect(inputs(join(dump, '1.jsonl'))).toHaveLength(10);
  });

  test.each<[string, (path: string) => void, RegExp]>([
    ['a directory', (path) => mkdirSync(path), /it is a directory/],
    ['a FIFO', (path) => execFileSync('mkfifo', [path]), /it is a FIFO/],
    ['an endless device', (path) => symlinkSync('/dev/zero', path), /it is a device/],
    ['a device that is full', (path) => symlinkSync('/dev/full', path), /it is a device/],
  ])('%s instead of a log or of the newest step is refused, not read', (_, make, what) => {
    const directory = new RunDirectory(root());
    make(directory.file('metrics.jsonl'));
    expect(() => directory.rewindLog('metrics.jsonl', 1)).toThrow(what);
    expect(() => directory.rewindLog('metrics.jsonl', 1)).toThrow(directory.file('metrics.jsonl'));
    make(directory.file('latest_checkpointed_iteration.txt'));
    const store = new CheckpointStore<object>(directory.path);
    expect(() => store.latest()).toThrow(what);
    expect(() => store.latest()).toThrow(/latest_checkpointed_iteration/);
  });

  test('what cannot be written is named, with a code', () => {
    const directory = new RunDirectory(root());
    mkdirSync(join(directory.file('config.json'), 'in the way'), { recursive: true });
    expect(codeOf(() => directory.writeJson('config.json', {}))).toEqual([
      'IO',
      directory.file('config.json'),
    ]);
    mkdirSync(directory.file('.incomplete_other.json'));
    expect(codeOf(() => directory.writeJson('other.json', {}))).toEqual(['IO', directory.file('other.json')]);
    symlinkSync('/dev/full', directory.file('.incomplete_full.json'));
    expect(codeOf(() => directory.writeJson('full.json', {}))).toEqual([
      'NO_SPACE',
      directory.file('full.json'),
    ]);
    writeFileSync(directory.file('samples'), '');
    expect(codeOf(() => directory.writeSamples('1', []))).toEqual(['IO', directory.file('samples/1.jsonl')]);
  });
});

/** The code of what is thrown, and the file that its message names. */
function codeOf(act: () => void): (string | undefined)[] {
  try {
    act();
    return [];
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    return [code, /^cannot write (\S+):/.exec(message)?.[1]];
  }
}
