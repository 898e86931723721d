import { existsSync, readFileSync } from 'node:fs';
import { allGone, Command, type Exit } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';

// PPO with a critic and a reference over several workers, from the command line.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

const RECIPE = ['algorithm.adv_estimator=gae', 'trainer.total_training_steps=3'];

function start(directory: string, workers: number, ...overrides: string[]): Command {
  return new Command([
    'train',
    workspace.file('train.yaml'),
    ...RECIPE,
    `trainer.n_gpus_per_node=${workers}`,
    `trainer.default_local_dir=${workspace.file(directory)}`,
    ...overrides,
  ]);
}

const metricsText = (directory: string): string =>
  readFileSync(`${workspace.file(directory)}/metrics.jsonl`, 'utf8');

function metrics(directory: string): Record<string, unknown>[] {
  const lines = metricsText(directory).trim().split('\n');
  return lines.map((line) => JSON.parse(line) as Record<string, unknown>);
}

function expectDone(exit: Exit): void {
  expect(exit).toMatchObject({ code: 0, stderr: '' });
}

function expectClose(actual: Record<string, unknown>[], expected: Record<string, unknown>[]): void {
  expect(actual).toHaveLength(expected.length);
  for (const [i, record] of expected.entries()) {
    // A run that ends early validates once more.
    expect(Object.keys(actual[i] as object)).toEqual(expect.arrayContaining(Object.keys(record)));
    for (const [name, value] of Object.entries(record)) {
      // How tokens lie on the ranks is told by global_seqlen/*: one rank has them all.
      if (typeof value !== 'number' || name.startsWith('global_seqlen/')) continue;
      const error = Math.abs((actual[i]?.[name] as number) - value) / Math.max(1, Math.abs(value));
      if (!(error < 1e-4)) throw new Error(`line ${i}, ${name}: ${actual[i]?.[name]} but ${value}`);
    }
  }
}

it('two and three workers train as one does, and each can go on from what the other saved', async () => {
  expectDone(await start('one', 1).exited);
  expectDone(await start('two', 2).exited);
  expectClose(metrics('two'), metrics('one'));
  // What it took is told apart from what repeats to the bit.
  expect(metricsText('two')).not.toMatch(/goodput|straggler|fault/);
  for (const line of readFileSync(`${workspace.file('two')}/timings.jsonl`, 'utf8')
    .trim()
    .split('\n')) {
    const timings = JSON.parse(line) as Record<string, number>;
    if (timings['perf/goodput'] === undefined) continue; // of a validation, or a save
    expect(timings).toMatchObject({ 'fault/restarts': 0, 'fault/lost_steps': 0 });
    expect(timings['perf/goodput']).toBeGreaterThan(0);
    expect(timings['perf/goodput']).toBeLessThanOrEqual(1);
    for (const phase of ['gen', 'old_log_prob', 'ref', 'values', 'update_critic', 'update_actor']) {
      expect(timings[`straggler/${phase}/ratio`]).toBeGreaterThanOrEqual(1);
      expect([0, 1]).toContain(timings[`straggler/${phase}/rank`]);
    }
  }
  // Its workers have said nothing.
  expect(existsSync(`${workspace.file('two')}/logs`)).toBe(false);

  // Both of them at the same sequences; the reference follows the actor.
  const shared = ['actor_rollout_ref.actor', 'critic'].map(
    (role) => `${role}.ulysses_sequence_parallel_size=2`,
  );
  expectDone(await start('shared', 2, ...shared).exited);
  expectClose(metrics('shared'), metrics('one'));

  // Two at every matrix of two stages.
  const megatron = ['actor_rollout_ref.actor', 'critic'].flatMap((role) => [
    `${role}.strategy=megatron`,
    `${role}.megatron.tensor_model_parallel_size=2`,
    `${role}.megatron.pipeline_model_parallel_size=2`,
  ]);
  expectDone(await start('megatron', 4, ...megatron).exited);
  expectClose(metrics('megatron'), metrics('one'));

  expectDone(await start('mixed', 3, 'trainer.total_training_steps=1').exited);
  expectDone(await start('mixed', 1, 'trainer.total_training_steps=2').exited);
  expectDone(await start('mixed', 2).exited);
  expectClose(metrics('mixed'), metrics('one'));
});

it('supervised fine-tuning over two workers is that of one', async () => {
  const run = (directory: string, ...overrides: string[]): Command =>
    new Command([
      'sft',
      workspace.file('sft.yaml'),
      'trainer.total_training_steps=3',
      `trainer.default_local_dir=${workspace.file(directory)}`,
      ...overrides,
    ]);
  expectDone(await run('sft-one').exited);
  expectDone(await run('sft-two', 'trainer.n_gpus_per_node=2', 'ulysses_sequence_parallel_size=2').exited);
  expectClose(metrics('sft-two'), metrics('sft-one'));
  const sharded = ['reshard_after_forward=false', 'gradient_reduction=mini_batch', 'offload_policy=true'];
  const keys = sharded.map((key) => `model.fsdp_config.${key}`);
  expectDone(await run('sft-keys', 'trainer.n_gpus_per_node=2', ...keys).exited);
  expectClose(metrics('sft-keys'), metrics('sft-one'));
  const megatron = ['strategy=megatron', 'tensor_model_parallel_size=2', 'pipeline_model_parallel_size=2'];
  expectDone(
    await run('sft-megatron', 'trainer.n_gpus_per_node=4', ...megatron.map((key) => `engine.${key}`)).exited,
  );
  expectClose(metrics('sft-megatron'), metrics('sft-one'));
});

it('a worker that dies ends the run with one error; the run goes on to the same numbers, bit for bit', async () => {
  const long = ['actor_rollout_ref.actor.ppo_epochs=20'];
  expectDone(await start('undisturbed', 2, ...long).exited);
  const run = start('killed', 2, ...long);
  await run.until('the first step', () => {
    try {
      return metrics('killed').some((record) => 'actor/pg_loss' in record);
    } catch {
      return false;
    }
  });
  const workers = run.workers();
  expect(workers).toHaveLength(2);
  process.kill(workers[1] as number, 'SIGKILL');
  const { code, stderr } = await run.exited;
  expect(code).toBe(1);
  expect(stderr).toMatch(/worker rank [01] died in phase \w+/);
  expect(stderr.match(/troupe: error/g)).toHaveLength(1);
  expect(await allGone(workers, 5000)).toBe(true);
  expectDone(await start('killed', 2, ...long).exited);
  expect(metricsText('killed')).toBe(metricsText('undisturbed'));
});
