import { existsSync, mkdtempSync, readdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ProfilePlan } from '../../../ts/config/derived/profile';
import { PhaseTimer } from '../../../ts/trainer/metrics/metrics';
import type { RankTrace, Recorder } from '../../../ts/trainer/profiled_pools';
import { StepProfiler } from '../../../ts/trainer/step_profiler';

// When traces are taken, and under which names they lie.

function profiler(steps: readonly number[], continuous: boolean, traces: Partial<RankTrace>[] = [{}]) {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-step-profiler-'));
  const said: string[] = [];
  const recorder: Recorder = {
    begin: async () => void said.push('begin'),
    end: async () => {
      said.push('end');
      const whole = {
        roles: 'actor',
        scope: 'train',
        piece: null,
        rank: 0,
        ranks: 1,
        pid: 7,
        time: 0,
        zero: 0,
      };
      return traces.map((trace) => ({ ...whole, bytes: new Uint8Array(3), ...trace }));
    },
    drop: async () => void said.push('drop'),
  };
  const plan: ProfilePlan = { directory, profiles: (step) => steps.includes(step), continuous, pools: {} };
  const files = (): string[] =>
    readdirSync(directory)
      .map((name) => name.replace(/_pid\d+_\d{17}/, ''))
      .sort();
  return { profiler: new StepProfiler(plan, recorder), directory, said, files };
}

async function through(own: StepProfiler, steps: readonly number[]): Promise<void> {
  for (const step of steps) {
    const timer = new PhaseTimer();
    await own.begin(step, timer);
    await timer.time('step', () => undefined);
    await own.end(step, timer);
  }
}

it('a trace of each of the steps', async () => {
  const { profiler: own, said, files } = profiler([2, 3], false);
  await through(own, [1, 2, 3, 4]);
  await own.finish();
  expect(said).toEqual(['begin', 'end', 'begin', 'end']);
  expect(files()).toEqual([
    'actor_train_step2_rank0-of-1.json.gz',
    'actor_train_step3_rank0-of-1.json.gz',
    'trainer_step2.json.gz',
    'trainer_step3.json.gz',
  ]);
});

it('continuous: one of those that follow one another, also where the run ends between them', async () => {
  const { profiler: own, said, files } = profiler([1, 2, 5, 6], true);
  await through(own, [1, 2, 3, 4, 5]);
  expect(said).toEqual(['begin', 'end', 'begin']);
  await own.finish();
  expect(said.slice(3)).toEqual(['end']);
  expect(files().filter((name) => name.startsWith('trainer'))).toEqual([
    'trainer_step1.json.gz',
    'trainer_step5.json.gz',
  ]);
});

it('a step that is given up leaves nothing, but those before it in its trace stay', async () => {
  const alone = profiler([1], false);
  await alone.profiler.begin(1, new PhaseTimer());
  await alone.profiler.abandon(1);
  await alone.profiler.finish();
  expect(alone.said).toEqual(['begin', 'drop']);
  expect(alone.files()).toEqual([]);
  const behind = profiler([1, 2], true);
  await through(behind.profiler, [1]);
  await behind.profiler.begin(2, new PhaseTimer());
  await behind.profiler.abandon(2);
  await behind.profiler.finish();
  expect(behind.said).toEqual(['begin', 'end']);
});

it('pieces that begin in the same millisecond have names of their own', async () => {
  const { profiler: own, files } = profiler([1], false, [{ piece: 'generate' }, { piece: 'generate' }]);
  await through(own, [1]);
  expect(files()).toEqual([
    'actor_generate_step1_rank0-of-1.json.gz',
    'actor_generate_step1_rank0-of-1_part1.json.gz',
    'trainer_step1.json.gz',
  ]);
});

it('a trace that cannot be written ends the step with an error that names it, and leaves no part of a file', async () => {
  const { profiler: own, directory, said } = profiler([1], false, [{ roles: 'no/such/directory' }]);
  await expect(through(own, [1])).rejects.toMatchObject({
    code: 'IO',
    message: expect.stringContaining(directory),
  });
  expect(said).toEqual(['begin', 'end']);
  expect(readdirSync(directory)).toEqual([]);
  expect(existsSync(directory)).toBe(true);
});
