// Profiles of steps: which steps, of the whole run; which workers and what of them, of each role. docs/profiling.md
import { z } from 'zod';
import { RUN_LIMITS } from '../../base/limits';
import {
  bool,
  choice,
  derived,
  type Field,
  field,
  fixed,
  ignored,
  missing,
  needs,
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
const HOOK = `${missing('a command that is run at the end of a profile')}: all traces are in one directory of the trainer’s machine`;
const ONE_PLACE = 'workers send their traces to the trainer, which writes them all into one directory';

const CONTENTS =
  'What traces hold: cpu (operations and named ranges, always there), cuda (kernels and copies), memory (LibTorch’s allocations), shapes (of the inputs of operations). []: cpu and cuda.';
const DISCRETE =
  'A trace of each piece of work (generation, log-probs, an update, …); false: one of the step.';

/** What of a step a worker records, and how it cuts it. */
const torch = {
  contents: field(orNull(strings), [] as readonly string[], CONTENTS),
  discrete: field(bool, false, DISCRETE),
  profile_token_start: needs('a profile of some tokens of a response'),
  profile_token_end: needs('a profile of some tokens of a response'),
  schedule: sectionNeeds('a profile of some mini-batches of an update', { active: [0] }),
  step_start: ignored('global_profiler.steps says it'),
  step_end: ignored('global_profiler.steps says it'),
  name: ignored('names the tool'),
};

const others = {
  discrete: ignored('tool_config.torch.discrete says it'),
  relocate_results: ignored(ONE_PLACE),
  finish_hook_cmd: fixed([null], HOOK),
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
