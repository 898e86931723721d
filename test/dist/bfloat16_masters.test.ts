import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Actor } from '../../ts/actor/actor';
import { Critic } from '../../ts/critic/critic';
import type { EngineOptions } from '../../ts/engine/engine_options';
import type { NativeStateBytes } from '../../ts/native/bridge';
import { raggedBatch, SHARDED_CRITIC, smallEngine, withActor } from '../helpers/sharded';

// Weights and moments that are kept in bfloat16, from the option to the files.
const batch = raggedBatch(8, 6);
const narrow = { masterDtype: 'bfloat16', optim: { lr: 1e-3 } } as const;

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-masters-'));
});
afterEach(() => {
  rmSync(dir, { recursive: true });
});

/** Log-probs after so many updates, each of two steps. */
async function trained(actor: Actor, updates: number): Promise<Float32Array> {
  for (let i = 0; i < updates; ++i) await actor.updatePolicy(batch, { miniBatchSize: 4 });
  return (await actor.computeLogProb(batch)).logProbs;
}

async function weightsOf(actor: Actor): Promise<Float32Array> {
  const values: number[] = [];
  for await (const { parts } of actor.exportWeights({ dtype: 'float32' })) {
    for (const { data } of parts)
      values.push(...new Float32Array(data.buffer, data.byteOffset, data.length / 4));
  }
  return Float32Array.from(values);
}

const bytesOf = async (actor: Actor): Promise<NativeStateBytes> =>
  (await actor.engine.group.callAll(actor.name, 'stateBytes', () => []))[0] as NativeStateBytes;

test('a run that is resumed has the bits of one that is not, on one worker and on two', async () => {
  for (const worldSize of [1, 2]) {
    const at = path.join(dir, `${worldSize}`);
    const straight = await withActor({ ...narrow, worldSize }, async (actor) => {
      await trained(actor, 2);
      await actor.saveCheckpoint(at);
      return trained(actor, 2);
    });
    const [found, resumed] = await withActor({ ...narrow, worldSize }, async (actor) => {
      await actor.loadCheckpoint(at);
      return [await trained(actor, 0), await trained(actor, 2)];
    });
    expect(resumed).toEqual(straight);
    expect(resumed).not.toEqual(found);
    // A run with float32 masters goes on from the same weights.
    const wide = await withActor({ dtype: 'bfloat16', worldSize }, async (actor) => {
      await actor.loadCheckpoint(at);
      return trained(actor, 0);
    });
    expect(wide).toEqual(found);
  }
});

test('weights are bfloat16 after every update, moments too, and take 10 bytes each', async () => {
  const [weights, bytes] = await withActor(narrow, async (actor) => {
    await trained(actor, 2);
    return [await weightsOf(actor), await bytesOf(actor)];
  });
  const bits = new Uint32Array(weights.buffer);
  expect(bits.length).toBeGreaterThan(1000);
  expect(bits.every((b) => (b & 0xffff) === 0)).toBe(true);
  const wide = await withActor({ dtype: 'bfloat16' }, bytesOf);
  expect([bytes.parameters * 3, bytes.gradients, bytes.moments * 2]).toEqual([
    wide.parameters,
    wide.gradients,
    wide.moments,
  ]);
});

test('state on the host between its uses changes no bit', async () => {
  const plain = await withActor(narrow, (actor) => trained(actor, 2));
  const offload = { params: true, grads: true, optimizer: true };
  expect(await withActor({ ...narrow, offload }, (actor) => trained(actor, 2))).toEqual(plain);
});

test('with adapters what is trained is float32 all the same', async () => {
  const lora = { rank: 4, alpha: 8 };
  const wide = { dtype: 'bfloat16', optim: { lr: 1e-3 }, lora } as const;
  const actors = [wide, { ...narrow, lora }].map((o) => withActor(o, (actor) => trained(actor, 2)));
  const [one, other] = await Promise.all(actors);
  expect(other).toEqual(one);
  // The value head of a critic, too.
  const critics = [wide, { ...narrow, lora }].map(async (o) => {
    const critic = await Critic.create({ ...smallEngine, model: SHARDED_CRITIC, ...o });
    try {
      await critic.updateCritic(batch);
      return await critic.computeValues(batch);
    } finally {
      await critic.close();
    }
  });
  const [values, others] = await Promise.all(critics);
  expect(others).toEqual(values);
});

test('what is computed in float32, and ranks that share matrices, have float32 masters', async () => {
  const create = (o: Partial<EngineOptions>) => withActor({ ...narrow, ...o }, async () => {});
  await expect(create({ dtype: 'float32' })).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: expect.stringContaining(
      'masterDtype: expected strategy fsdp and dtype bfloat16 beside bfloat16, got fsdp and float32',
    ),
  });
  await expect(create({ strategy: 'megatron', worldSize: 2, parallel: { tp: 2 } })).rejects.toThrow(
    'got megatron and bfloat16',
  );
});
