// Whole runs over fakes: what a resumed run goes on from, refuses and leaves alone.
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FakeEngines, read, runDirectory } from '../../helpers/fake_run';
import { editState, LATEST, session, steps, stoppedAtTwo } from './resumed_run';

const { copy, whole } = stoppedAtTwo();

describe('the newest checkpoint', () => {
  test('of all the steps that a run has: it says how to go on, or to begin anew', async () => {
    const directory = copy();
    expect((await session(directory)).said).toContainEqual(
      expect.stringMatching(/^resuming after step 2 from /),
    );
    const { updates, said } = await session(directory);
    expect(updates).toBe(0);
    expect(said).toContainEqual(
      expect.stringMatching(
        /^nothing to train: .*global_step_4 has all of the 4 steps; more .*, another .* anew$/,
      ),
    );
  });

  test('without the file that names it: that of the last step, and a note', async () => {
    const directory = copy();
    rmSync(join(directory, LATEST));
    const { updates, said } = await session(directory);
    expect(updates).toBe(2);
    expect(said).toContainEqual(
      expect.stringMatching(/^note: .* does not say which checkpoint is the newest: .* step 2/),
    );
    expect(read(directory, 'metrics.jsonl')).toBe(whole.metrics);
  });

  test('without that file, among the checkpoints of several runs: of the run that began last', async () => {
    const directory = copy();
    // The second run saves steps 1 and 3; the first has saved step 2.
    const dying = new FakeEngines();
    dying.onCall = (_, name) => {
      if (name === 'updatePolicy' && dying.updates.length === 2) throw new Error('killed');
    };
    await expect(
      session(directory, ['trainer.resume_mode=disable', 'trainer.save_freq=1'], dying),
    ).rejects.toThrow('killed');
    expect(steps(directory)).toEqual(['global_step_1', 'global_step_2']);
    cpSync(join(copy(), 'global_step_2'), join(directory, 'global_step_3'), { recursive: true });
    rmSync(join(directory, LATEST));
    const { said } = await session(directory);
    expect(said).toContainEqual(expect.stringMatching(/resuming after step 2/));
  });

  test('which the file names and is not there: the one before it, with a warning; without any an error, and logs stay', async () => {
    const directory = copy();
    writeFileSync(join(directory, LATEST), '3');
    const { updates, said } = await session(directory);
    expect(updates).toBe(2);
    expect(said).toContainEqual(
      expect.stringMatching(
        /^note: warning: .*global_step_3, by .* is not there.*; going on from step 2 instead/,
      ),
    );
    for (const name of steps(directory)) rmSync(join(directory, name), { recursive: true });
    const before = read(directory, 'metrics.jsonl');
    await expect(session(directory)).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringMatching(/global_step_4, by .* is not there: .*resume_mode=disable begins anew/),
    });
    expect(read(directory, 'metrics.jsonl')).toBe(before);
    expect((await session(directory, ['trainer.resume_mode=disable'])).updates).toBe(4);
  });

  test.each([
    ['a directory', (path: string) => mkdirSync(path)],
    ['garbage', (path: string) => writeFileSync(path, 'x'.repeat(500))],
  ])('%s instead of that file is named', async (_, make) => {
    const directory = copy();
    rmSync(join(directory, LATEST));
    make(join(directory, LATEST));
    const failed = session(directory).catch((error: Error) => error);
    expect(await failed).toMatchObject({
      code: 'IO',
      message: expect.stringContaining(join(directory, LATEST)),
    });
    expect(((await failed) as Error).message.length).toBeLessThan(300);
  });
});

describe('a checkpoint of version 1', () => {
  const recorded = join(__dirname, '../../fixtures/runs/version_1');
  const old = (): string => {
    const directory = mkdtempSync(join(tmpdir(), 'version-1-'));
    cpSync(recorded, directory, { recursive: true });
    return directory;
  };

  test('is resumed, with the numbers of the run that it is of', async () => {
    const directory = old();
    const { updates } = await session(directory);
    expect(updates).toBe(2);
    expect(read(directory, 'metrics.jsonl')).toBe(read(recorded, 'metrics.jsonl'));
    expect(JSON.parse(read(directory, 'global_step_4/trainer.json')).version).toBe(2);
  });

  test('and what that session saved is resumed again', async () => {
    const directory = old();
    const asked = 'trainer.total_training_steps=';
    await session(directory, [`${asked}3`]);
    await expect(session(directory)).resolves.toMatchObject({ updates: 1 });
    expect(read(directory, 'metrics.jsonl')).toBe(read(recorded, 'metrics.jsonl'));
  });

  test.each<[string, (state: Record<string, unknown>) => void, RegExp]>([
    ['version', (s) => (s['version'] = 3), /version: expected 1 or 2/],
    ['version', (s) => (s['version'] = 2), /expected the checksums of its files/],
    ['step', (s) => (s['step'] = 3), /expected step 2, .* got step 3/],
    ['step', (s) => (s['step'] = 0.5), /step: /],
    ['seed', (s) => (s['seed'] = 'x'), /seed: /],
    ['loader', (s) => (s['loader'] = null), /loader: expected a position/],
    ['klController', (s) => (s['klController'] = { value: -5 }), /klController\.value: .* got -5/],
    ['klController', (s) => (s['klController'] = {}), /klController\.value: /],
    ['config', (s) => (s['config'] = 7), /config: /],
  ])('%s that cannot be: refused', async (_, edit, message) => {
    const directory = old();
    editState(directory, edit);
    await expect(session(directory)).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringMatching(message),
    });
  });
});

describe('a directory with an earlier run', () => {
  const keep = ['trainer.max_actor_ckpt_to_keep=2', 'trainer.resume_mode=disable'];

  test('its checkpoints neither count nor are removed', async () => {
    const directory = copy();
    await session(directory, [...keep, 'trainer.save_freq=3', 'trainer.total_training_steps=5']);
    // Of the new run 3 and 5; 2 is of the run before.
    expect(steps(directory)).toEqual(['global_step_2', 'global_step_3', 'global_step_5']);
    await session(directory, [
      'trainer.max_actor_ckpt_to_keep=2',
      'trainer.save_freq=1',
      'trainer.total_training_steps=7',
    ]);
    expect(steps(directory)).toEqual(['global_step_2', 'global_step_6', 'global_step_7']);
  });

  test('a resumed run removes what it saved before it was interrupted', async () => {
    const directory = copy();
    const overrides = ['trainer.max_actor_ckpt_to_keep=1', 'trainer.save_freq=1'];
    await session(directory, overrides);
    expect(steps(directory)).toEqual(['global_step_4']);
  });
});

describe('metrics.jsonl', () => {
  test('a line that was torn is written again from the checkpoint', async () => {
    const directory = copy();
    const lines = whole.metrics.split('\n');
    const two = lines.findIndex((line) => line.startsWith('{"step":2'));
    writeFileSync(
      join(directory, 'metrics.jsonl'),
      [...lines.slice(0, two), lines[two]?.slice(0, 40)].join('\n'),
    );
    await session(directory);
    expect(read(directory, 'metrics.jsonl')).toBe(whole.metrics);
  });

  test('lines that could not be written are in the next checkpoint', async () => {
    const directory = copy();
    const engines = new FakeEngines();
    const log = join(directory, 'metrics.jsonl');
    engines.onCall = (_, name) => {
      if (name !== 'updatePolicy' || existsSync(`${log}.moved`)) return;
      // From here on it cannot be appended to.
      cpSync(log, `${log}.moved`);
      rmSync(log);
      mkdirSync(log);
    };
    const stderr = jest.spyOn(process.stderr, 'write').mockReturnValue(true);
    await session(directory, [], engines);
    const said = stderr.mock.calls.map(([line]) => String(line));
    stderr.mockRestore();
    expect(said).toEqual([
      expect.stringMatching(/metrics\.jsonl failed, its lines wait in memory: EISDIR/),
      expect.stringMatching(/metrics\.jsonl failed, .*its last 2 lines are lost: EISDIR/),
    ]);
    rmSync(log, { recursive: true });
    cpSync(`${log}.moved`, log);
    await session(directory);
    expect(read(directory, 'metrics.jsonl')).toBe(whole.metrics);
  });
});

test('a run directory that is removed while the run writes to it ends the run', async () => {
  for (const again of [false, true]) {
    const directory = runDirectory();
    const engines = new FakeEngines();
    engines.onCall = (_, name) => {
      if (name !== 'updatePolicy' || engines.updates.length !== 1) return;
      rmSync(directory, { recursive: true });
      // Many file systems would give the new one the number of the old.
      if (again) mkdirSync(directory);
    };
    await expect(session(directory, [], engines)).rejects.toMatchObject({
      code: 'IO',
      message: expect.stringContaining(`${directory} was removed or replaced`),
    });
  }
});
