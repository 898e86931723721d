import { configNotes, loadConfig, loadSftConfig } from '../../../ts/config/config';
import { profilePlan, sftProfilePlan } from '../../../ts/config/derived/profile';
import { ppo } from './verl_command';
import { configError, MINIMAL, writeConfig } from './write_config';

// What of a run is profiled, by verl's keys.

const ROLES = 'actor_rollout_ref';
const ACTOR = `${ROLES}.actor.profiler`;
const TORCH = 'tool_config.torch';
const ON = ['global_profiler.steps=[2,3]', `${ACTOR}.enable=true`];
const load = (...overrides: string[]) =>
  loadConfig(writeConfig(`${MINIMAL}\nalgorithm: { adv_estimator: grpo }\n`), overrides);
const plan = (...overrides: string[]) => profilePlan(load(...overrides));
const mistake = (...overrides: string[]): string => configError(() => load(...ON, ...overrides)).message;

it('nothing without steps or without a role, whatever else is asked for', () => {
  expect(plan()).toBeNull();
  expect(plan('global_profiler.steps=[1]', 'global_profiler.tool=nsys')).toBeNull();
  expect(plan('global_profiler.steps=[]', `${ACTOR}.enable=true`)).toBeNull();
  expect(
    plan(`${ACTOR}.enable=true`, 'global_profiler.tool=nsys', `${ACTOR}.${TORCH}.contents=[stack]`),
  ).toBeNull();
  const unread = [
    `${ACTOR}.${TORCH}.schedule.active=2`,
    `${ACTOR}.${TORCH}.profile_token_end=2`,
    'global_profiler.finish_hook_cmd=upload',
    `${ACTOR}.ranks=[7]`,
  ];
  expect(plan(`${ACTOR}.enable=true`, ...unread)).toBeNull();
});

it('and says so', () => {
  const notes = (...overrides: string[]) =>
    configNotes(load(...overrides)).filter(({ path }) => path.includes('profiler'));
  expect(notes()).toEqual([]);
  expect(notes(...ON)).toEqual([]);
  expect(notes('global_profiler.steps=[2]')).toEqual([
    {
      path: 'global_profiler.steps',
      reason: expect.stringMatching(/no role is profiled: set actor_rollout_ref\.actor\.profiler\.enable, /),
    },
  ]);
  expect(notes(`${ACTOR}.enable=true`)).toEqual([
    { path: `${ACTOR}.enable`, reason: 'nothing is recorded without global_profiler.steps' },
  ]);
});

it('names the steps, the workers, the roles in them and what they record', () => {
  const found = plan(...ON, 'global_profiler.save_path=/traces');
  expect(found).toMatchObject({ directory: '/traces', continuous: false });
  expect([1, 2, 3, 4].map((step) => found?.profiles(step))).toEqual([false, true, true, false]);
  // As verl: on the first worker; contents of [] are operations and kernels.
  expect(found?.pools).toEqual({
    policy: {
      roles: 'actor-rollout',
      scope: 'train',
      ranks: [0],
      cuda: true,
      shapes: false,
      memory: false,
      pieces: null,
    },
  });
  expect(plan(...ON, `${ACTOR}.ranks=[3,1]`, 'trainer.n_gpus_per_node=4')?.pools.policy?.ranks).toEqual([
    1, 3,
  ]);
  expect(plan(...ON, `${ACTOR}.all_ranks=true`)?.pools.policy?.ranks).toBeNull();
  expect(plan(...ON, `${ACTOR}.${TORCH}.contents=[cpu,shapes,memory]`)?.pools.policy).toMatchObject({
    cuda: false,
    shapes: true,
    memory: true,
  });
});

it('roles that share their workers are recorded together: all that any of them asks for', () => {
  const keys = [
    'algorithm.adv_estimator=gae',
    'algorithm.use_kl_in_reward=true',
    'trainer.n_gpus_per_node=4',
    'critic.model.path=m',
    'critic.profiler.enable=true',
    'critic.profiler.ranks=[2]',
    `critic.profiler.${TORCH}.contents=[shapes]`,
    `critic.profiler.${TORCH}.discrete=true`,
  ];
  expect(plan(...keys, 'global_profiler.steps=[1]')?.pools.policy).toEqual({
    roles: 'actor-rollout-ref-critic',
    scope: 'train',
    ranks: [2],
    cuda: false,
    shapes: true,
    memory: false,
    pieces: ['critic'],
  });
  expect(plan(...keys, ...ON)?.pools.policy).toMatchObject({ ranks: [0, 2], cuda: true, pieces: null });
});

it('pieces of work are those of the roles; generation follows the actor unless it is told otherwise', () => {
  const discrete = [...ON, `${ACTOR}.${TORCH}.discrete=true`];
  expect(plan(...discrete)?.pools.policy?.pieces).toEqual(['actor', 'ref', 'teacher', 'generate']);
  expect(plan(...discrete, `${ROLES}.rollout.profiler.enable=false`)?.pools.policy?.pieces).toEqual([
    'actor',
    'ref',
    'teacher',
  ]);
  // One recording at a time in a process.
  expect(
    plan(...discrete, `${ROLES}.rollout.profiler.${TORCH}.discrete=false`)?.pools.policy?.pieces,
  ).toBeNull();
  const pool = [`${ROLES}.rollout.nnodes=1`, `${ROLES}.rollout.n_gpus_per_node=2`];
  expect(plan(...ON, ...pool)?.pools).toMatchObject({
    policy: { roles: 'actor' },
    rollout: { roles: 'rollout', scope: 'generate', ranks: [0] },
  });
});

it('what cannot be is refused by name where a step is profiled', () => {
  expect(mistake('global_profiler.tool=nsys')).toMatch(
    /actor\.profiler\.tool: expected torch where steps are profiled, got "nsys": Nsight Systems is not started here/,
  );
  for (const [tool, why] of [
    ['npu', /Ascend/],
    ['torch_memory', /contents \[memory\] records allocations/],
    ['precision_debugger', /msprobe/],
  ] as const)
    expect(mistake(`${ACTOR}.tool=${tool}`)).toMatch(why);
  expect(mistake(`${ACTOR}.${TORCH}.contents=[cpu,stack]`)).toMatch(
    /contents: expected some of cpu, cuda, memory, shapes, got "stack": there are no lines of Python/,
  );
  expect(mistake(`${ACTOR}.ranks=[1]`)).toMatch(
    /ranks: expected ranks below the number of workers \(1\), got 1/,
  );
  expect(mistake('global_profiler.profile_continuous_steps=true', `${ACTOR}.${TORCH}.discrete=true`)).toMatch(
    /discrete: expected false where global_profiler\.profile_continuous_steps is true/,
  );
  expect(mistake('global_profiler.steps=[0]')).toMatch(
    /global_profiler\.steps: expected a list of steps from 1/,
  );
  expect(mistake(`${ACTOR}.${TORCH}.schedule.active=1`)).toMatch(/needs a profile of some mini-batches/);
  expect(mistake(`${ACTOR}.${TORCH}.profile_token_start=2`)).toMatch(/needs a profile of some tokens/);
  expect(mistake('global_profiler.finish_hook_cmd=upload')).toMatch(/needs a command that is run at the end/);
  expect(mistake('trainer.profile_steps=[1]')).toMatch(/give global_profiler\.steps/);
});

it('takes the keys of verl’s own example', () => {
  const { notMapped, config } = ppo(
    `global_profiler.tool=torch global_profiler.steps=[1,2] global_profiler.save_path=/p global_profiler.relocate_results=True
     global_profiler.finish_hook_cmd=null ${ACTOR}.enable=True ${ACTOR}.ranks=[0] ${ACTOR}.all_ranks=False
     ${ACTOR}.${TORCH}.discrete=False ${ACTOR}.${TORCH}.contents=['cpu','cuda'] ${ACTOR}.${TORCH}.schedule.active=0
     ${ACTOR}.${TORCH}.schedule.skip_first=0 ${ROLES}.rollout.profiler.enable=True
     ${ROLES}.rollout.profiler.${TORCH}.discrete=True ${ROLES}.rollout.profiler.${TORCH}.profile_token_start=null`.replace(
      /\s+/g,
      ' ',
    ),
  );
  expect(notMapped).toEqual([]);
  expect(config).toMatchObject({
    global_profiler: { tool: 'torch', steps: [1, 2], save_path: '/p' },
    actor_rollout_ref: { actor: { profiler: { enable: true } } },
  });
});

it('a supervised run has an interval of steps, in one trace', () => {
  const file = writeConfig('data: { train_files: a.jsonl }\nmodel: { path: m }\n');
  const sft = (...keys: string[]) => sftProfilePlan(loadSftConfig(file, keys));
  expect(sft('profiler.enable=true')).toBeNull();
  expect(sft('trainer.profile_interval=[2,4]')).toBeNull();
  const found = sft('profiler.enable=true', 'trainer.profile_interval=[2,4]', 'profiler.save_path=/t');
  expect(found).toMatchObject({
    directory: '/t',
    continuous: true,
    pools: { policy: { roles: 'actor', ranks: [0] } },
  });
  expect([1, 2, 4, 5].map((step) => found?.profiles(step))).toEqual([false, true, true, false]);
  for (const keys of ['trainer.profile_interval=[3,2]', 'global_profiler.steps=[1]'])
    expect(() => loadSftConfig(file, [keys])).toThrow();
  expect(() => sft('profiler.enable=true', 'trainer.profile_interval=[1,1]', 'profiler.tool=npu')).toThrow(
    /Ascend/,
  );
});
