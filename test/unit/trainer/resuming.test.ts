import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Agent } from '../../../ts/agent/define';
import type { TrainingData } from '../../../ts/trainer/training_data';
import { FakeEngines, fakeData, ppo, read, runDirectory, trainer } from '../../helpers/fake_run';

describe('resuming', () => {
  const overrides = [...ppo, 'trainer.total_training_steps=5', 'trainer.save_freq=2', 'trainer.test_freq=3'];

  test('a run killed before every third call is, once resumed, bitwise the uninterrupted run', async () => {
    const whole = trainer({ overrides });
    await whole.trainer.fit();
    const metrics = read(whole.directory, 'metrics.jsonl');
    const total = whole.engines.calls.length - 1;
    for (let deadAt = 1; deadAt < total; deadAt += 3) {
      const directory = runDirectory();
      const dying = new FakeEngines();
      dying.failAt(deadAt, new Error('killed'));
      await expect(trainer({ directory, overrides, engines: dying }).trainer.fit()).rejects.toThrow('killed');
      const resumed = trainer({ directory, overrides });
      await resumed.trainer.fit();
      expect(read(directory, 'metrics.jsonl')).toBe(metrics);
      expect(resumed.engines.weights).toBe(whole.engines.weights);
      rmSync(directory, { recursive: true });
    }
  });

  test('a stop request saves, and the resumed run equals the uninterrupted one', async () => {
    const whole = trainer({ overrides });
    await whole.trainer.fit();
    const directory = runDirectory();
    for (const call of [8, 5, 3]) {
      const part = trainer({ directory, overrides });
      part.engines.onCall = (count) => {
        if (count === call) expect(part.trainer.requestStop('SIGINT')).toBe(true);
      };
      const result = await part.trainer.fit();
      expect(result).toMatchObject({ interrupted: true, stopReason: 'SIGINT', finalModel: null });
      if (result.step > 0)
        expect(read(directory, 'latest_checkpointed_iteration.txt')).toBe(String(result.step));
    }
    await trainer({ directory, overrides }).trainer.fit();
    expect(read(directory, 'metrics.jsonl')).toBe(read(whole.directory, 'metrics.jsonl'));
  });

  test('a stop request while the data are made, or where nothing learns, has nothing to save', async () => {
    const early = trainer({
      overrides,
      options: {
        data: async () => {
          expect(early.trainer.requestStop('SIGINT')).toBe(false);
          return fakeData();
        },
      },
    });
    expect(await early.trainer.fit()).toMatchObject({ step: 0, interrupted: true });
    const look = trainer({ overrides: [...overrides, 'trainer.val_only=true'] });
    look.engines.onCall = () => expect(look.trainer.requestStop('SIGINT')).toBe(false);
    await look.trainer.fit();
    expect(look.engines.calls.length).toBeGreaterThan(0);
  });

  test('a stop request gives up agents that are at work, and a resumed run is the uninterrupted one', async () => {
    const tokenizer = {
      hasChatTemplate: false,
      decode: (ids: ArrayLike<number>) => Array.from(ids).join(' '),
    } as unknown as TrainingData['tokenizer'];
    const signals: AbortSignal[] = [];
    /** `works`: trajectories that end; of those after them none does, whatever it is told. */
    const withAgent = (directory: string, works: number, onHung = (_: number) => {}) => {
      const agent: Agent = {
        async run({ promptIds, validation }, { model, signal }) {
          const { tokens } = await model.generate(promptIds);
          if (validation || works-- > 0) return tokens.length;
          onHung(signals.push(signal));
          return await new Promise<number>(() => undefined);
        },
      };
      const data = async () => ({ ...fakeData(), tokenizer });
      return trainer({ directory, overrides, options: { data, agent } }).trainer;
    };
    const [directory, undisturbed] = [runDirectory(), runDirectory()];
    await withAgent(undisturbed, Number.POSITIVE_INFINITY).fit();
    // Two prompts x four responses are a step.
    const stopped = withAgent(directory, 8 + 3, (hung) => {
      if (hung === 5) stopped.requestStop('SIGINT');
    });
    expect(await stopped.fit()).toMatchObject({ step: 1, interrupted: true, stopReason: 'SIGINT' });
    expect(signals.map(({ aborted }) => aborted)).toEqual([true, true, true, true, true]);
    await withAgent(directory, Number.POSITIVE_INFINITY).fit();
    expect(read(directory, 'metrics.jsonl')).toBe(read(undisturbed, 'metrics.jsonl'));
  });

  test('disable starts over; resume_path takes a step; another seed is refused', async () => {
    const first = trainer({ overrides });
    await first.trainer.fit();
    const metrics = read(first.directory, 'metrics.jsonl');
    const again = trainer({
      directory: first.directory,
      overrides: [...overrides, 'trainer.resume_mode=disable'],
    });
    await again.trainer.fit();
    expect(read(first.directory, 'metrics.jsonl')).toBe(metrics);

    const from = [
      'trainer.resume_mode=resume_path',
      `trainer.resume_from_path=${join(first.directory, 'global_step_4')}`,
    ];
    const elsewhere = trainer({ overrides: [...overrides, ...from] });
    await elsewhere.trainer.fit();
    const lines = metrics.trim().split('\n');
    expect(read(elsewhere.directory, 'metrics.jsonl').trim().split('\n')).toEqual(lines.slice(-1));

    const other = trainer({ directory: first.directory, overrides: [...overrides, 'trainer.seed=99'] });
    await expect(other.trainer.fit()).rejects.toThrow(/trainer\.seed: .* seed/);
  });

  test('samples and tokens of steps that a run has not done are not those of an earlier one', async () => {
    const first = trainer({ overrides });
    await first.trainer.fit();
    const { directory } = first;
    const stepsOf = (folder: string): number[] =>
      [...new Set(readdirSync(join(directory, folder)).map((name) => Number(/\d+/.exec(name)?.[0])))].sort();
    writeFileSync(join(directory, 'tokens', '4.jsonl'), '');
    expect([stepsOf('samples'), stepsOf('tokens')]).toEqual([
      [0, 1, 2, 3, 4, 5],
      expect.arrayContaining([4]),
    ]);
    const go = async (...more: string[]): Promise<void> => {
      const { trainer: next } = trainer({ directory, overrides: [...overrides, ...more] });
      await next.fit();
    };
    const from = `trainer.resume_from_path=${join(directory, 'global_step_2')}`;
    await go('trainer.resume_mode=resume_path', from, 'trainer.total_training_steps=3');
    expect(stepsOf('samples')).toEqual([0, 1, 2, 3]);
    expect(Math.max(...stepsOf('tokens'))).toBeLessThanOrEqual(3);
    await go('trainer.resume_mode=disable', 'trainer.total_training_steps=1');
    expect(stepsOf('samples')).toEqual([0, 1]);
    expect(Math.max(...stepsOf('tokens'))).toBeLessThanOrEqual(1);
  });

  test('what an earlier run saved is not resumed once another has begun in its place', async () => {
    const whole = trainer({ overrides });
    await whole.trainer.fit();
    const metrics = read(whole.directory, 'metrics.jsonl');
    const dies = async (...more: string[]) => {
      const run = trainer({ directory: whole.directory, overrides: [...overrides, ...more] });
      run.engines.onCall = () => {
        throw new Error('killed');
      };
      await expect(run.trainer.fit()).rejects.toThrow('killed');
    };
    const resumes = async (after: number) => {
      const run = trainer({ directory: whole.directory, overrides });
      await run.trainer.fit();
      expect(run.engines.updates).toHaveLength(5 - after);
      expect(read(whole.directory, 'metrics.jsonl')).toBe(metrics);
    };
    const step4 = join(whole.directory, 'global_step_4');
    await dies('trainer.resume_mode=resume_path', `trainer.resume_from_path=${step4}`);
    await resumes(4);
    await dies('trainer.resume_mode=disable');
    await resumes(0);
    // Looking at it alone changes nothing.
    const kept = ['latest_checkpointed_iteration.txt', 'config.json', 'timings.jsonl'];
    const files = (): string[] => kept.map((name) => read(whole.directory, name));
    const before = files();
    const half = join(whole.directory, '.incomplete_global_step_6');
    mkdirSync(half);
    const only = ['trainer.resume_mode=disable', 'trainer.val_only=true'];
    await trainer({ directory: whole.directory, overrides: [...overrides, ...only] }).trainer.fit();
    expect(files()).toEqual(before);
    expect(existsSync(half)).toBe(true);
    const [added, ...more] = read(whole.directory, 'metrics.jsonl').slice(metrics.length).trim().split('\n');
    expect(more).toEqual([]);
    expect(JSON.parse(added as string)).toMatchObject({ step: 0 });
    expect(read(whole.directory, 'metrics.jsonl').startsWith(metrics)).toBe(true);
  });
});
