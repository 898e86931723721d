import { badOption, choiceOption, countOption, flagOption, numberOption } from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import { SCHEDULES, WSD_DECAYS } from '../base/optimiser_names';
import { show } from '../base/text';
import type { NativeSchedule } from '../native/bridge';

/** Learning rate over the update calls of a run; formulas: docs/numerics.md. Past its end a schedule stays where it ended. */
export interface ScheduleOptions {
  /** What follows the warm-up; constant. WSD: the rate stays, and falls in the last `wsdDecaySteps`. */
  schedule?: 'constant' | 'cosine' | 'linear' | 'inverse_square_root' | 'WSD';
  /** Update calls of linear warm-up; 0. */
  warmupSteps?: number;
  /** Where the warm-up starts, as a share of `lr`, 0. */
  initLrRatio?: number;
  /** Update calls until the schedule ends, warm-up included; needed by all but constant. */
  totalSteps?: number;
  /** Where the schedule ends, as a share of `lr`, 0; inverse_square_root falls no further. */
  minLrRatio?: number;
  /** Waves of the cosine, 0.5: it falls once. */
  numCycles?: number;
  /** Last update calls of WSD, in which the rate falls; needed by it. */
  wsdDecaySteps?: number;
  /** How it falls there; exponential. */
  wsdDecayStyle?: 'linear' | 'cosine' | 'exponential' | 'minus_sqrt';
  /** false: the first update call is number 1 of the schedule instead of 0; true. */
  zeroIndexedStep?: boolean;
}

export const SCHEDULE_KEYS: readonly (keyof ScheduleOptions)[] = [
  'schedule',
  'warmupSteps',
  'initLrRatio',
  'totalSteps',
  'minLrRatio',
  'numCycles',
  'wsdDecaySteps',
  'wsdDecayStyle',
  'zeroIndexedStep',
];

/** Options that one schedule alone reads. */
const ONLY = { numCycles: 'cosine', wsdDecaySteps: 'WSD', wsdDecayStyle: 'WSD' } as const;

/** `o` may have other keys beside. */
export function resolveSchedule(where: string, o: ScheduleOptions): NativeSchedule {
  const kind = choiceOption(where, 'schedule', o.schedule, SCHEDULES, 'constant');
  for (const [name, reader] of Object.entries(ONLY) as [keyof typeof ONLY, NativeSchedule['kind']][])
    if (o[name] !== undefined && kind !== reader)
      throw badOption(where, `${name}: is read with schedule '${reader}' alone, and it is '${kind}'`);
  if (kind !== 'constant' && o.totalSteps === undefined)
    throw badOption(where, `totalSteps: schedule '${kind}' needs it`);
  const warmupSteps = numberOption(where, 'warmupSteps', o.warmupSteps, 0, { integer: true, min: 0 });
  const totalSteps = numberOption(where, 'totalSteps', o.totalSteps, -1, { integer: true, min: 1 });
  const initLrRatio = numberOption(where, 'initLrRatio', o.initLrRatio, 0, { min: 0, max: 1 });
  if (initLrRatio > 0 && warmupSteps === 0)
    throw badOption(where, `initLrRatio: expected warmupSteps above 0 beside ${initLrRatio}, got 0`);
  return {
    kind,
    warmupSteps,
    totalSteps,
    minLrRatio: numberOption(where, 'minLrRatio', o.minLrRatio, 0, { min: 0, max: 1 }),
    initLrRatio,
    numCycles: numberOption(where, 'numCycles', o.numCycles, 0.5, { min: 0, max: RUN_LIMITS.steps }),
    firstStep: flagOption(where, 'zeroIndexedStep', o.zeroIndexedStep, true) ? 0 : 1,
    wsdDecaySteps: kind === 'WSD' ? decaySteps(where, o.wsdDecaySteps, totalSteps - warmupSteps) : 0,
    wsdDecay: choiceOption(where, 'wsdDecayStyle', o.wsdDecayStyle, WSD_DECAYS, 'exponential'),
  };
}

/** `most`: what is left after the warm-up. */
function decaySteps(where: string, steps: number | undefined, most: number): number {
  if (most >= 1) return countOption(where, 'wsdDecaySteps', steps, most);
  throw badOption(
    where,
    `wsdDecaySteps: expected steps after the warm-up to decay in, but warmupSteps are all of totalSteps; got ${show(steps)}`,
  );
}
