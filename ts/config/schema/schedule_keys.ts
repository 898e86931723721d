// Keys of the learning-rate schedule, which every `optim` section has: verl's of FSDP and of Megatron.
import { z } from 'zod';
import { RUN_LIMITS } from '../../base/limits';
import { SCHEDULES, WSD_DECAYS } from '../../base/optimiser_names';
import { bool, choice, count, field, int, moved, num, orNull, type ValueType } from './field';

/** Megatron-LM spells one of them with hyphens, verl's configuration with underscores. */
const scheduleType: ValueType<(typeof SCHEDULES)[number]> = {
  name: `one of ${SCHEDULES.join(', ')}`,
  schema: z
    .enum([...SCHEDULES, 'inverse-square-root'])
    .transform((value) => (value === 'inverse-square-root' ? 'inverse_square_root' : value)),
};

/** By default of the program. */
export const scheduleKeys = (type: 'constant' | 'cosine', warmup: number) => ({
  lr_scheduler_type: field(
    scheduleType,
    type,
    'Learning-rate schedule after the warm-up; moves once per training step. WSD stays, and falls in the last lr_wsd_decay_steps.',
  ),
  lr_warmup_steps: field(
    int(-1),
    -1,
    'Steps of linear warm-up; 0 or -1: lr_warmup_steps_ratio of all steps.',
  ),
  lr_warmup_steps_ratio: field(num(0, 1), warmup, 'Warm-up as a share of all steps.'),
  total_training_steps: field(int(-1), -1, 'End of the schedule; -1: the steps of the run.'),
  min_lr_ratio: field(
    num(0, 1),
    0,
    'Learning rate at the end of the schedule as a share of lr; inverse_square_root falls no further.',
  ),
  min_lr: field(
    num(0, RUN_LIMITS.learningRate),
    0,
    'In place of min_lr_ratio, as a learning rate; at most lr.',
  ),
  init_lr_ratio: field(num(0, 1), 0, 'Learning rate that the warm-up starts from as a share of lr.'),
  lr_warmup_init: field(
    num(0, RUN_LIMITS.learningRate),
    0,
    'In place of init_lr_ratio, as a learning rate; at most lr.',
  ),
  num_cycles: field(
    num(0, RUN_LIMITS.steps),
    0.5,
    'Waves of the cosine; 0.5: it falls once, to min_lr_ratio.',
  ),
  zero_indexed_step: field(
    bool,
    true,
    'The first step is number 0 of the schedule: with warm-up it has the learning rate that this starts from. false: number 1.',
  ),
  lr_wsd_decay_steps: field(
    orNull(count('steps')),
    null,
    'Last steps of the schedule WSD, in which the learning rate falls; needed by it.',
  ),
  lr_wsd_decay_style: field(choice(...WSD_DECAYS), 'exponential', 'How the learning rate falls there.'),
  warmup_style: moved('lr_scheduler_type'),
  lr_decay_style: moved('lr_scheduler_type'),
  lr_decay_steps: moved('total_training_steps'),
});
