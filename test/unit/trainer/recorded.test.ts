// Steps whose responses are kept for runs after this one (skip.rollout), over fakes.
import { readdirSync, readFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { rareReward, runConfig, runDirectory, steps, trainer } from '../../helpers/fake_run';

const MODEL = resolve(__dirname, '../../fixtures/conformance/models/qwen2_tied/actor');
const RUN = ['trainer.total_training_steps=3', 'trainer.val_before_train=false', 'trainer.test_freq=-1'];

const kept = (directory: string, which: string): string[] => [
  ...RUN,
  'skip.rollout.enable=true',
  `skip.rollout.dump_dir=${directory}`,
  `skip.rollout.steps=${which}`,
  'trainer.project_name=p',
  'trainer.experiment_name=e',
];

type Options = Parameters<typeof trainer>[0];

async function run(options: Options): Promise<{
  calls: string[];
  lines: Record<string, unknown>[];
  updates: unknown[];
}> {
  const made = trainer(options);
  await made.trainer.fit();
  const lines = steps(made.directory).map((line) =>
    Object.fromEntries(
      Object.entries(line).filter(
        ([key]) => key === 'step' || /^(actor|critic|training|response_length)\//.test(key),
      ),
    ),
  );
  const updates = made.engines.updates.map((batch) => ({
    tokens: [...batch.get('tokens')],
    logProbs: [...(batch.get('rolloutLogProbs') as Float32Array)],
    advantages: [...batch.get('advantages')],
  }));
  return { calls: made.engines.calls.filter((name) => name === 'generate'), lines, updates };
}

test.each([
  ['without dynamic sampling', [], 1],
  [
    'with it',
    [
      'algorithm.filter_groups.enable=true',
      'algorithm.filter_groups.metric=acc',
      'algorithm.filter_groups.max_num_gen_batches=0',
    ],
    null,
  ],
])('the numbers of a run are the same from what another one has kept: %s', async (_, more, perStep) => {
  const directory = runDirectory();
  const options = { reward: rareReward };
  const plain = await run({ overrides: [...RUN, ...more], options });
  const first = await run({ overrides: [...kept(directory, '[1,3]'), ...more], options });
  expect(readdirSync(join(directory, 'p', 'e')).sort()).toEqual(['1.jsonl', '3.jsonl']);
  const second = await run({ overrides: [...kept(directory, '[1,3]'), ...more], options });
  expect(first.updates).toEqual(plain.updates);
  expect(second.updates).toEqual(plain.updates);
  expect(second.lines).toEqual(plain.lines);
  expect(first.calls).toEqual(plain.calls);
  // Only the second step still generates.
  expect(second.calls.length).toBeGreaterThan(0);
  expect(second.calls.length).toBeLessThan(first.calls.length);
  if (perStep !== null) expect(second.calls).toHaveLength(perStep);
});

test('a file names its model so that runs of other directories see whether it is theirs', async () => {
  const directory = runDirectory();
  const far = relative(process.cwd(), MODEL);
  await run({ overrides: [...kept(directory, '[1]'), `actor_rollout_ref.model.path=${far}`] });
  const [head] = readFileSync(join(directory, 'p', 'e', '1.jsonl'), 'utf8').split('\n');
  expect(JSON.parse(head as string)).toMatchObject({ model: MODEL });
});

test('how much of a step was recalled is logged', async () => {
  const directory = runDirectory();
  const trained = async (overrides: string[]): Promise<(readonly unknown[])[]> => {
    const made = trainer({ overrides });
    await made.trainer.fit();
    return steps(made.directory).map((line) => [line['skip/requests'], line['skip/recalled']]);
  };
  const overrides = kept(directory, '[1,2]');
  expect(await trained(overrides)).toEqual([
    [8, 0],
    [8, 0],
    [undefined, undefined],
  ]);
  expect(await trained(overrides)).toEqual([
    [8, 8],
    [8, 8],
    [undefined, undefined],
  ]);
  // Other seeds are other requests.
  expect((await trained([...overrides, 'trainer.seed=5']))[0]).toEqual([8, 0]);
});

describe('refused', () => {
  test('prompts that are worked on ahead', () => {
    const ahead = ['trainer.v1.trainer_mode=colocate_async', ...kept('/tmp', '[1]')];
    expect(() => runConfig('x', ahead)).toThrow(
      /skip\.rollout\.enable: steps whose responses are kept need trainer\.v1\.trainer_mode sync, got colocate_async/,
    );
  });

  test.each([
    ['skip.rollout.steps=[0]', /skip\.rollout\.steps: expected a list of steps, counted from 1, got \[0\]/],
    [
      'skip.rollout.action=repeat',
      /skip\.rollout\.action: expected "cache", got "repeat": a request is answered from its own step/,
    ],
    ['skip.async_rollout.enable=true', /skip\.async_rollout: .*worked on ahead, which is not there/],
  ])('%s', (override, message) => {
    expect(() => runConfig('x', [override])).toThrow(message);
  });

  test('verl’s key of its newer trainer means the same', () => {
    expect(
      runConfig('x', ['skip.rollout_tq.enable=true', 'skip.rollout_tq.steps=[2]']).skip.rollout,
    ).toMatchObject({
      enable: true,
      steps: [2],
    });
  });
});
