import { readFileSync } from 'node:fs';
import path from 'node:path';

/** Learning rates that verl's or Megatron-LM's own functions gave (fixtures/schedules/make_schedules.py). */
export interface RecordedSchedule {
  by: string;
  /** Keys of an `optim` section. */
  optim: Readonly<Record<string, number | string | boolean>>;
  /** Of the steps 0, 1, ... up to the end of the schedule. */
  rates: readonly number[];
}

const file = path.join(__dirname, '..', 'fixtures', 'schedules', 'schedules.json');
export const recordedSchedules = (JSON.parse(readFileSync(file, 'utf8')) as { cases: RecordedSchedule[] })
  .cases;

export const optimOverrides = (section: string, { optim }: Pick<RecordedSchedule, 'optim'>): string[] =>
  Object.entries(optim).map(([key, value]) => `${section}.${key}=${value}`);
