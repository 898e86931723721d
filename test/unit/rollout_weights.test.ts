import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Actor } from '../../ts/actor/actor';
import { RolloutWeights } from '../../ts/trainer/rollout_weights';
import { ServerRollout } from '../../ts/trainer/server_rollout';
import { runConfig } from './fake_run';

const actor = {
  saveModel: async (directory: string): Promise<void> => {
    mkdirSync(directory);
    writeFileSync(join(directory, 'config.json'), '{}');
  },
};

/** What a run that was killed at version 57, while it wrote 58, has left, beside something of another's. */
function left(): string {
  const directory = mkdtempSync(join(tmpdir(), 'rollout-weights-'));
  for (const name of ['version_57', '.incomplete_version_58_0a1b2c', 'notes']) {
    mkdirSync(join(directory, name));
    writeFileSync(join(directory, name, 'model.safetensors'), 'x');
  }
  return directory;
}

const weightsIn = (directory: string, owned: boolean): { weights: RolloutWeights; said: string[] } => {
  const said: string[] = [];
  const say = (line: string): void => void said.push(line);
  return { weights: new RolloutWeights(actor, directory, { owned, untied: false }, say), said };
};

test('what a killed run has left in the directory of the run goes when the next one starts', async () => {
  const directory = left();
  const { weights, said } = weightsIn(directory, true);
  weights.clear();
  expect(readdirSync(directory)).toEqual(['notes']);
  weights.keepOnly(await weights.write(3));
  expect(readdirSync(directory)).toEqual(['notes', 'version_3']);
  weights.remove();
  expect(readdirSync(directory)).toEqual(['notes']);
  expect(said).toEqual([]);
});

test('in a directory that others may use nothing goes but its own', async () => {
  const directory = left();
  const before = readdirSync(directory);
  const { weights } = weightsIn(directory, false);
  weights.clear();
  const first = await weights.write(1);
  weights.keepOnly(await weights.write(2));
  expect(existsSync(first)).toBe(false);
  expect(readdirSync(directory)).toEqual([...before, 'version_2'].sort());
  weights.remove();
  expect(readdirSync(directory)).toEqual(before);
});

test('there is nothing to clear before the first run', async () => {
  const directory = join(mkdtempSync(join(tmpdir(), 'rollout-weights-')), 'rollout_weights');
  const { weights, said } = weightsIn(directory, true);
  weights.clear();
  await weights.write(0);
  weights.remove();
  expect([existsSync(directory), said]).toEqual([false, []]);
});

test.each([
  [true, ['notes']],
  [false, ['.incomplete_version_58_0a1b2c', 'notes', 'version_57']],
])('a start, in the directory of the run (%s), with servers that do not answer', async (owned, stays) => {
  const [run, directory] = [mkdtempSync(join(tmpdir(), 'run-')), left()];
  const own = join(run, 'rollout_weights');
  if (owned) renameSync(directory, own);
  const config = runConfig(run, [
    'actor_rollout_ref.rollout.name=vllm',
    'actor_rollout_ref.rollout.mode=server',
    'actor_rollout_ref.rollout.server.addresses=[http://127.0.0.1:9]',
    'actor_rollout_ref.rollout.server.recovery_timeout=0.2',
    ...(owned ? [] : [`actor_rollout_ref.rollout.server.weights_dir=${directory}`]),
  ]);
  const model = {
    config: { vocabSize: 8, maxPositions: 16, tiedEmbeddings: false },
    ownHead: false,
    stored: new Map(),
  };
  const fake = { ...actor, engine: { model }, eosTokenIds: [0] } as unknown as Actor;
  const start = ServerRollout.start(config, fake, { dtype: 'float32', device: 'cpu' }, () => undefined);
  await expect(start).rejects.toMatchObject({ code: 'COMM' });
  expect(readdirSync(owned ? own : directory)).toEqual(stays);
});
