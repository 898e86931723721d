import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadConfig } from '../../ts/config/config';
import { createEngines } from '../../ts/trainer/engines';
import { CONFORMANCE } from '../helpers/conformance';
import { allGone, workersOf } from '../helpers/e2e_process';
import { modelTensors, type NamedTensor, writeModel } from '../helpers/e2e_workspace';
import { FakeInferenceServer } from '../helpers/inference_server';
import { writeConfig } from '../unit/config/write_config';

const MODEL = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');

let scratch: string;
beforeAll(() => {
  scratch = mkdtempSync(path.join(tmpdir(), 'troupe-server-rollout-'));
});
afterAll(() => rmSync(scratch, { recursive: true }));

const needs = {
  reference: false,
  critic: false,
  rewardModel: false,
  totalSteps: 1,
  device: 'cpu',
} as const;

/** For models with few positions. */
const LENGTHS = ['data.max_prompt_length=24', 'data.max_response_length=8'];

/** What a server of our own finds under `key` of the config.json that it is started with. */
async function startedWith(model: string, key: string, name: string): Promise<string> {
  const [command, said] = [`${name}.cjs`, `${name}.said`].map((file) => path.join(scratch, file)) as [
    string,
    string,
  ];
  writeFileSync(
    command,
    `const fs = require('node:fs');
const at = process.argv.indexOf('--model-path') + 1;
const config = JSON.parse(fs.readFileSync(process.argv[at] + '/config.json', 'utf8'));
fs.writeFileSync(${JSON.stringify(said)}, String(config[${JSON.stringify(key)}]));
process.exit(1);`,
  );
  const config = loadConfig(writeConfig(), [
    ...LENGTHS,
    `actor_rollout_ref.model.path=${model}`,
    'algorithm.adv_estimator=grpo',
    'actor_rollout_ref.rollout.mode=managed',
    'actor_rollout_ref.rollout.name=sglang',
    `actor_rollout_ref.rollout.server.command=${JSON.stringify([process.execPath, command])}`,
    `actor_rollout_ref.rollout.server.weights_dir=${path.join(scratch, `${name}_weights`)}`,
    `trainer.default_local_dir=${path.join(scratch, `${name}_run`)}`,
  ]);
  await expect(createEngines(config, needs)).rejects.toThrow(/server/);
  return readFileSync(said, 'utf8');
}

// The config.json of the model says that the head is the embedding, and a server believes it.
test('a server of our own starts with the head that the files have', async () => {
  const [embedding, ...others] = modelTensors() as [NamedTensor, ...NamedTensor[]];
  const head = { ...embedding, name: 'lm_head.weight', data: embedding.data.map((x) => -x) };
  const model = await writeModel(path.join(scratch, 'own_head'), { tensors: [embedding, ...others, head] });
  expect(await startedWith(model, 'tie_word_embeddings', 'head')).toBe('false');
}, 60_000);

// One that starts with packed experts has no place for those that are trained.
test('a server of our own starts with bfloat16 where the files have MXFP4', async () => {
  const model = path.join(CONFORMANCE, '..', 'mxfp4', 'actor');
  expect(await startedWith(model, 'quantization_config', 'mxfp4')).toBe('undefined');
}, 60_000);

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
    ...LENGTHS,
    `actor_rollout_ref.model.path=${MODEL}`,
    'algorithm.adv_estimator=grpo',
    'actor_rollout_ref.rollout.mode=server',
    'actor_rollout_ref.rollout.name=sglang',
    `actor_rollout_ref.rollout.server.addresses=[${JSON.stringify(server.url)}]`,
    `actor_rollout_ref.rollout.server.weights_dir=${weights}`,
  ]);
  const said: string[] = [];
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
