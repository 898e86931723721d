import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { CheckpointStore } from '../../ts/run/checkpoint_store';
import { raggedBatch, SHARDED_CRITIC, SHARDED_MODEL, smallEngine } from '../helpers/sharded';

// What several workers saved, exported as a plain Hugging Face directory by the program itself.
const ROOT = path.resolve(__dirname, '../..');
const batch = raggedBatch(6, 3);

let one: WorkerGroup;
let three: WorkerGroup;
let scratch: string;
beforeAll(async () => {
  one = await WorkerGroup.launch({ worldSize: 1, device: 'cpu', numThreads: 1 });
  three = await WorkerGroup.launch({ worldSize: 3, device: 'cpu' });
  scratch = mkdtempSync(path.join(tmpdir(), 'troupe-export-'));
});
afterAll(async () => {
  await Promise.all([one.close(), three.close()]);
  rmSync(scratch, { recursive: true, force: true });
});

const at = (...parts: string[]) => path.join(scratch, ...parts);

function troupe(...args: string[]) {
  const run = spawnSync(process.execPath, [path.join(ROOT, 'dist', 'cli.js'), 'export', ...args], {
    encoding: 'utf8',
  });
  return { code: run.status, stdout: run.stdout, stderr: run.stderr };
}

async function withActor<T>(o: Partial<EngineOptions>, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({ ...smallEngine, model: SHARDED_MODEL, group: one, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

const logProbs = async (actor: Actor) => (await actor.computeLogProb(batch)).logProbs;

function expectSameFiles(a: string, b: string): void {
  expect(readdirSync(a)).toEqual(readdirSync(b));
  for (const file of readdirSync(a))
    expect(Buffer.compare(readFileSync(path.join(a, file)), readFileSync(path.join(b, file)))).toBe(0);
}

test('a run of actor and critic over three workers', async () => {
  const store = new CheckpointStore<object>(at('run'));
  const expected = await withActor({ group: three }, async (actor) => {
    const critic = await Critic.create({ ...smallEngine, model: SHARDED_CRITIC, group: three });
    for (const step of [1, 2]) {
      await actor.updatePolicy(batch);
      await critic.updateCritic(batch);
      await store.save(step, {}, async (temporary) => {
        await actor.saveCheckpoint(path.join(temporary, 'actor'));
        await critic.saveCheckpoint(path.join(temporary, 'critic'));
      });
    }
    await actor.saveModel(at('bfloat16'), { dtype: 'bfloat16' });
    const { values } = await critic.computeValues(batch);
    await critic.close();
    return { logProbs: await logProbs(actor), values };
  });

  expect(troupe(at('run'), at('actor'))).toEqual({
    code: 0,
    stdout: expect.stringMatching(/actor: actor from .*global_step_2\/actor, 2\d\d\.\d\d KiB in 1 file\n/),
    stderr: '',
  });
  expect(readdirSync(at('actor')).sort()).toEqual(['config.json', 'model.safetensors']);
  await withActor({ model: at('actor'), optim: null }, async (actor) => {
    expect(await logProbs(actor)).toEqual(expected.logProbs);
  });
  expect(troupe(at('run'), at('again'), '--dtype', 'bfloat16').code).toBe(0);
  expectSameFiles(at('again'), at('bfloat16'));

  expect(troupe(at('run', 'global_step_2'), at('critic'), '--role', 'critic').code).toBe(0);
  const critic = await Critic.create({ model: at('critic'), optim: null, group: one });
  expect((await critic.computeValues(batch)).values).toEqual(expected.values);
  await critic.close();

  const before = readdirSync(scratch);
  const refused = troupe(at('run'), at('actor'));
  expect(refused.code).toBe(1);
  expect(refused.stderr).toMatch(/^troupe: error \(IO\): \[export\] .*actor exists already/);
  expect(readdirSync(scratch)).toEqual(before);
});

test('adapters: alone, or merged as the engine itself merges them', async () => {
  const lora = { rank: 4, alpha: 8 };
  await withActor({ group: three, lora, optim: { lr: 1e-2 } }, async (actor) => {
    await actor.updatePolicy(batch);
    await actor.saveCheckpoint(at('lora'));
    await actor.saveAdapter(at('adapter'));
    await actor.saveModel(at('merged'), { dtype: 'float32' });
  });
  expect(troupe(at('lora'), at('lora_adapter')).stdout).toMatch(
    /adapter of the actor \(--merge-lora: the whole model\)/,
  );
  expectSameFiles(at('lora_adapter'), at('adapter'));
  const dtype = ['--dtype', 'float32'];
  expect(troupe(at('lora'), at('lora_merged'), '--merge-lora', ...dtype)).toMatchObject({
    code: 0,
    stderr: '',
  });
  expectSameFiles(at('lora_merged'), at('merged'));

  const critic = await Critic.create({ ...smallEngine, model: SHARDED_CRITIC, group: three, lora });
  await critic.updateCritic(batch);
  await critic.saveCheckpoint(at('lora_critic'));
  await critic.saveModel(at('merged_critic'));
  await critic.close();
  expect(troupe(at('lora_critic'), at('exported_critic'), '--merge-lora').code).toBe(0);
  expectSameFiles(at('exported_critic'), at('merged_critic'));

  const elsewhere = troupe(at('adapter'), at('never'), '--merge-lora', '--base', at('missing'));
  expect(elsewhere.stderr).toMatch(/missing is not a directory/);
  expect(readdirSync(scratch)).not.toContain('never');
});
