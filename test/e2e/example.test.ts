import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { Command, type Exit, runCommand } from '../helpers/e2e_process';
import { readLines } from '../helpers/observed_run';

// The arithmetic example as `npm start` runs it, in a few steps.

const ROOT = resolve(__dirname, '../..');
const RUN = join(ROOT, 'examples/arithmetic/run.mjs');
const NAME = `test-example-${process.pid}`;
const DIRECTORY = join(ROOT, 'runs', NAME);
afterAll(() => rmSync(DIRECTORY, { recursive: true, force: true }));

const example = (...args: string[]): Promise<Exit> => new Command(args, { program: RUN }).exited;
const STEPS = ['trainer.total_training_steps=2', 'trainer.ui=false', 'trainer.num_threads=1'];
const sft = STEPS.flatMap((override) => ['--sft', override]);
const EXPERTS_OVER_TWO = [
  'actor_rollout_ref.actor.strategy=megatron',
  'actor_rollout_ref.actor.megatron.expert_model_parallel_size=2',
  'trainer.n_gpus_per_node=2',
];

test('a mixture of experts over two workers trains as on one', async () => {
  const exit = await example('--experts', '4', '--name', NAME, ...sft, ...STEPS, ...EXPERTS_OVER_TWO);
  expect([exit.code, exit.code === 0 ? '' : exit.stderr]).toEqual([0, '']);
  const json = (file: string): Record<string, unknown> =>
    JSON.parse(readFileSync(join(DIRECTORY, file), 'utf8'));
  expect(json('rl/final_model/config.json')).toMatchObject({ model_type: 'qwen2_moe', num_experts: 4 });
  expect(json('summary.json')).toMatchObject({ algorithm: 'GRPO', steps: 2 });
  expect(exit.stdout).toContain(
    `a mixture of 4 experts in each layer: ${json('summary.json')['parameters']}`,
  );

  const alone = await runCommand([
    ...['train', join(ROOT, 'examples/arithmetic/grpo.yaml'), ...STEPS],
    ...['train', 'val'].map((set) => `data.${set}_files=${join(DIRECTORY, 'data', `${set}.jsonl`)}`),
    `actor_rollout_ref.model.path=${join(DIRECTORY, 'mixture')}`,
    `trainer.default_local_dir=${join(DIRECTORY, 'alone')}`,
  ]);
  expect(alone.code === 0 ? '' : alone.stderr).toBe('');
  const [two, one] = ['rl', 'alone'].map((run) => readLines(join(DIRECTORY, run, 'metrics.jsonl')));
  expect(two).toHaveLength((one as object[]).length);
  const close = (name: string, tolerance: number): void => {
    const [a, b] = [two, one].map((records) => records?.find(({ step }) => step === 1)?.[name] as number);
    expect([name, Math.abs((a as number) - (b as number)) <= tolerance]).toEqual([name, true]);
  };
  // Of the same samples: the first step begins with the same weights.
  for (const name of ['critic/score/mean', 'response_length/mean', 'actor/ppo_kl']) close(name, 0);
  for (const name of ['actor/entropy', 'actor/pg_loss', 'actor/grad_norm', 'actor/moe/entropy'])
    close(name, 1e-5);
}, 240_000);

test('a number of experts that cannot be is refused', async () => {
  for (const experts of ['1', 'two', '65']) {
    const { code, stderr } = await example('--experts', experts);
    expect(code).toBe(2);
    expect(stderr).toContain(`--experts: expected an integer from 2 to 64 but got '${experts}'`);
  }
});

const AGENT = join(ROOT, 'examples/agent/run.mjs');

test.each([
  [RUN, ['actor_rollout_ref.rollout.n=no'], /rollout\.n: expected an integer .* got "no"/],
  [RUN, ['--sft', 'data.max_length=no'], /data\.max_length: expected an integer .* got "no"/],
  [AGENT, ['actor_rollout_ref.rollout.n=no'], /rollout\.n: expected an integer .* got "no"/],
  [AGENT, ['--seed', 'one'], /--seed: expected an integer but got 'one'\nusage: /],
  [AGENT, ['--nope'], /Unknown option '--nope'.*\nusage: /],
  [AGENT, ['nope'], /expected key=value but got 'nope'\nusage: /],
])('what is wrong is said before the first stage: %s %j', async (program, args, message) => {
  const name = `${NAME}-wrong`;
  const { code, stdout, stderr } = await new Command([...args, '--name', name], { program }).exited;
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toMatch(message);
  expect(existsSync(join(ROOT, 'runs', name))).toBe(false);
});

test('the agent example hands a request to end on to what it has started', async () => {
  const name = `${NAME}-agent`;
  const running = new Command(['--name', name], { program: AGENT });
  try {
    await running.until('its first step', () => running.said(/step 1\/160/));
    running.kill('SIGTERM');
    const { code, signal, stdout } = await running.exited;
    expect([code, signal]).toEqual([130, null]);
    expect(stdout).toMatch(/stopped by SIGTERM after step \d+, which is saved/);
  } finally {
    rmSync(join(ROOT, 'runs', name), { recursive: true, force: true });
  }
});
