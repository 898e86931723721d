// Profiles of steps: which steps, of the whole run; which workers and what of them, of each role. docs/profiling.md
import { z } from 'zod';
import { RUN_LIMITS } from '../../base/limits';
import {
  bool,
  choice,
  count,
  derived,
  type Field,
  field,
  fixed,
  ignored,
  orNull,
  sectionNeeds,
  str,
  strings,
  type ValueType,
} from './field';

/** What verl records with. */
export const PROFILING_TOOLS = ['torch', 'nsys', 'npu', 'torch_memory', 'precision_debugger'] as const;
/** What of it a trace may hold, by verl's words. */
export const PROFILE_CONTENTS = ['cpu', 'cuda', 'memory', 'shapes'] as const;

const tool: ValueType<(typeof PROFILING_TOOLS)[number] | null> = orNull(choice(...PROFILING_TOOLS));

function integers(what: string, least: number, most: number): ValueType<readonly number[]> {
  const one = z.int().min(least).max(most);
  return {
    name: `a list of ${what} from ${least}`,
    schema: z.union([one.transform((value) => [value]), z.array(one)]),
  };
}

export const OTHER_TOOL = 'holds for another tool than torch';
/** What may be said where nothing is profiled, as verl reads it then: not at all. */
const ONLY_NULL = 'Where a step is profiled only null: generation is recorded whole.';
const HOOK = 'Where a step is profiled only null: all traces are in one directory of the trainer’s machine.';
const ONE_PLACE = 'workers send their traces to the trainer, which writes them all into one directory';

const CONTENTS =
  'What traces hold: cpu (operations and named ranges, always there), cuda (kernels and copies), memory (LibTorch’s allocations), shapes (of the inputs of operations). []: cpu and cuda.';
const DISCRETE =
  'A trace of each piece of work (generation, log-probs, an update, …); false: one of the step.';

/** What of a step a worker records, and how it cuts it. */
const torch = {
  contents: field(orNull(strings), [] as readonly string[], CONTENTS),
  discrete: field(bool, false, DISCRETE),
  profile_token_start: field(orNull(count('tokens', 0)), null, ONLY_NULL),
  profile_token_end: field(orNull(count('tokens', 0)), null, ONLY_NULL),
  schedule: {
    active: field(count('steps', 0), 0, 'Where a step is profiled only 0: an update is recorded whole.'),
    skip_first: ignored('schedule.active is 0'),
    wait: ignored('schedule.active is 0'),
    warmup: ignored('schedule.active is 0'),
    repeat: ignored('schedule.active is 0'),
    name: ignored('names a class'),
  },
  step_start: ignored('global_profiler.steps says it'),
  step_end: ignored('global_profiler.steps says it'),
  name: ignored('names the tool'),
};

const others = {
  discrete: ignored('tool_config.torch.discrete says it'),
  relocate_results: ignored(ONE_PLACE),
  finish_hook_all_ranks: ignored('there is no finish_hook_cmd'),
  finish_hook_ranks: ignored('there is no finish_hook_cmd'),
};

const otherTools = {
  nsys: ignored(OTHER_TOOL),
  npu: ignored(OTHER_TOOL),
  torch_memory: ignored(OTHER_TOOL),
  precision_debugger: ignored(OTHER_TOOL),
};

const RANKS = orNull(integers('ranks', 0, RUN_LIMITS.ranks - 1));
const ENABLE = 'Record this role in the steps that are profiled.';
const ALL_RANKS = 'On all of its workers.';
const WHICH = 'Or on these; [], null: on the first.';

/** Of a role. `like`: the section whose values it takes where it has none of its own. */
export function roleProfiler(like: string | null) {
  const of = <T>(key: string, type: ValueType<T>, value: T, doc: string): Field<T> =>
    like === null ? field<T>(type, value, doc) : derived(type, `${like}.${key}`, doc);
  return {
    tool: derived(tool, 'global_profiler.tool', 'torch, or null, which means the same; others are refused.'),
    enable: of('enable', bool, false, ENABLE),
    all_ranks: of('all_ranks', bool, false, ALL_RANKS),
    ranks: of('ranks', RANKS, [], WHICH),
    save_path: ignored('traces of all roles go to global_profiler.save_path'),
    finish_hook_cmd: derived(orNull(str), 'global_profiler.finish_hook_cmd', HOOK),
    ...others,
    tool_config: {
      torch: {
        ...torch,
        contents: of('tool_config.torch.contents', orNull(strings), [], CONTENTS),
        discrete: of('tool_config.torch.discrete', bool, false, DISCRETE),
      },
      ...otherTools,
    },
  };
}

/** `global_profiler` */
export const globalProfilerSection = {
  tool: field(tool, null, 'torch, or null, which means the same; others are refused.'),
  steps: field(
    orNull(integers('steps', 1, RUN_LIMITS.steps)),
    null,
    'Steps, from 1, that are profiled; null, []: none.',
  ),
  profile_continuous_steps: field(bool, false, 'Steps that follow one another go into one trace.'),
  save_path: field(str, 'outputs/profile', 'Directory for the traces.'),
  finish_hook_cmd: field(orNull(str), null, HOOK),
  ...others,
  global_tool_config: ignored(OTHER_TOOL),
};

/** `profiler` of a supervised run; trainer.profile_interval says which steps. */
export const sftProfilerSection = {
  tool: field(tool, 'torch', 'torch; others are refused.'),
  enable: field(bool, false, 'Record the steps of trainer.profile_interval.'),
  all_ranks: field(bool, false, ALL_RANKS),
  ranks: field(RANKS, [] as readonly number[], WHICH),
  save_path: field(str, 'outputs/profile', 'Directory for the traces.'),
  finish_hook_cmd: field(orNull(str), null, HOOK),
  ...others,
  tool_config: { torch, ...otherTools },
};

/** `global_profiler` of a supervised run. */
export const sftGlobalProfiler = {
  ...sectionNeeds('', { steps: [[]] }),
  reason: 'is of troupe train: give profiler and trainer.profile_interval instead',
};

/** First and last step. */
export const interval: ValueType<readonly [number, number]> = {
  name: 'two steps >= 1, the second not before the first, or [-1, -1]',
  schema: z
    .tuple([z.int().max(RUN_LIMITS.steps), z.int().max(RUN_LIMITS.steps)])
    .refine(([first, last]) => (first < 0 ? last < 0 : first >= 1 && last >= first)),
};

/** `trainer.profile_steps`, of releases whose only tool was nsys. */
export const OLDER_PROFILE_STEPS = fixed(
  [null, []],
  'is how older releases of verl asked for a profile with nsys: give global_profiler.steps and actor_rollout_ref.actor.profiler.enable=True instead',
);

/** Of verl's releases before there was `profiler`, under Megatron. */
export const OLDER_PROFILER = {
  ...sectionNeeds('', { use_profile: [] }),
  reason:
    'is how older releases of verl asked for a profile: give global_profiler.steps and actor_rollout_ref.actor.profiler instead',
};
