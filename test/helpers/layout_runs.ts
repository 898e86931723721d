import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { raggedBatch, SHARDED_CRITIC, SHARDED_MODEL, smallEngine } from './sharded';

// What a model does on workers that share it by some layout, to be held against what it does on one: the same batch, the same verbs.

export const batch = raggedBatch(12, 5);
export const update = { miniBatchSize: batch.size / 2, loss: { entropyCoeff: 0.01 } };

export type Layout = Partial<EngineOptions> & { group: WorkerGroup };
export type Groups = Record<'one' | 'two' | 'four', WorkerGroup>;

/** Workers and a folder for a file of tests, gone after its last one. Filled before the first. */
export function layoutWorkers(): { groups: Groups; scratch: string } {
  const own = { groups: {} as Groups, scratch: mkdtempSync(path.join(tmpdir(), 'troupe-layouts-')) };
  beforeAll(async () => {
    const launch = (worldSize: number) => WorkerGroup.launch({ worldSize, device: 'cpu', numThreads: 1 });
    Object.assign(own.groups, { one: await launch(1), two: await launch(2), four: await launch(4) });
  });
  afterAll(async () => {
    for (const group of Object.values(own.groups)) await group.close();
    rmSync(own.scratch, { recursive: true, force: true });
  });
  return own;
}

export async function withActor<T>(o: Layout, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({ model: SHARDED_MODEL, ...smallEngine, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

/** Values before three updates of a critic, and after them. */
export async function criticRun(o: Layout): Promise<{ before: Float32Array; after: Float32Array }> {
  const critic = await Critic.create({ model: SHARDED_CRITIC, ...smallEngine, ...o });
  try {
    const { values } = await critic.computeValues(batch);
    for (let i = 0; i < 3; i++) await critic.updateCritic(batch, { miniBatchSize: batch.size / 2 });
    return { before: values, after: (await critic.computeValues(batch)).values };
  } finally {
    await critic.close();
  }
}

export function worst(a: Float32Array, b: Float32Array): number {
  expect(a.length).toBe(b.length);
  return a.reduce((most, x, i) => Math.max(most, Math.abs(x - (b[i] as number))), 0);
}

/** Of all updates within 2e-5, but for times. */
export function expectCloseMetrics(actual: readonly object[], expected: readonly object[]): void {
  for (const [step, record] of expected.entries()) {
    for (const [name, value] of Object.entries(record) as [string, number][]) {
      if (name.startsWith('perf/')) continue;
      const own = (actual[step] as Record<string, number>)[name] as number;
      expect([name, Math.abs(own - value) / Math.max(1, Math.abs(value)) <= 2e-5]).toEqual([name, true]);
    }
  }
}

/**
 * A checkpoint of each pair's first layout, loaded under its second, has the losses of the first in the next two updates within 1e-6.
 * `own`: what is trained on. Default pairs: every layout to every other one.
 */
export async function expectContinued<Name extends string>(
  scratch: string,
  layouts: Record<Name, Layout>,
  pairs: readonly (readonly [from: Name, to: Name])[] = everyPair(Object.keys(layouts) as Name[]),
  own = batch,
): Promise<void> {
  const step = async (actor: Actor) => {
    const metrics = await actor.updatePolicy(own, { ...update, miniBatchSize: own.size / 2 });
    return metrics['actor/loss'] as number;
  };
  const next = async (actor: Actor) => [await step(actor), await step(actor)];
  const expected = new Map<Name, number[]>();
  for (const name of Object.keys(layouts) as Name[]) {
    const losses = await withActor(layouts[name], async (actor) => {
      await step(actor);
      await actor.saveCheckpoint(path.join(scratch, name));
      return next(actor);
    });
    expected.set(name, losses);
  }
  for (const [from, to] of pairs) {
    const losses = await withActor(layouts[to], async (actor) => {
      await actor.loadCheckpoint(path.join(scratch, from));
      return next(actor);
    });
    const apart = losses.map((loss, i) => Math.abs(loss - ((expected.get(from) as number[])[i] as number)));
    expect([from, to, apart.filter((error) => !(error < 1e-6))]).toEqual([from, to, []]);
  }
}

const everyPair = <Name>(names: readonly Name[]): [Name, Name][] =>
  names.flatMap((from) => names.filter((to) => to !== from).map((to): [Name, Name] => [from, to]));
