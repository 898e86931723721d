import { mkdtempSync, readFileSync } from 'node:fs';
import { basename, resolve } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { type Agent, defineAgent } from '../../ts/agent/define';
import { loadConfig } from '../../ts/config/config';
import type { RewardFunction } from '../../ts/reward/contract/types';
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

/** Prompts of the samples files of steps, which show some responses to each. */
const prompts = (directory: string, steps: number): string[] =>
  Array.from({ length: steps }, (_, i) => i + 1).flatMap((step) => [
    ...new Set(
      logged(directory, `samples/${step}.jsonl`).map((row) =>
        String((row as unknown as { input: string }).input),
      ),
    ),
  ]);

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

/** An agent of two calls, of which some trajectories wait in between until a step has been done. */
function slowAgent(): { agent: Agent; onStep: () => void } {
  let waiting: (() => void)[] = [];
  let begun = 0;
  const agent = defineAgent({
    run: async ({ promptIds, sample }, { model }) => {
      const first = await model.generate(promptIds, { maxNewTokens: 3 });
      if (sample === 0 && begun++ % 3 === 0) {
        const step = new Promise<void>((done) => waiting.push(done));
        await Promise.race([step, setTimeout(300, undefined, { ref: false })]);
      }
      const second = await model.generate([...promptIds, ...first.tokens, 2], { maxNewTokens: 3 });
      return (first.tokens.length + second.tokens.length) / 6 + (second.tokens[0] === 3 ? 1 : 0);
    },
  });
  const onStep = (): void => {
    for (const done of waiting) done();
    waiting = [];
  };
  return { agent, onStep };
}

describe('prompts ahead', () => {
  const EPOCH = ['trainer.total_training_steps=5', COLOCATED];
  const steps = (lines: Line[]): Line[] => lines.filter((line) => 'actor/pg_loss' in line);
  const values = (lines: Line[], name: string): number[] => lines.map((line) => line[name] as number);
  let everyPrompt: string[];
  beforeAll(async () => {
    await train('epoch', ['trainer.total_training_steps=5']);
    everyPrompt = prompts('epoch', 5).sort();
    expect(new Set(everyPrompt).size).toBe(20);
  });

  test('every prompt is learnt from once, trajectories go on over updates, and the weights of each token are known', async () => {
    const lines = steps(await train('ahead', EPOCH, slowAgent()));
    expect(prompts('ahead', 5).sort()).toEqual(everyPrompt);
    expect(Math.max(...values(lines, 'training/off_policy/trajectory_spans/max'))).toBeGreaterThanOrEqual(2);
    for (const [i, line] of lines.entries()) {
      expect(line['training/off_policy/trajectory_staleness/min']).toBeGreaterThanOrEqual(0);
      expect(line['training/off_policy/trajectory_staleness_worst/max']).toBeLessThanOrEqual(i);
      // Importance weights against the weights that sampled, unless the configuration says otherwise.
      expect(line['rollout_corr/rollout_is_mean']).toBeDefined();
    }
    const idle = values(logged('ahead', 'timings.jsonl'), 'rollouter/idle_ratio').filter(
      (x) => x !== undefined,
    );
    expect(idle).toHaveLength(5);
    for (const ratio of idle) expect(ratio >= 0 && ratio <= 1).toBe(true);
  }, 120_000);

  test('wait: no trajectory is older than it may be, and none is left out', async () => {
    const lines = steps(
      await train(
        'wait',
        [...EPOCH, 'trainer.v1.sampler={max_off_policy_threshold: 2, max_off_policy_strategy: wait}'],
        slowAgent(),
      ),
    );
    expect(prompts('wait', 5).sort()).toEqual(everyPrompt);
    for (const worst of values(lines, 'training/off_policy/trajectory_staleness_worst/max'))
      expect(worst).toBeLessThanOrEqual(1);
  }, 120_000);

  test.each([
    ['in the same way', []],
    ['and no longer works on prompts ahead', ['trainer.v1.trainer_mode=sync']],
    ['with smaller batches', ['data.train_batch_size=2', 'trainer.total_training_steps=8']],
  ])(
    'a run that is stopped goes on with the prompts that are left, each of them once, %s',
    async (_, changes) => {
      const directory = mkdtempSync(workspace.file('resumed-'));
      const configOf = (...more: string[]) =>
        loadConfig(workspace.file('train.yaml'), [
          `trainer.default_local_dir=${directory}`,
          ...EPOCH,
          ...more,
        ]);
      const { agent, onStep } = slowAgent();
      const first: Trainer = new Trainer(configOf(), {
        agent,
        onStep: (step) => {
          onStep();
          if (step === 2) first.requestStop('the test');
        },
      });
      expect(await first.fit()).toMatchObject({ step: 2, interrupted: true });
      const config = configOf(...changes);
      const { total_training_steps: step } = config.trainer;
      expect(await new Trainer(config, slowAgent()).fit()).toMatchObject({ step, interrupted: false });
      expect(prompts(basename(directory), step as number).sort()).toEqual(everyPrompt);
    },
    120_000,
  );

  test('dynamic sampling: prompts whose responses are alike make room for others', async () => {
    const lines = steps(
      await train('filtered', [
        'trainer.total_training_steps=3',
        COLOCATED,
        `reward.custom_reward_function.path=${workspace.file('rare.cjs')}`,
        'algorithm.filter_groups={enable: true, metric: acc}',
        `trainer.rollout_data_dir=${workspace.file('generations')}`,
      ]),
    );
    for (const line of lines) {
      const [out, all] = ['training/filter_groups/evicted_samples', 'train/num_gen_prompts'].map(
        (name) => line[name] as number,
      );
      expect(all).toBe(4 + (out as number));
    }
    for (let step = 1; step <= 3; step++) {
      const answers = new Map<string, Set<boolean>>();
      for (const row of logged('generations', `${step}.jsonl`)) {
        const { input, acc } = row as unknown as { input: string; acc: boolean };
        answers.set(input, (answers.get(input) ?? new Set()).add(acc));
      }
      expect([...answers.values()].every(({ size }) => size > 1)).toBe(true);
    }
  }, 120_000);

  test('an agent that always fails ends a run with dynamic sampling as such, not for prompts that teach nothing', async () => {
    const agent = defineAgent({
      run: async () => {
        throw new Error('no such tool');
      },
    });
    const filter = 'algorithm.filter_groups={enable: true, metric: seq_reward}';
    await expect(train('broken', [...EPOCH, filter], { agent })).rejects.toThrow(
      /agent failed on every one of 16 tasks: no such tool/,
    );
  }, 120_000);

  test('a reward function that fails ends the run', async () => {
    const reward: RewardFunction = () => {
      throw new Error('no such answer');
    };
    await expect(train('failed', [...EPOCH, 'reward.on_error=fail'], { reward })).rejects.toThrow(
      /no such answer/,
    );
  }, 120_000);
});

test('separate: a server generates while the policy learns, is lost once, and no prompt with it', async () => {
  const server = [process.execPath, resolve(__dirname, '../helpers/serve/our_server.cjs')];
  const command = [...server, workspace.file('mark'), 'sglang'].join(',');
  const said: string[] = [];
  const lines = await train(
    'separate',
    [
      'trainer.total_training_steps=5',
      'trainer.v1.trainer_mode=separate_async',
      'actor_rollout_ref.rollout.name=sglang',
      'actor_rollout_ref.rollout.mode=managed',
      `actor_rollout_ref.rollout.server.command=[${command}]`,
      'trainer.test_freq=-1',
    ],
    { log: (line) => said.push(line) },
  );
  expect(said.join('\n')).toMatch(/sglang server 1 was lost .*\n(.*\n)*.*sglang server 1 is back after/);
  await train('epoch', ['trainer.total_training_steps=5']);
  expect(prompts('separate', 5).sort()).toEqual(prompts('epoch', 5).sort());
  const worst = lines.flatMap((line) => line['training/off_policy/trajectory_staleness_worst/max'] ?? []);
  expect(worst).toHaveLength(5);
  // What is ahead goes on while the policy learns.
  expect(Math.max(...worst)).toBeGreaterThanOrEqual(1);
  for (const [i, most] of worst.entries()) expect(most).toBeLessThanOrEqual(i);
}, 240_000);
