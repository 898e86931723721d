import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { Command, type Exit } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';

// Steps of real runs that are profiled, from the command line.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

interface TraceEvent {
  ph: string;
  cat?: string;
  name: string;
  pid: number | string;
  tid: number | string;
  ts: number;
  dur: number;
  args?: Record<string, unknown>;
}

interface Trace {
  baseTimeNanoseconds: number;
  traceEvents: TraceEvent[];
}

const ACTOR = 'actor_rollout_ref.actor.profiler';

function run(directory: string, ...overrides: string[]): Promise<Exit> {
  return new Command([
    'train',
    workspace.file('train.yaml'),
    'trainer.total_training_steps=3',
    'trainer.val_before_train=false',
    `trainer.default_local_dir=${workspace.file(directory)}`,
    `global_profiler.save_path=${workspace.file(`${directory}-traces`)}`,
    ...overrides,
  ]).exited;
}

function expectDone(exit: Exit): void {
  expect(exit).toMatchObject({ code: 0, stderr: '' });
}

/** Names of traces without what differs from run to run. */
const files = (directory: string): string[] =>
  readdirSync(workspace.file(`${directory}-traces`))
    .map((name) => name.replace(/_pid\d+_\d{17}(_part\d+)?\.json\.gz$/, ''))
    .sort();

function trace(directory: string, prefix: string): Trace {
  const path = workspace.file(`${directory}-traces`);
  const [name, ...others] = readdirSync(path).filter((file) => file.startsWith(prefix));
  expect(others).toEqual([]);
  return JSON.parse(gunzipSync(readFileSync(`${path}/${name}`)).toString()) as Trace;
}

/** Named ranges, by how often they are there. */
function ranges({ traceEvents }: Trace): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { ph, cat, name } of traceEvents)
    if (ph === 'X' && cat === 'user_annotation') counts.set(name, (counts.get(name) ?? 0) + 1);
  return counts;
}

const metrics = (directory: string): string =>
  readFileSync(`${workspace.file(directory)}/metrics.jsonl`, 'utf8');

const rangesOf = (directory: string, prefix: string): Map<string, number> => ranges(trace(directory, prefix));

it('a step that is profiled leaves a trace of its worker and one of the trainer, and changes no number', async () => {
  expectDone(await run('plain'));
  expect(() => files('plain')).toThrow(/ENOENT/);
  expectDone(
    await run('profiled', 'global_profiler.tool=torch', 'global_profiler.steps=[2]', `${ACTOR}.enable=True`),
  );
  expect(metrics('profiled')).toBe(metrics('plain'));
  expect(files('profiled')).toEqual(['actor-rollout-ref_train_step2_rank0-of-1', 'trainer_step2']);

  const worker = trace('profiled', 'actor');
  const own = ranges(worker);
  const once = [
    'actor_compute_log_prob',
    'ref_compute_log_prob',
    'actor_update',
    'mini_batch0',
    'mini_batch1',
    'pack_weights',
  ];
  expect(once.filter((name) => own.get(name) !== 1)).toEqual([]);
  // Of two mini-batches in an update; of two log-probs, and as many mini-batches.
  const counts = {
    optimizer_step: 2,
    'micro_batch0 backward': 2,
    micro_batch0: 4,
    attention: 8,
    'layer1 backward': 2,
  };
  expect(Object.fromEntries(own)).toMatchObject(counts);
  for (const name of [
    'actor_generate',
    'rollout_step',
    'paged_attention',
    'logits',
    'layer0',
    'linear_log_prob',
  ])
    expect(own.get(name)).toBeGreaterThan(0);
  expect(worker.traceEvents.some(({ cat, name }) => cat === 'cpu_op' && name === 'aten::copy_')).toBe(true);

  // What a worker did lies within the phase of the trainer that asked for it.
  const trainer = trace('profiled', 'trainer');
  expect(trainer.baseTimeNanoseconds).toBe(worker.baseTimeNanoseconds);
  const spanOf = ({ traceEvents }: Trace, wanted: string): [number, number] => {
    const { ts, dur } = traceEvents.find(({ ph, name }) => ph === 'X' && name === wanted) as TraceEvent;
    return [ts, ts + dur];
  };
  for (const [phase, work] of [
    ['gen', 'actor_generate'],
    ['old_log_prob', 'actor_compute_log_prob'],
    ['ref', 'ref_compute_log_prob'],
    ['update_actor', 'actor_update'],
  ] as const) {
    const [[first, last], [begin, end]] = [spanOf(trainer, phase), spanOf(worker, work)];
    const slackUs = 2_000; // the trainer's clock tells milliseconds
    expect(begin).toBeGreaterThan(first - slackUs);
    expect(end).toBeLessThan(last + slackUs);
  }
  expect(existsSync(`${workspace.file('profiled')}/final_model`)).toBe(true);
});

it('of two workers the one that is asked for, steps that follow one another in one trace', async () => {
  expectDone(
    await run(
      'continuous',
      'trainer.n_gpus_per_node=2',
      'global_profiler.steps=[1,2,3]',
      'global_profiler.profile_continuous_steps=True',
      `${ACTOR}.enable=True`,
      `${ACTOR}.ranks=[1]`,
      `${ACTOR}.tool_config.torch.contents=[cpu,shapes,memory]`,
    ),
  );
  expect(files('continuous')).toEqual(['actor-rollout-ref_train_step1_rank1-of-2', 'trainer_step1']);
  const worker = trace('continuous', 'actor');
  const own = ranges(worker);
  expect(own.get('actor_update')).toBe(3);
  const names = [...own.keys()];
  for (const collective of ['all_gather', 'reduce_scatter'])
    expect(names.filter((name) => name.startsWith(`${collective} layers.0`))).not.toEqual([]);
  expect(worker.traceEvents.some(({ args }) => args !== undefined && 'Input Dims' in args)).toBe(true);
  expect(worker.traceEvents.some(({ name }) => name === '[memory]')).toBe(true);
  expect(rangesOf('continuous', 'trainer').get('update_actor')).toBe(3);
});

it('discrete: a trace of each piece of work', async () => {
  const discrete = `${ACTOR}.tool_config.torch.discrete=True`;
  expectDone(await run('discrete', 'global_profiler.steps=[3]', `${ACTOR}.enable=True`, discrete));
  const piece = (name: string): string => `actor-rollout-ref_${name}_step3_rank0-of-1`;
  const pieces = ['actor-compute-log-prob', 'actor-update', 'generate', 'ref-compute-log-prob'].map(piece);
  expect(files('discrete')).toEqual([...pieces, 'trainer_step3']);
  expect([...rangesOf('discrete', piece('generate')).keys()]).toEqual(
    expect.arrayContaining(['actor_begin_rollout', 'actor_generate', 'rollout_step']),
  );
  const update = rangesOf('discrete', piece('actor-update'));
  expect(update.get('actor_update')).toBe(1);
  expect(update.has('actor_compute_log_prob')).toBe(false);
});

it('workers that only generate have a trace of their own, also of what is worked on ahead', async () => {
  expectDone(
    await run(
      'ahead',
      'trainer.v1.trainer_mode=separate_async',
      'actor_rollout_ref.rollout.nnodes=1',
      'actor_rollout_ref.rollout.n_gpus_per_node=1',
      'global_profiler.steps=[2]',
      `${ACTOR}.enable=True`,
    ),
  );
  expect(files('ahead')).toEqual([
    'actor-ref_train_step2_rank0-of-1',
    'rollout_generate_step2_rank0-of-1',
    'trainer_step2',
  ]);
  expect(rangesOf('ahead', 'actor').get('actor_update')).toBe(1);
  expect(rangesOf('ahead', 'actor').has('rollout_step')).toBe(false);
  expect(rangesOf('ahead', 'rollout').get('rollout_import_weights')).toBeGreaterThan(0);
});

it('a directory that cannot be written is found before the first step', async () => {
  const exit = await run(
    'unwritable',
    'global_profiler.steps=[3]',
    `${ACTOR}.enable=True`,
    `global_profiler.save_path=${workspace.file('train.jsonl')}/traces`,
  );
  expect(exit.code).not.toBe(0);
  expect(exit.stderr).toMatch(/write to global_profiler\.save_path .*train\.jsonl\/traces/);
  expect(existsSync(`${workspace.file('unwritable')}/metrics.jsonl`)).toBe(false);
});

it('steps of a supervised run go into one trace', async () => {
  const exit = await new Command([
    'sft',
    workspace.file('sft.yaml'),
    'trainer.total_training_steps=3',
    `trainer.default_local_dir=${workspace.file('sft')}`,
    'profiler.enable=True',
    'trainer.profile_interval=[2,3]',
    `profiler.save_path=${workspace.file('sft-traces')}`,
  ]).exited;
  expectDone(exit);
  expect(files('sft')).toEqual(['actor_train_step2_rank0-of-1', 'trainer_step2']);
  expect(rangesOf('sft', 'actor').get('actor_update')).toBe(2);
  expect(rangesOf('sft', 'trainer').get('step')).toBe(2);
});
