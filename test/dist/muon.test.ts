import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Actor } from '../../ts/actor/actor';
import type { EngineOptions } from '../../ts/engine/engine_options';
import type { NativeStateBytes } from '../../ts/native/bridge';
import { readSafetensors } from '../helpers/safetensors';
import { raggedBatch, withActor } from '../helpers/sharded';

// What is kept of Muon between steps, in files and in memory. Its steps: test/conformance/muon.test.ts.
const batch = raggedBatch(8, 6);
const learning = { optim: { lr: 1e-3, muon: { dtype: 'float32' } } } as const;
const LAYOUTS: [string, Partial<EngineOptions>][] = [
  ['one worker', {}],
  ['two shards', { worldSize: 2 }],
  ['three shards', { worldSize: 3, parallel: { sharding: 'shard_grad_op' } }],
  ['tp 2', { worldSize: 2, parallel: { tp: 2 } }],
  ['pp 2', { worldSize: 2, parallel: { pp: 2 } }],
];

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-muon-'));
});
afterAll(() => {
  rmSync(dir, { recursive: true });
});

async function trained(actor: Actor, updates: number): Promise<Float32Array> {
  for (let i = 0; i < updates; ++i) await actor.updatePolicy(batch, { miniBatchSize: 4 });
  return (await actor.computeLogProb(batch)).logProbs;
}

const moments = (saved: string, name: string) =>
  readSafetensors(path.join(saved, 'optimizer', `${name}.safetensors`));
const largest = (a: Float32Array, b: Float32Array): number =>
  a.reduce((most, value, i) => Math.max(most, Math.abs(value - (b[i] as number))), 0);

describe.each(LAYOUTS)('what %s saved', (name, layout) => {
  const saved = (): string => path.join(dir, name);
  let straight: Float32Array;
  beforeAll(async () => {
    straight = await withActor({ ...learning, ...layout }, async (actor) => {
      await trained(actor, 2);
      await actor.saveCheckpoint(saved());
      return trained(actor, 2);
    });
  });

  test('has second moments of embeddings and norms alone', () => {
    const first = Object.keys(moments(saved(), 'exp_avg'));
    const second = Object.entries(moments(saved(), 'exp_avg_sq'));
    const matrices = first.filter((tensor) => tensor.includes('_proj'));
    expect(matrices.length).toBeGreaterThan(10);
    expect(second.map(([tensor]) => tensor).sort()).toEqual(
      first.filter((tensor) => !matrices.includes(tensor)).sort(),
    );
    for (const [, { data }] of second)
      expect(Array.from(data as Float32Array).some((value) => value > 0)).toBe(true);
  });

  test('goes on to the bit where it was, and elsewhere to rounding', async () => {
    for (const [other, spread] of LAYOUTS) {
      const again = path.join(dir, `${name} ${other}`);
      const resumed = await withActor({ ...learning, ...spread }, async (actor) => {
        await actor.loadCheckpoint(saved());
        await actor.saveCheckpoint(again);
        return trained(actor, 2);
      });
      for (const kind of ['exp_avg', 'exp_avg_sq'])
        expect(moments(again, kind)).toEqual(moments(saved(), kind));
      if (other === name) expect(resumed).toEqual(straight);
      else expect(largest(resumed, straight)).toBeLessThan(2e-5);
    }
  });
});

test('moments of another optimiser are refused', async () => {
  const ofMuon = path.join(dir, 'one worker');
  const ofAdamw = path.join(dir, 'adamw');
  await withActor({ optim: { lr: 1e-3 } }, async (actor) => {
    await actor.saveCheckpoint(ofAdamw);
    await expect(actor.loadCheckpoint(ofMuon)).rejects.toThrow(
      /holds moments of Muon, and the actor learns by AdamW: create it with the option optim\.muon \(optim\.optimizer: muon\)/,
    );
  });
  await withActor(learning, (actor) =>
    expect(actor.loadCheckpoint(ofAdamw)).rejects.toThrow(
      /holds moments of AdamW, and the actor learns by Muon: create it without the option optim\.muon \(optim\.optimizer: AdamW\)/,
    ),
  );
});

test('adapters, all of which are matrices', async () => {
  const options = { ...learning, lora: { rank: 4, alpha: 8 } };
  const saved = path.join(dir, 'adapters');
  const straight = await withActor(options, async (actor) => {
    await trained(actor, 2);
    await actor.saveCheckpoint(saved);
    return trained(actor, 2);
  });
  expect(moments(saved, 'exp_avg_sq')).toEqual({});
  const resumed = await withActor(options, async (actor) => {
    await actor.loadCheckpoint(saved);
    return trained(actor, 2);
  });
  expect(resumed).toEqual(straight);
});

test('weights of linear layers take 4 bytes of moments, all else 8', async () => {
  const bytesOf = async (actor: Actor): Promise<number> =>
    ((await actor.engine.group.callAll(actor.name, 'stateBytes', () => []))[0] as NativeStateBytes).moments;
  const weights = moments(path.join(dir, 'one worker'), 'exp_avg');
  const elements = (matrices: boolean): number =>
    Object.entries(weights)
      .filter(([tensor]) => tensor.includes('_proj') === matrices)
      .reduce((sum, [, { data }]) => sum + data.length, 0);
  const bytes = await withActor(learning, bytesOf);
  const exact = 4 * elements(true) + 8 * elements(false);
  expect(bytes).toBeGreaterThanOrEqual(exact);
  expect(bytes).toBeLessThan(exact + 8 * 16 * Object.keys(weights).length); // parameters begin at cache lines
  expect(await withActor({}, bytesOf)).toBeGreaterThan(1.5 * bytes);
});
