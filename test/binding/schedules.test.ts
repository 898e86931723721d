import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadSftConfig } from '../../ts/config/config';
import { resolveSchedule } from '../../ts/engine/schedule_options';
import type { NativeEngine } from '../../ts/native/bridge';
import { loadBinding } from '../../ts/native/loader';
import { optimOptions } from '../../ts/roles/optim_options';
import { optimOverrides, recordedSchedules } from '../helpers/recorded_schedules';
import { tinyEngine, tinyOptim } from '../helpers/tiny_model';

// Learning rates of an engine under a configuration, against verl's and Megatron-LM's own.

const binding = loadBinding();
const file = path.join(mkdtempSync(path.join(tmpdir(), 'schedules-')), 'run.yaml');
// Defaults of verl's configurations, where ours for `troupe sft` are others.
writeFileSync(
  file,
  `{ data: { train_files: none.jsonl }, model: { path: none },
     optim: { lr_warmup_steps_ratio: 0 }, trainer: { total_training_steps: 1000 } }`,
);

/** With the options that the configuration comes to. */
async function engineOf(overrides: readonly string[]): Promise<{ engine: NativeEngine; lr: number }> {
  const { optim: section } = loadSftConfig(file, overrides);
  const { lr = 0, ...options } = optimOptions({ section, key: 'optim', gradClip: 1 }, 1000);
  const optim = { ...tinyOptim, lr, schedule: resolveSchedule('optim', options) };
  return { engine: await binding.createEngine(tinyEngine({ optim })), lr };
}

test.each(recordedSchedules)('$by: $optim', async ({ optim, rates }) => {
  const { engine, lr } = await engineOf(optimOverrides('optim', { optim }));
  const rateAt = async (step: number): Promise<number> => {
    await binding.setSteps(engine, 0, step);
    return binding.learningRate(engine);
  };
  try {
    for (const [step, expected] of rates.entries()) {
      // A few roundings in double precision: shares of the peak are multiplied in another order.
      const difference = Math.abs((await rateAt(step)) - expected) / lr;
      expect([step, difference < 1e-14]).toEqual([step, true]);
    }
    const end = await rateAt(rates.length - 1);
    expect(await rateAt(rates.length)).toBe(end);
    expect(await rateAt(rates.length + 1000)).toBe(end);
  } finally {
    await binding.close(engine);
  }
});

test('schedules that contradict themselves are refused by the engine, too', async () => {
  const schedule = { ...tinyOptim.schedule, kind: 'WSD', warmupSteps: 3, totalSteps: 5 } as const;
  const create = (wsdDecaySteps: number) =>
    binding.createEngine(tinyEngine({ optim: { ...tinyOptim, schedule: { ...schedule, wsdDecaySteps } } }));
  await binding.close(await create(2));
  await expect(create(3)).rejects.toThrow('expected 1 to the 2 that follow the warm-up, got 3');
});
