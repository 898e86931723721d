import fs, { existsSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TroupeError } from '../../../ts/errors';
import { CheckpointStaging } from '../../../ts/run/checkpoint_staging';
import { CheckpointStore } from '../../../ts/run/checkpoint_store';
import { FakeEngines, read, runDirectory, trainer } from '../../helpers/fake_run';

// Whole runs over fakes whose checkpoints pass through memory: another directory here.

const base = ['trainer.total_training_steps=5', 'trainer.save_freq=2'];
const ASYNC = 'trainer.checkpoint_staging.async=true';
const EVERY_STEP = 'trainer.checkpoint_staging.every_step=true';

const memory = (): string => mkdtempSync(join(tmpdir(), 'memory-'));

async function run(directory: string, overrides: string[], engines = new FakeEngines()) {
  const said: string[] = [];
  const options = { log: (line: string) => void said.push(line) };
  await trainer({ directory, overrides: [...base, ...overrides], engines, options }).trainer.fit();
  return { said, updates: engines.updates.length };
}

const dyingIn = (updates: number): FakeEngines => {
  const engines = new FakeEngines();
  engines.onCall = (_, name) => {
    if (name === 'updatePolicy' && engines.updates.length === updates) throw new Error('killed');
  };
  return engines;
};

let metrics: string;
let updatesPerStep: number;
beforeAll(async () => {
  const directory = runDirectory();
  const { updates } = await run(directory, []);
  metrics = read(directory, 'metrics.jsonl');
  updatesPerStep = updates / 5;
});

test('on their way to the disk: the same files, and nothing left in memory', async () => {
  const [plain, staged, held] = [runDirectory(), runDirectory(), memory()];
  await run(plain, []);
  await run(staged, [ASYNC, `trainer.checkpoint_staging.directory=${held}`]);
  expect(read(staged, 'metrics.jsonl')).toBe(metrics);
  const steps = (directory: string): string[] =>
    readdirSync(directory).filter((name) => /^global|^latest|^\.(staging|incomplete)/.test(name));
  expect(steps(staged).sort()).toEqual(steps(plain).sort());
  expect(readdirSync(join(staged, 'global_step_4/actor'))).toEqual(
    readdirSync(join(plain, 'global_step_4/actor')),
  );
  expect(readdirSync(held)).toEqual([]);
});

test('the ranks go on while it is written, and the next one waits for it', async () => {
  const [directory, held] = [runDirectory(), memory()];
  const engines = new FakeEngines();
  const order: string[] = [];
  let release = (): void => {};
  const take = CheckpointStore.prototype.take;
  jest.spyOn(CheckpointStore.prototype, 'take').mockImplementation(async function (
    this: CheckpointStore<object>,
    step,
    source,
  ) {
    order.push(`copy ${step}`);
    if (step === 2)
      await new Promise<void>((done) => {
        release = done;
      });
    const path = await take.call(this, step, source);
    order.push(`copied ${step}`);
    return path;
  });
  engines.onCall = (_, name) => {
    if (name !== 'updatePolicy' && name !== 'actor.saveCheckpoint') return;
    order.push(`${name} in step ${1 + Math.floor(engines.updates.length / updatesPerStep)}`);
    // The copy of step 2 goes on until step 3 has begun.
    if (engines.updates.length === 2 * updatesPerStep + 1) release();
  };
  await run(directory, [ASYNC, `trainer.checkpoint_staging.directory=${held}`], engines);
  jest.restoreAllMocks();
  const at = (what: string): number => order.indexOf(what);
  expect(at('copied 2')).toBeGreaterThan(at('updatePolicy in step 3'));
  expect(at('copy 4')).toBeGreaterThan(at('copied 2'));
  expect(order.at(-1)).toBe('copied 5');
});

test('one that cannot be written ends the run, and what is in memory is gone on from', async () => {
  const [directory, held] = [runDirectory(), memory()];
  const staging = [ASYNC, `trainer.checkpoint_staging.directory=${held}`];
  jest
    .spyOn(CheckpointStore.prototype, 'take')
    .mockRejectedValue(new TroupeError('NO_SPACE', 'the disk is full'));
  await expect(run(directory, staging)).rejects.toMatchObject({ code: 'NO_SPACE' });
  jest.restoreAllMocks();
  expect(readdirSync(directory).filter((name) => name.startsWith('global'))).toEqual([]);
  const { said } = await run(directory, staging);
  expect(said).toContainEqual(expect.stringMatching(/resuming after step 2 from .*memory-/));
  expect(read(directory, 'metrics.jsonl')).toBe(metrics);
  expect(readdirSync(held)).toEqual([]);
});

test('no space in memory: they go to the disk at once', async () => {
  const [directory, held] = [runDirectory(), memory()];
  const hold = jest.spyOn(CheckpointStaging.prototype, 'hold').mockResolvedValue(false);
  const { said } = await run(directory, [ASYNC, EVERY_STEP, `trainer.checkpoint_staging.directory=${held}`]);
  // Said once, for the steps between.
  expect(said.filter((line) => /no space for the state after a step/.test(line))).toHaveLength(1);
  expect(hold).toHaveBeenCalledTimes(1);
  hold.mockRestore();
  expect(existsSync(join(directory, 'global_step_4/trainer.json'))).toBe(true);
  expect(read(directory, 'metrics.jsonl')).toBe(metrics);
});

describe('after every step', () => {
  const staging = (held: string): string[] => [EVERY_STEP, `trainer.checkpoint_staging.directory=${held}`];

  test('a run that dies in a step repeats that one alone', async () => {
    const [directory, held] = [runDirectory(), memory()];
    await expect(run(directory, staging(held), dyingIn(3 * updatesPerStep))).rejects.toThrow('killed');
    const { said, updates } = await run(directory, staging(held));
    expect(said).toContainEqual(expect.stringMatching(/resuming after step 3 from .*memory-/));
    expect(updates).toBe(2 * updatesPerStep);
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
    expect(readdirSync(held)).toEqual([]);
  });

  test('a look at it with val_only leaves it there', async () => {
    const [directory, held] = [runDirectory(), memory()];
    await expect(run(directory, staging(held), dyingIn(3 * updatesPerStep))).rejects.toThrow('killed');
    const look = await run(directory, [...staging(held), 'trainer.val_only=true']);
    expect(look.updates).toBe(0);
    const { said, updates } = await run(directory, staging(held));
    expect(said).toContainEqual(expect.stringMatching(/resuming after step 3 from .*memory-/));
    expect(updates).toBe(2 * updatesPerStep);
  });

  test('before the first save', async () => {
    const [directory, held] = [runDirectory(), memory()];
    const only = [...staging(held), 'trainer.save_freq=-1'];
    await expect(run(directory, only, dyingIn(2 * updatesPerStep))).rejects.toThrow('killed');
    const { updates } = await run(directory, only);
    expect(updates).toBe(3 * updatesPerStep);
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
  });

  test('where no space is left the state of an earlier step stays, until one is saved', async () => {
    const fullAfter = (steps: number): jest.SpyInstance => {
      const { hold } = CheckpointStaging.prototype;
      return jest.spyOn(CheckpointStaging.prototype, 'hold').mockImplementation(async function (
        this: CheckpointStaging<object>,
        step,
        state,
        write,
      ) {
        return step <= steps && (await hold.call(this, step, state, write));
      });
    };
    const [directory, held] = [runDirectory(), memory()];
    const only = [...staging(held), 'trainer.save_freq=-1'];
    fullAfter(2);
    await expect(run(directory, only, dyingIn(4 * updatesPerStep))).rejects.toThrow('killed');
    jest.restoreAllMocks();
    const { said, updates } = await run(directory, only);
    expect(said).toContainEqual(expect.stringMatching(/resuming after step 2 from .*memory-/));
    expect(updates).toBe(3 * updatesPerStep);
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
    expect(readdirSync(held)).toEqual([]);

    // With a save the disk has what is newer.
    const [saving, other] = [runDirectory(), memory()];
    fullAfter(1);
    const often = [...staging(other), 'trainer.save_freq=3'];
    await expect(run(saving, often, dyingIn(4 * updatesPerStep))).rejects.toThrow('killed');
    jest.restoreAllMocks();
    expect(readdirSync(other)).toEqual([]);
    expect((await run(saving, often)).said).toContainEqual(
      expect.stringMatching(/resuming after step 3 from .*global_step_3/),
    );
    expect(read(saving, 'metrics.jsonl')).toBe(metrics);
  });

  const stepThree = (held: string): string => join(held, readdirSync(held)[0] as string, 'global_step_3');

  test.each([
    [
      'one flipped bit',
      (held: string) => writeFileSync(join(stepThree(held), 'actor/weights'), '0.1'),
      /global_step_3\/actor\/weights is not what was saved/,
    ],
    [
      'a state that cannot be read',
      (held: string) => writeFileSync(join(stepThree(held), 'trainer.json'), '{'),
      /global_step_3\/trainer\.json is damaged/,
    ],
    [
      'a state that is not there',
      (held: string) => fs.rmSync(stepThree(held), { recursive: true }),
      /the state that was held in .*memory-.* is missing/,
    ],
  ])('damage (%s): the disk serves, with a warning; without one it is an error', async (_, harm, what) => {
    const [directory, held] = [runDirectory(), memory()];
    await expect(run(directory, staging(held), dyingIn(3 * updatesPerStep))).rejects.toThrow('killed');
    harm(held);
    const { said } = await run(directory, staging(held));
    expect(said).toContainEqual(expect.stringMatching(/resuming after step 2 from .*global_step_2/));
    const [warning = ''] = said.filter((line) => /warning/.test(line));
    expect(warning).toMatch(what);
    expect(warning).toMatch(/going on from step 2 instead$/);
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);

    const [bare, alone] = [runDirectory(), memory()];
    const only = [...staging(alone), 'trainer.save_freq=-1'];
    await expect(run(bare, only, dyingIn(3 * updatesPerStep))).rejects.toThrow('killed');
    harm(alone);
    const before = readdirSync(alone);
    const failure = await run(bare, only).catch((error: Error) => error);
    expect(failure).toMatchObject({ code: 'IO', message: expect.stringMatching(what) });
    expect((failure as Error).message).toMatch(/trainer\.resume_mode=disable$/);
    expect(readdirSync(alone)).toEqual(before);
    const anew = await run(bare, [...only, 'trainer.resume_mode=disable']);
    expect(anew.said).toContainEqual(expect.stringMatching(/^training for 5 steps/));
    expect(read(bare, 'metrics.jsonl')).toBe(metrics);
  });

  test('gone, as after a restart of the machine: the disk serves', async () => {
    const [directory, held] = [runDirectory(), memory()];
    await expect(run(directory, staging(held), dyingIn(3 * updatesPerStep))).rejects.toThrow('killed');
    fs.rmSync(held, { recursive: true });
    const { said } = await run(directory, staging(held));
    expect(said).toContainEqual(expect.stringMatching(/resuming after step 2 from .*global_step_2/));
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
  });

  test('no longer asked for: it is gone on from all the same, and stays until a newer one is saved', async () => {
    const [directory, held] = [runDirectory(), memory()];
    await expect(run(directory, staging(held), dyingIn(3 * updatesPerStep))).rejects.toThrow('killed');
    // Dies before it has saved: what is held is needed once more.
    await expect(run(directory, [], dyingIn(0))).rejects.toThrow('killed');
    const engines = new FakeEngines();
    const inMemory: number[] = [];
    engines.onCall = (_, name) => {
      if (name === 'actor.saveCheckpoint') inMemory.push(readdirSync(held).length);
    };
    const { said, updates } = await run(directory, [], engines);
    expect(said).toContainEqual(expect.stringMatching(/resuming after step 3 from .*memory-/));
    expect(said).toContainEqual(
      expect.stringMatching(/^note: the state after step 3 stays in .*memory-.* until a newer one is saved$/),
    );
    expect(updates).toBe(2 * updatesPerStep);
    // While step 4 is saved, and while step 5 is.
    expect(inMemory).toEqual([1, 0]);
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
    expect(readdirSync(held)).toEqual([]);
  });

  test('in another directory now: it is gone on from, and goes when a newer one is held there', async () => {
    const [directory, held, next] = [runDirectory(), memory(), memory()];
    const only = ['trainer.save_freq=-1'];
    const died = run(directory, [...staging(held), ...only], dyingIn(3 * updatesPerStep));
    await expect(died).rejects.toThrow('killed');
    // Before anything is held in the new place, and after.
    await expect(run(directory, [...staging(next), ...only], dyingIn(0))).rejects.toThrow('killed');
    const again = run(directory, [...staging(next), ...only], dyingIn(updatesPerStep));
    await expect(again).rejects.toThrow('killed');
    expect(readdirSync(held)).toEqual([]);
    const { said, updates } = await run(directory, [...staging(next), ...only]);
    expect(said).toContainEqual(expect.stringContaining(`resuming after step 4 from ${next}`));
    expect(updates).toBe(updatesPerStep);
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
    expect(readdirSync(next)).toEqual([]);
  });

  test.each([
    ['the same keys', staging],
    ['none', () => []],
  ])('a run with %s that takes the place of it removes it, and says so', async (_, keys) => {
    const [directory, held] = [runDirectory(), memory()];
    await expect(run(directory, staging(held), dyingIn(3 * updatesPerStep))).rejects.toThrow('killed');
    const { said } = await run(directory, [...keys(held), 'trainer.resume_mode=disable']);
    expect(said).toContainEqual(
      expect.stringMatching(/^note: what an earlier session held in memory is removed: .*memory-/),
    );
    expect(readdirSync(held)).toEqual([]);
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
  });

  test('a run that is stopped before its next step saves it', async () => {
    const [directory, held] = [runDirectory(), memory()];
    const only = [...staging(held), 'trainer.save_freq=-1'];
    await expect(run(directory, only, dyingIn(3 * updatesPerStep))).rejects.toThrow('killed');
    const engines = new FakeEngines();
    const stopped = trainer({ directory, overrides: [...base, ...only], engines });
    engines.onCall = (_, name) => {
      if (name === 'generate') stopped.trainer.requestStop('a test');
    };
    expect(await stopped.trainer.fit()).toMatchObject({ step: 3, interrupted: true });
    const { said } = await run(directory, only);
    expect(said).toContainEqual(expect.stringMatching(/resuming after step 3 from .*global_step_3/));
    expect(read(directory, 'metrics.jsonl')).toBe(metrics);
  });

  test('another run in a directory of that name does not go on from it', async () => {
    const [directory, held] = [runDirectory(), memory()];
    await expect(run(directory, staging(held), dyingIn(3 * updatesPerStep))).rejects.toThrow('killed');
    for (const name of readdirSync(directory)) fs.rmSync(join(directory, name), { recursive: true });
    const { said } = await run(directory, staging(held));
    expect(said).toContainEqual(expect.stringMatching(/^training for 5 steps/));
    await expect(
      run(runDirectory(), [...staging(held), 'trainer.resume_mode=disable']),
    ).resolves.toBeDefined();
    expect(readFileSync(join(directory, 'metrics.jsonl'), 'utf8')).toBe(metrics);
  });
});
