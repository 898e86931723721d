import { readFileSync } from 'node:fs';
import { loadConfig } from '../../ts/config/config';
import { Trainer, type TrainerOptions } from '../../ts/trainer/trainer';
import { Workspace } from '../helpers/e2e_workspace';

// Steps that learn while further responses are worked on, with the engine and its workers.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

const COLOCATED = 'trainer.v1.trainer_mode=colocate_async';

type Line = Record<string, number>;

async function train(
  directory: string,
  overrides: readonly string[],
  options: TrainerOptions = {},
): Promise<Line[]> {
  const config = loadConfig(workspace.file('train.yaml'), [
    `trainer.default_local_dir=${workspace.file(directory)}`,
    'trainer.val_before_train=false',
    'trainer.test_freq=2',
    ...overrides,
  ]);
  await new Trainer(config, options).fit();
  return logged(directory, 'metrics.jsonl');
}

const logged = (directory: string, file: string): Line[] =>
  readFileSync(workspace.file(`${directory}/${file}`), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

/** Prompts of the samples files of steps. */
const prompts = (directory: string, steps: number): string[] =>
  Array.from({ length: steps }, (_, i) => i + 1).flatMap((step) =>
    logged(directory, `samples/${step}.jsonl`).map((row) =>
      String((row as unknown as { input: string }).input),
    ),
  );

const withoutStaleness = (lines: Line[]): Line[] =>
  lines.map((line) =>
    Object.fromEntries(Object.entries(line).filter(([key]) => !key.startsWith('training/off_policy/'))),
  );

test('with nothing ahead, the numbers are those of steps that generate what they learn from', async () => {
  const four = ['trainer.total_training_steps=4', 'algorithm.rollout_correction.preset=disabled'];
  const sync = await train('sync', four);
  const async = await train('ahead_0', [
    ...four,
    COLOCATED,
    'trainer.v1.colocate_async.num_warmup_batches=0',
  ]);
  expect(withoutStaleness(async)).toEqual(sync);
  const staleness = async.flatMap((line) => line['training/off_policy/trajectory_staleness_worst/max'] ?? []);
  expect(staleness).toEqual([0, 0, 0, 0]);
}, 240_000);

test('prompts ahead: every one is learnt from once, and none is older than it may be', async () => {
  const steps = 6;
  const lines = await train('ahead_1', [
    `trainer.total_training_steps=${steps}`,
    COLOCATED,
    'trainer.v1.sampler.max_off_policy_threshold=2',
    'trainer.v1.sampler.max_off_policy_strategy=wait',
  ]);
  const all = prompts('ahead_1', steps);
  const sync = prompts('sync', 4);
  // The order is that in which they were done.
  expect(all.slice(0, sync.length)).not.toEqual([]);
  const perStep = sync.length / 4;
  expect(all.length).toBe(steps * perStep);
  const trained = lines.filter((line) => 'actor/pg_loss' in line);
  for (const [i, line] of trained.entries()) {
    expect(line['training/off_policy/trajectory_staleness_worst/max']).toBeLessThanOrEqual(Math.min(i, 1));
    expect(line['training/off_policy/trajectory_staleness/min']).toBeGreaterThanOrEqual(0);
    expect(line['training/off_policy/evicted_samples']).toBeUndefined();
    // Weights of two steps: the default correction measures and weighs them.
    expect(line['rollout_corr/kl']).toBeDefined();
  }
  expect(
    trained.some((line) => (line['training/off_policy/trajectory_staleness_worst/max'] as number) > 0),
  ).toBe(true);
}, 240_000);
