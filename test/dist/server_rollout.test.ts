import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadConfig } from '../../ts/config/config';
import { createEngines } from '../../ts/trainer/engines';
import { CONFORMANCE } from '../helpers/conformance';
import { allGone, workersOf } from '../helpers/e2e_process';
import { FakeInferenceServer } from '../helpers/inference_server';
import { writeConfig } from '../unit/config/write_config';

const MODEL = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');

let scratch: string;
beforeAll(() => {
  scratch = mkdtempSync(path.join(tmpdir(), 'troupe-server-rollout-'));
});
afterAll(() => rmSync(scratch, { recursive: true }));

test('old weights that cannot be deleted are a warning, and the workers end all the same', async () => {
  const weights = path.join(scratch, 'weights');
  let spoil = false;
  const server = await FakeInferenceServer.start(({ path: asked }) => {
    if (spoil && asked === '/update_weights_from_disk') {
      // From here on nothing below the directory can be reached.
      renameSync(weights, path.join(scratch, 'elsewhere'));
      writeFileSync(weights, '');
    }
    return { success: true };
  });
  const config = loadConfig(writeConfig(), [
    `actor_rollout_ref.model.path=${MODEL}`,
    'algorithm.adv_estimator=grpo',
    'actor_rollout_ref.rollout.mode=server',
    'actor_rollout_ref.rollout.name=sglang',
    `actor_rollout_ref.rollout.server.addresses=[${JSON.stringify(server.url)}]`,
    `actor_rollout_ref.rollout.server.weights_dir=${weights}`,
  ]);
  const said: string[] = [];
  const needs = {
    reference: false,
    critic: false,
    rewardModel: false,
    totalSteps: 1,
    device: 'cpu',
  } as const;
  const engines = await createEngines(config, { ...needs, say: (line) => said.push(line) });
  const workers = workersOf(process.pid);
  expect(workers).toHaveLength(1);
  try {
    await engines.syncRollout?.(1);
    spoil = true;
    await engines.syncRollout?.(2);
  } finally {
    await engines.close();
    await server.kill();
  }
  expect(said).toContainEqual(
    expect.stringMatching(/^warning: \[rollout\] .*weights could not be removed: ENOTDIR/),
  );
  expect(await allGone(workers, 5_000)).toBe(true);
}, 60_000);
