import { z } from 'zod';
import { bool, field, fixed, moved, sectionNeeds, str, type ValueType } from './field';

const stepNumbers: ValueType<readonly number[]> = {
  name: 'a list of steps, counted from 1',
  schema: z.array(z.int().min(1)),
};

/** Steps whose responses are kept for runs after this one; docs/rollout.md. */
export const skipSection = {
  rollout: {
    enable: field(
      bool,
      false,
      'Keep the responses of some steps, and take those that are kept in place of generating them.',
    ),
    dump_dir: field(
      str,
      '~/.verl/rollout_dump',
      'Where: {project_name}/{experiment_name}/{step}.jsonl below it.',
    ),
    steps: field(
      stepNumbers,
      [],
      'Which steps: of these a request that was answered before is answered the same way; any other is generated, and kept.',
    ),
    action: fixed(
      ['cache'],
      'a request is answered from its own step, where the same one was answered before',
    ),
  },
  rollout_tq: {
    enable: moved('skip.rollout.enable'),
    dump_dir: moved('skip.rollout.dump_dir'),
    steps: moved('skip.rollout.steps'),
    action: moved('skip.rollout.action'),
  },
  async_rollout: sectionNeeds('a recording of responses that are worked on ahead', { enable: [] }),
};
