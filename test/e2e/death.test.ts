import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { allGone, CLI, Command, listTree, onEntry, sleep } from '../helpers/e2e_process';
import { BATCH, VALIDATION_PROMPTS, Workspace } from '../helpers/e2e_workspace';
import { marked } from '../helpers/left_over';
import { checkpoints, faults, latest, metrics, nativeCalls, Recipe } from '../helpers/recipe';

// A worker, the trainer or the person in front of it ends a run at some instant. What was running ends with it and says why,
// and the same command then goes on, to the same numbers bit for bit as a run that nothing happened to.

const TEN_SECONDS = 10_000;
/** Runs a program in a terminal of its own, which closes when a file is there, and prints its exit code (less than 0: a signal's number). */
const TERMINAL = `
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
os.set_blocking(terminal, False)
end = time.time() + 120
while not os.path.exists(sys.argv[1]) and time.time() < end:
    try:
        os.read(terminal, 65536)
    except BlockingIOError:
        time.sleep(0.01)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
`;

let workspace: Workspace;
/** Four steps of milliseconds. */
let quick: Recipe;
/** Steps of about a second, nearly all of it in update_actor. */
let long: Recipe;
/** Rewards that take longer than any test. */
let patient: Recipe;
/** A critic, and a KL coefficient that moves; checkpoints after steps 2 and 4 only. */
let ppo: Recipe;
/** Dynamic sampling: some steps take several generation batches. Checkpoints after steps 2 and 4. */
let dapo: Recipe;
/** Supervised fine-tuning. */
let sft: Recipe;
/** Four workers that share every matrix by two and the layers by two; it starts them again when one dies. */
let pipeline: Recipe;

beforeAll(async () => {
  workspace = await Workspace.create();
  quick = new Recipe(workspace, []);
  long = new Recipe(workspace, ['actor_rollout_ref.actor.ppo_epochs=500', 'trainer.total_training_steps=3']);
  patient = new Recipe(workspace, [`reward.custom_reward_function.path=${workspace.file('patient.cjs')}`]);
  ppo = new Recipe(workspace, [
    'algorithm.adv_estimator=gae',
    'algorithm.use_kl_in_reward=true',
    'algorithm.kl_ctrl.type=adaptive',
    'algorithm.kl_ctrl.horizon=100',
    'actor_rollout_ref.actor.use_kl_loss=false',
    'critic.ppo_epochs=20',
    'trainer.save_freq=2',
  ]);
  dapo = new Recipe(workspace, [
    `reward.custom_reward_function.path=${workspace.file('rare.cjs')}`,
    'algorithm.filter_groups.enable=true',
    'algorithm.filter_groups.metric=acc',
    'actor_rollout_ref.actor.clip_ratio_high=0.28',
    'actor_rollout_ref.actor.use_kl_loss=false',
    'trainer.save_freq=2',
  ]);
  sft = new Recipe(workspace, [], 'sft');
  pipeline = new Recipe(workspace, [
    'actor_rollout_ref.actor.strategy=megatron',
    'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2',
    'actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2',
    'actor_rollout_ref.actor.ppo_epochs=5',
    'trainer.n_gpus_per_node=4',
    'trainer.fault_tolerance.max_restarts=2',
  ]);
});
afterAll(() => workspace.remove());

const countMarks = (): number =>
  existsSync(workspace.file('marks')) ? statSync(workspace.file('marks')).size : 0;

/** Waits until a run that starts from nothing is in update_actor of `step`, when its responses have been scored. */
async function duringUpdate(run: Command, step: number, marksBefore: number): Promise<void> {
  const marks = VALIDATION_PROMPTS + step * BATCH.prompts * BATCH.n + (step > 2 ? VALIDATION_PROMPTS : 0);
  await run.until(`the rewards of step ${step}`, () => countMarks() - marksBefore >= marks);
  await sleep(150);
}

async function within<T>(ms: number, promise: Promise<T>): Promise<T> {
  const start = Date.now();
  const result = await promise;
  expect(Date.now() - start).toBeLessThan(ms);
  return result;
}

it('nothing happens: a second run writes the same metrics, and a finished run has nothing to do', async () => {
  const directory = quick.newDirectory();
  await quick.finish(directory);
  const before = listTree(directory).map((path) => [path, statSync(`${directory}/${path}`).mtimeMs]);
  const again = await quick.finish(directory);
  expect(again.stdout).not.toMatch(/^step \d+\/\d+ \|/m);
  const after = listTree(directory).map((path) => [path, statSync(`${directory}/${path}`).mtimeMs]);
  const changed = after.filter(([path, time], i) => before[i]?.[0] !== path || before[i]?.[1] !== time);
  expect(changed.map(([path]) => path).filter((path) => String(path).startsWith('global_step'))).toEqual([]);
});

describe('a worker dies', () => {
  it.each([
    ['SIGKILL', 'killed by SIGKILL'],
    ['SIGSEGV', 'crashed in native code with SIGSEGV'],
  ] as const)('by %s in a step', async (signal, how) => {
    const directory = long.newDirectory();
    const marks = countMarks();
    const run = long.start(directory);
    await duringUpdate(run, 2, marks);
    const workers = run.workers();
    expect(workers).toHaveLength(1);
    process.kill(workers[0]!, signal);
    const { code, stderr } = await within(TEN_SECONDS, run.exited);
    expect(code).toBe(1);
    expect(stderr).toMatch(/worker rank 0 died in phase (old_log_prob|ref|adv|update_actor) of step 2/);
    expect(stderr).toContain(how);
    expect(stderr.match(/troupe: error/g)).toHaveLength(1);
    expect(stderr).not.toMatch(/^\s+at /m);
    expect(latest(directory)).toBe('1');
    await long.finish(directory);
  });

  it('while the trainer waits for a reward', async () => {
    const marks = countMarks();
    const run = patient.start(patient.newDirectory());
    await run.until('the first reward', () => countMarks() > marks);
    process.kill(run.workers()[0]!, 'SIGKILL');
    const { code, stderr } = await within(TEN_SECONDS, run.exited);
    expect(code).toBe(1);
    // The caches of the rollout are freed in the background meanwhile.
    expect(stderr).toMatch(
      /worker rank 0 died in phase validation at step 0( \(parkRollout of 'actor'\))?: killed by SIGKILL/,
    );
  });

  it('before it is ready', async () => {
    const directory = long.newDirectory();
    const run = long.start(directory);
    await run.until('the start of a worker', () => {
      const worker = run.workers()[0];
      return worker !== undefined && process.kill(worker, 'SIGKILL');
    });
    const { code, stderr } = await within(TEN_SECONDS, run.exited);
    expect(code).toBe(1);
    expect(stderr).toContain('worker rank 0 died in phase startup: killed by SIGKILL');
    expect(listTree(directory)).toEqual([]);
  });
});

it('workers of a pipeline are killed in update_actor and in a save: the run goes on by itself to the same bits', async () => {
  const directory = pipeline.newDirectory();
  const run = pipeline.start(directory, { TROUPE_TRACE_NATIVE_CALLS: '1' });
  const started = new Set<number>();
  const kill = (rank: number): void => {
    const workers = run.workers();
    for (const pid of workers) started.add(pid);
    const isRank = (pid: number): boolean =>
      readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`worker ${rank}/4`);
    process.kill(workers.find(isRank) as number, 'SIGKILL');
  };
  await run.until('update_actor of step 2', () => nativeCalls(directory, 'updatePolicy') === 2 * 4);
  kill(3); // the last stage
  await run.until('another start', () => faults(directory).length > 0);
  onEntry(directory, '.incomplete_global_step_3', () => kill(0));
  const { code, stderr } = await run.exited;
  expect([code, code === 0 ? '' : stderr]).toEqual([0, '']);
  expect(faults(directory)).toEqual(['3 in update_actor of step 2', '0 in saving step 3']);
  expect(started.size).toBe(8);
  expect(await allGone([...started], TEN_SECONDS)).toBe(true);
  await pipeline.expectWhole(directory);
  expect(checkpoints(directory)).toEqual(checkpoints(await pipeline.whole()));
}, 300_000);

it('a worker dies in a run that began from a named checkpoint: it goes on from its own', async () => {
  const first = await long.whole();
  const directory = long.newDirectory();
  const run = new Recipe(workspace, [
    ...long.overrides,
    'trainer.resume_mode=resume_path',
    `trainer.resume_from_path=${first}/global_step_1`,
    'trainer.fault_tolerance.max_restarts=2',
  ]).start(directory);
  const named = `${directory}/latest_checkpointed_iteration.txt`;
  await run.until('its first checkpoint', () => existsSync(named) && latest(directory) === '2');
  process.kill(run.workers()[0]!, 'SIGKILL');
  const { code, stdout, stderr } = await run.exited;
  expect([code, code === 0 ? '' : stderr]).toEqual([0, '']);
  expect(stdout).toContain(`resuming after step 2 from ${directory}/global_step_2`);
  const ofStep = (path: string, step: number): string | undefined =>
    metrics(path)
      .split('\n')
      .find((line) => line.includes(`"training/global_step":${step},`) || line.includes(`"step":${step},`));
  for (const step of [2, 3]) expect(ofStep(directory, step)).toBe(ofStep(first, step));
}, 300_000);

it('a worker dies before a run that takes the place of another has begun: it does not go on with the other', async () => {
  const fresh = new Recipe(workspace, [
    'trainer.resume_mode=disable',
    'trainer.fault_tolerance.max_restarts=2',
  ]);
  const directory = await fresh.whole();
  const before = metrics(directory);
  const run = fresh.start(directory);
  await run.until('the start of a worker', () => {
    const worker = run.workers()[0];
    return worker !== undefined && process.kill(worker, 'SIGKILL');
  });
  const { code, stdout, stderr } = await run.exited;
  expect([code, code === 0 ? '' : stderr]).toEqual([0, '']);
  expect(stdout).not.toContain('resuming');
  expect(stdout).toMatch(/^training for 4 steps\n[\s\S]*^step 4\/4 \|/m);
  expect(metrics(directory)).toBe(before);
}, 300_000);

describe('the trainer dies', () => {
  it('in a step: its worker ends with it', async () => {
    const directory = long.newDirectory();
    const marks = countMarks();
    const run = long.start(directory);
    await duringUpdate(run, 2, marks);
    const workers = run.workers();
    expect(workers).toHaveLength(1);
    run.kill('SIGKILL');
    expect(await run.exited).toMatchObject({ signal: 'SIGKILL' });
    expect(await allGone(workers, TEN_SECONDS)).toBe(true);
    await long.finish(directory);
  });

  it('before its worker is ready', async () => {
    const run = quick.start(quick.newDirectory());
    await run.until('the start of a worker', () => run.workers().length > 0);
    const workers = run.workers();
    run.kill('SIGKILL');
    expect(await run.exited).toMatchObject({ signal: 'SIGKILL' });
    expect(await allGone(workers, TEN_SECONDS)).toBe(true);
  });

  /** Kills a run in the instant in which something happens to `entry` of its directory. */
  async function killAt(
    recipe: Recipe,
    directory: string,
    entry: string | RegExp,
    folder = directory,
  ): Promise<void> {
    const run = recipe.start(directory);
    let workers: number[] = [];
    await run.until('the run directory', () => existsSync(folder));
    onEntry(folder, entry, () => {
      workers = run.workers();
      run.kill('SIGKILL');
    });
    expect(await run.exited).toMatchObject({ signal: 'SIGKILL' });
    expect(await allGone(workers, TEN_SECONDS)).toBe(true);
  }

  /** Kills a run that starts from nothing when it has scored so many generation batches. */
  async function killAfterRewards(recipe: Recipe, directory: string, batches: number): Promise<void> {
    const marks = countMarks() + VALIDATION_PROMPTS + batches * BATCH.prompts * BATCH.n;
    const run = recipe.start(directory);
    await run.until(`${batches} batches of rewards`, () => countMarks() >= marks);
    const workers = run.workers();
    run.kill('SIGKILL');
    expect(await run.exited).toMatchObject({ signal: 'SIGKILL' });
    expect(await allGone(workers, TEN_SECONDS)).toBe(true);
  }

  it('again and again, while it writes something else each time', async () => {
    const directory = quick.newDirectory();
    await killAt(quick, directory, 'config.json');
    await killAt(quick, directory, 'metrics.jsonl');
    await killAt(quick, directory, '.incomplete_global_step_1');
    await killAt(quick, directory, 'global_step_2');
    await killAt(quick, directory, '.incomplete_latest_checkpointed_iteration.txt');
    await killAt(quick, directory, '.incomplete_global_step_4');
    await killAt(quick, directory, /^\.incomplete_final_model/);
    await quick.finish(directory);
  });

  it('with a critic and an adaptive KL controller, and steps after its last checkpoint', async () => {
    const directory = ppo.newDirectory();
    await killAfterRewards(ppo, directory, 2);
    await killAt(ppo, directory, '.incomplete_global_step_2');
    await killAt(ppo, directory, 'global_step_2');
    await killAt(ppo, directory, '3.jsonl', `${directory}/samples`);
    await killAt(ppo, directory, '.incomplete_global_step_4');
    await ppo.finish(directory);
    expect(metrics(directory)).toContain('"critic/vf_loss"');
    const coefficients = metrics(directory).match(/"actor\/reward_kl_penalty_coeff":[^,]+/g);
    expect(new Set(coefficients).size).toBeGreaterThan(2);
  });

  it('with dynamic sampling: in a step, between a step and its log, inside saves', async () => {
    const directory = dapo.newDirectory();
    await killAfterRewards(dapo, directory, 2);
    await killAt(dapo, directory, '.incomplete_global_step_2');
    await killAt(dapo, directory, 'global_step_2');
    await killAt(dapo, directory, '3.jsonl', `${directory}/samples`);
    await killAt(dapo, directory, '.incomplete_latest_checkpointed_iteration.txt');
    await dapo.finish(directory);
    const batches = metrics(directory).match(/"train\/num_gen_batches":\d+/g);
    expect(batches).toHaveLength(4);
    expect(new Set(batches).size).toBeGreaterThan(1);
  });

  it('in supervised fine-tuning', async () => {
    const directory = sft.newDirectory();
    await killAt(sft, directory, '.incomplete_global_step_1');
    await killAt(sft, directory, 'global_step_2');
    await killAt(sft, directory, '.incomplete_latest_checkpointed_iteration.txt');
    await sft.finish(directory);
  });
});

describe('someone interrupts', () => {
  it('with Ctrl-C in a step, which is finished and saved', async () => {
    const directory = long.newDirectory();
    const marks = countMarks();
    const run = long.start(directory);
    await duringUpdate(run, 2, marks);
    const workers = run.workers();
    run.killGroup('SIGINT');
    const { code, stdout } = await run.exited;
    expect(code).toBe(130);
    expect(stdout).toContain('step 2');
    expect(latest(directory)).toBe('2');
    expect(existsSync(`${directory}/global_step_2/trainer.json`)).toBe(true);
    expect(await allGone(workers, TEN_SECONDS)).toBe(true);
    await long.finish(directory);
  });

  it('supervised fine-tuning', async () => {
    const directory = sft.newDirectory();
    const run = sft.start(directory);
    await run.until('the run directory', () => existsSync(directory));
    onEntry(directory, 'metrics.jsonl', () => run.killGroup('SIGINT'));
    expect(await run.exited).toMatchObject({ code: 130 });
    expect(Number(latest(directory))).toBeGreaterThanOrEqual(1);
    await sft.finish(directory);
  });

  it('with a critic, between checkpoints', async () => {
    const directory = ppo.newDirectory();
    const run = ppo.start(directory);
    await run.until('step 1', () => existsSync(`${directory}/samples/1.jsonl`));
    run.killGroup('SIGINT');
    const { code } = await run.exited;
    expect(code).toBe(130);
    expect(Number(latest(directory))).toBeGreaterThanOrEqual(1);
    await ppo.finish(directory);
  });

  it.each([
    ['reinforcement learning', () => long, 'samples/1.jsonl'],
    ['supervised fine-tuning', () => sft, 'metrics.jsonl'],
  ])('by closing the terminal: %s', async (_, recipe, after) => {
    const directory = recipe().newDirectory();
    const command = [process.execPath, CLI, ...recipe().command(directory)];
    const terminal = spawn('python3', ['-c', TERMINAL, `${directory}/${after}`, ...command], {
      env: { ...process.env, ...marked(), _: '' },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let code = '';
    terminal.stdout.on('data', (text) => {
      code += text;
    });
    await once(terminal, 'close');
    expect(code).toBe('130\n');
    expect(Number(latest(directory))).toBeGreaterThanOrEqual(1);
    await recipe().finish(directory);
  });

  it('by closing the terminal of a run under nohup, which goes on', async () => {
    const directory = long.newDirectory();
    const run = new Command(long.command(directory), {
      prefix: ['bash', '-c', 'trap : HUP; nohup "$@"; exit $?', 'bash'],
    });
    await run.until('the run directory', () => existsSync(directory));
    onEntry(directory, 'metrics.jsonl', () => run.killGroup('SIGHUP'));
    expect(await run.exited).toMatchObject({ code: 0, stderr: expect.not.stringContaining('SIGHUP') });
    await long.expectWhole(directory);
  });

  it('before the first step: there is nothing to save', async () => {
    const directory = quick.newDirectory();
    const run = quick.start(directory);
    await run.until('the start of a worker', () => run.workers().length > 0);
    run.killGroup('SIGINT');
    expect(await run.exited).toMatchObject({ code: 130 });
    expect(listTree(directory).filter((path) => path.includes('global_step'))).toEqual([]);
    await quick.finish(directory);
  });

  it('twice: at once, and the newest checkpoint stays', async () => {
    const directory = quick.newDirectory();
    const firstStep = new Recipe(workspace, ['trainer.total_training_steps=1', 'trainer.test_freq=-1']);
    expect(await firstStep.start(directory).exited).toMatchObject({ code: 0 });
    const marks = countMarks();
    const run = patient.start(directory);
    await run.until('the first reward of step 2', () => countMarks() > marks);
    const workers = run.workers();
    run.kill('SIGINT');
    await sleep(300); // sooner, it would count as the same request
    run.kill('SIGINT');
    expect(await within(5_000, run.exited)).toMatchObject({ code: 130 });
    expect(workers).toHaveLength(1);
    expect(await allGone(workers, TEN_SECONDS)).toBe(true);
    expect(latest(directory)).toBe('1');
    await quick.finish(directory);
  });
});
