import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import type { EngineOptions } from '../../ts/engine/engine_options';
import type { Sharding } from '../../ts/native/bridge';
import { batchOf, CONFORMANCE } from '../helpers/conformance';
import { languageModel } from '../helpers/language_model';
import { floats, maxDifference, readSafetensors, type TestTensor } from '../helpers/safetensors';

// Adapters trained, saved, loaded, merged and spread over workers.
const MODELS = path.join(CONFORMANCE, 'models');
const VOCABULARY = 160;
const model = path.join(MODELS, 'qwen3_headdim', 'actor');
const criticModel = path.join(MODELS, 'qwen3_headdim', 'critic');

let group: WorkerGroup;
let scratch: string;
beforeAll(async () => {
  group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
  scratch = mkdtempSync(path.join(tmpdir(), 'troupe-lora-'));
});
afterAll(async () => {
  await group.close();
  rmSync(scratch, { recursive: true, force: true });
});

const small: Partial<EngineOptions> = {
  maxTokensPerMicroBatch: 64,
  numThreads: 1,
  optim: { lr: 1e-2 },
  lora: { rank: 4, alpha: 8 },
};

function batch(): Batch {
  const ids = (n: number, from: number) =>
    Array.from({ length: n }, (_, i) => 1 + ((from * 37 + i * i * 11) % (VOCABULARY - 1)));
  const prompts = Array.from({ length: 6 }, (_, i) => ids(1 + (i % 4), i));
  const responses = Array.from({ length: 6 }, (_, i) => ids(3 + ((i * 5) % 11), i + 50));
  const tokens = responses.flat().length;
  const column = (phase: number) =>
    Float32Array.from({ length: tokens }, (_, t) => Math.sin(phase + 1.3 * t));
  return Batch.fromSequences(prompts, responses).with({
    oldLogProbs: column(0).map((x) => x - 5),
    advantages: column(1),
    values: column(2),
    returns: column(3),
  });
}

async function withRole<R extends { close(): Promise<void> }, T>(
  role: Promise<R>,
  body: (role: R) => Promise<T>,
): Promise<T> {
  const open = await role;
  try {
    return await body(open);
  } finally {
    await open.close();
  }
}
const withActor = <T>(o: Partial<EngineOptions>, body: (actor: Actor) => Promise<T>): Promise<T> =>
  withRole(Actor.create({ model, ...small, ...(o.worldSize ? {} : { group }), ...o }), body);
const withCritic = <T>(o: Partial<EngineOptions>, body: (critic: Critic) => Promise<T>): Promise<T> =>
  withRole(Critic.create({ model: criticModel, ...small, group, ...o }), body);

/** Of one file, or of all shards. */
const weightsOf = (dir: string): Record<string, TestTensor> =>
  Object.assign(
    {},
    ...readdirSync(dir)
      .filter((file) => file.endsWith('.safetensors'))
      .map((file) => readSafetensors(path.join(dir, file))),
  );
const adapterOf = (dir: string): Record<string, TestTensor> =>
  readSafetensors(path.join(dir, 'adapter_model.safetensors'));

describe.each(readdirSync(MODELS))('%s', (name) => {
  const dir = path.join(MODELS, name);
  const data = batchOf(readSafetensors(path.join(dir, 'batch.safetensors'))).batch;
  const prompts = Array.from({ length: data.size }, (_, i) => data.prompt(i));
  const learn = data.with({
    oldLogProbs: new Float32Array(data.numResponseTokens).fill(-5),
    advantages: Float32Array.from({ length: data.numResponseTokens }, (_, t) => Math.sin(t)),
  });
  const greedy = { maxNewTokens: 12, temperature: 0, stopTokenIds: [] };

  test('the merged model generates and scores as the adapter does; the reference is the base model', async () => {
    const merged = path.join(scratch, `merged_${name}`);
    const base = await withActor({ model: path.join(dir, 'actor'), lora: undefined, optim: null }, (actor) =>
      actor.computeLogProb(data),
    );
    const adapted = await withActor({ model: path.join(dir, 'actor') }, async (actor) => {
      // B is zero: the first log-probs are those of the base model, to the bit.
      expect((await actor.computeLogProb(data)).logProbs).toEqual(base.logProbs);
      for (let i = 0; i < 3; i++) await actor.updatePolicy(learn);
      const { logProbs } = await actor.computeLogProb(data);
      expect(maxDifference(logProbs, base.logProbs)).toBeGreaterThan(1e-2);
      const reference = await actor.computeLogProb(data, { disableAdapter: true });
      expect(reference.logProbs).toEqual(base.logProbs);
      await actor.saveModel(merged);
      return { logProbs, generated: await actor.generate(prompts, greedy) };
    });
    await withActor({ model: merged, lora: undefined, optim: null }, async (actor) => {
      const { logProbs } = await actor.computeLogProb(data);
      expect(maxDifference(logProbs, adapted.logProbs)).toBeLessThan(2e-4);
      const generated = await actor.generate(prompts, greedy);
      expect(generated.get('tokens')).toEqual(adapted.generated.get('tokens'));
    });
    const before = languageModel(weightsOf(path.join(dir, 'actor')));
    const after = weightsOf(merged);
    expect(Object.keys(after).sort()).toEqual(Object.keys(before).sort());
    const changed = Object.keys(before).filter(
      (key) => maxDifference(floats(before, key), floats(after, key)) > 0,
    );
    expect(
      changed.every((key) =>
        /_proj|_linear|shared_expert_gate|per_layer_input_gate|c_attn|c_proj|c_fc|\.w[123]\./.test(key),
      ),
    ).toBe(true);
    expect(changed.length).toBeGreaterThan(0);
  });
});

test('what is frozen stays as it is and takes no memory', async () => {
  const bytes = (actor: Actor) => group.callAll(actor.name, 'stateBytes', () => []);
  const [dense] = await withActor({ lora: undefined }, bytes);
  await withActor({}, async (actor) => {
    const [state] = await bytes(actor);
    const trained = (actor.engine.lora?.mapping ?? []).reduce(
      (sum, { shape }) => sum + 4 * shape.reduce((a, b) => a * b, 1),
      0,
    );
    // Each parameter is padded to a cache line.
    const padding = 64 * (actor.engine.lora?.mapping.length ?? 0);
    expect(state?.gradients).toBeGreaterThanOrEqual(trained);
    expect(state?.gradients).toBeLessThan(trained + padding);
    expect(state?.moments).toBe(2 * (state?.gradients as number));
    expect(state?.gradients).toBeLessThan(0.25 * (dense?.gradients as number));
    await actor.updatePolicy(batch());
    const stored = weightsOf(model);
    for (const { hf, param, row, rows, shape } of actor.engine.model.mapping) {
      const [whole] = await group.callAll(actor.name, 'getTensor', () => ['param', param]);
      const width = shape.length === 2 ? (shape[1] as number) : 1;
      expect((whole as Float32Array).subarray(row * width, (row + rows) * width)).toEqual(floats(stored, hf));
    }
    await expect(
      group.callAll(actor.name, 'getTensor', () => ['grad', 'layers.0.attn.qkv.weight']),
    ).rejects.toThrow(/layers\.0 are frozen/);
  });
});

test('a checkpoint of the adapter continues to the bit and holds no base weights', async () => {
  const at = path.join(scratch, 'checkpoint');
  const straight = await withActor({}, async (actor) => {
    await actor.updatePolicy(batch());
    await actor.saveCheckpoint(at);
    const metrics = await actor.updatePolicy(batch());
    return { norm: metrics['actor/grad_norm'], after: (await actor.computeLogProb(batch())).logProbs };
  });
  expect(readdirSync(at).sort()).toEqual(['engine.json', 'lora_adapter', 'optimizer']);
  expect(readdirSync(path.join(at, 'lora_adapter')).sort()).toEqual([
    'adapter_config.json',
    'adapter_model.safetensors',
  ]);
  await withActor({ seed: 5 }, async (actor) => {
    await actor.loadCheckpoint(at);
    const metrics = await actor.updatePolicy(batch());
    expect(metrics['actor/grad_norm']).toBe(straight.norm);
    expect((await actor.computeLogProb(batch())).logProbs).toEqual(straight.after);
  });
  await withActor({ lora: undefined }, async (actor) => {
    await expect(actor.loadCheckpoint(at)).rejects.toThrow(
      /holds adapters, but the actor trains full weights: create it with .*actor_rollout_ref\.model\.lora_rank, of troupe sft model\.lora_rank/,
    );
  });
  await withActor({ lora: { rank: 2 } }, async (actor) => {
    await expect(actor.loadCheckpoint(at)).rejects.toThrow(/expected an adapter of rank 2 and alpha 16/);
  });
});

test('a saved adapter starts another run, bitwise', async () => {
  const first = path.join(scratch, 'first');
  const second = path.join(scratch, 'second');
  const lora = {
    rank: 3,
    alpha: 5,
    targetModules: ['q_proj', 'down_proj'],
    excludeModules: ['layers.1.mlp.down_proj'],
  };
  const logProbs = await withActor({ lora }, async (actor) => {
    await actor.updatePolicy(batch());
    await actor.saveAdapter(first);
    return (await actor.computeLogProb(batch())).logProbs;
  });
  const names = Object.keys(adapterOf(first)).filter((key) => key.includes('lora_A'));
  expect(names.some((key) => key.includes('layers.0.mlp.down_proj'))).toBe(true);
  expect(names.some((key) => key.includes('layers.1.mlp.down_proj'))).toBe(false);
  await withActor({ lora: { adapter: first } }, async (actor) => {
    expect((await actor.computeLogProb(batch())).logProbs).toEqual(logProbs);
    await actor.saveAdapter(second);
  });
  expect(adapterOf(second)).toEqual(adapterOf(first));
});

test('a critic trains adapters and its head', async () => {
  const at = path.join(scratch, 'critic');
  const merged = path.join(scratch, 'critic_merged');
  const straight = await withCritic({}, async (critic) => {
    await critic.updateCritic(batch());
    await critic.saveCheckpoint(at);
    await critic.saveModel(merged);
    const { values } = await critic.computeValues(batch());
    await critic.updateCritic(batch());
    return { values, after: (await critic.computeValues(batch())).values };
  });
  const adapter = adapterOf(path.join(at, 'lora_adapter'));
  expect(adapter['base_model.model.score.weight']?.shape).toEqual([1, 48]);
  const trained = floats(adapter, 'base_model.model.score.weight');
  expect(trained).not.toEqual(floats(weightsOf(criticModel), 'score.weight'));
  await withCritic({}, async (critic) => {
    await critic.loadCheckpoint(at);
    expect((await critic.computeValues(batch())).values).toEqual(straight.values);
    await critic.updateCritic(batch());
    expect((await critic.computeValues(batch())).values).toEqual(straight.after);
  });
  await withCritic({ model: merged, lora: undefined, optim: null }, async (critic) => {
    const { values } = await critic.computeValues(batch());
    expect(maxDifference(values, straight.values)).toBeLessThan(1e-4);
  });
  await withCritic({ lora: { adapter: path.join(at, 'lora_adapter') } }, async (critic) => {
    expect((await critic.computeValues(batch())).values).toEqual(straight.values);
  });
});

describe('over several workers', () => {
  const UPDATES = 5;
  const learning = { optim: { lr: 1e-3 } };
  interface Run {
    before: Float32Array;
    reference: Float32Array;
    after: Float32Array;
    gradients: Map<string, Float32Array>;
    norms: number[];
    /** Of the checkpoint, and of the merged model. */
    adapter: Record<string, TestTensor>;
    merged: Record<string, TestTensor>;
    generated: Batch;
  }
  const at = (name: string) => path.join(scratch, `workers_${name}`);

  async function train(actor: Actor, name: string): Promise<Run> {
    const before = (await actor.computeLogProb(batch())).logProbs;
    const norms: number[] = [];
    const gradients = new Map<string, Float32Array>();
    for (let i = 0; i < UPDATES; i++) {
      const o = i === 0 ? {} : { miniBatchSize: 3 };
      norms.push((await actor.updatePolicy(batch(), o))['actor/grad_norm'] as number);
      if (i > 0) continue;
      for (const { param } of actor.engine.lora?.mapping ?? []) {
        const byRank = await actor.engine.group.callAll(actor.name, 'getTensor', () => ['grad', param]);
        gradients.set(param, byRank[0] as Float32Array);
        for (const other of byRank) expect(other).toEqual(byRank[0]);
      }
    }
    const reference = (await actor.computeLogProb(batch(), { disableAdapter: true })).logProbs;
    await actor.saveCheckpoint(at(name));
    await actor.saveModel(at(`${name}_merged`));
    return {
      before,
      reference,
      after: (await actor.computeLogProb(batch())).logProbs,
      gradients,
      norms,
      adapter: adapterOf(path.join(at(name), 'lora_adapter')),
      merged: weightsOf(at(`${name}_merged`)),
      generated: await actor.generate([[1, 2], [3]], { maxNewTokens: 6, seed: 1 }),
    };
  }

  /** |a - b| / |b| */
  function relative(a: ArrayLike<number>, b: ArrayLike<number>): number {
    expect(a.length).toBe(b.length);
    const sum = (f: (i: number) => number) =>
      Array.from(b).reduce<number>((total, _, i) => total + f(i) ** 2, 0);
    return Math.sqrt(sum((i) => (a[i] as number) - (b[i] as number)) / sum((i) => b[i] as number));
  }

  let one: Run;
  beforeAll(async () => {
    one = await withActor(learning, (actor) => train(actor, 'one'));
  });

  const spreads: [number, Sharding, number?][] = [
    [2, 'full_shard'],
    [3, 'full_shard'],
    [2, 'shard_grad_op'],
    [4, 'shard_grad_op'],
    [3, 'no_shard'],
    [4, 'full_shard', 2],
    [4, 'shard_grad_op', 2],
  ];
  const spread = ([worldSize, sharding, fsdpSize = -1]: (typeof spreads)[number]) => ({
    ...learning,
    worldSize,
    parallel: { sharding, fsdpSize },
  });

  test.each(spreads)('%d with %s have the gradients and updates of one', async (...chosen) => {
    const name = chosen.join('_');
    const several = await withActor(spread(chosen), (actor) => train(actor, name));
    expect(several.before).toEqual(one.before);
    expect(several.reference).toEqual(one.before);
    const keys = [...one.gradients.keys()];
    const all = (run: Run) => keys.flatMap((key) => [...(run.gradients.get(key) as Float32Array)]);
    expect(relative(all(several), all(one))).toBeLessThan(1e-6);
    expect(relative(several.norms, one.norms)).toBeLessThan(2e-6);
    for (const tensors of ['adapter', 'merged'] as const) {
      expect(Object.keys(several[tensors]).sort()).toEqual(Object.keys(one[tensors]).sort());
      const whole = (run: Run) => Object.keys(one[tensors]).flatMap((key) => [...floats(run[tensors], key)]);
      expect(relative(whole(several), whole(one))).toBeLessThan(1e-6);
    }
    expect(several.generated.get('tokens')).toEqual(one.generated.get('tokens'));
  });

  test('what four saved, others load and go on with', async () => {
    const saved = at('4_shard_grad_op');
    const goOn = async (actor: Actor, again: string) => {
      await actor.loadCheckpoint(saved);
      await actor.saveCheckpoint(at(again));
      const { logProbs } = await actor.computeLogProb(batch());
      return { logProbs, norm: (await actor.updatePolicy(batch()))['actor/grad_norm'] as number };
    };
    const alone = await withActor(learning, (actor) => goOn(actor, 'again_1'));
    for (const chosen of [spreads[6], spreads[4], spreads[0]] as (typeof spreads)[number][]) {
      const again = `again_${chosen.join('_')}`;
      const { logProbs, norm } = await withActor(spread(chosen), (actor) => goOn(actor, again));
      expect(logProbs).toEqual(alone.logProbs); // bitwise
      expect(Math.abs(norm / alone.norm - 1)).toBeLessThan(1e-6);
      // Adapters and moments to the bit, whoever held them.
      for (const file of ['lora_adapter/adapter_model', 'optimizer/exp_avg', 'optimizer/exp_avg_sq'])
        expect(readSafetensors(path.join(at(again), `${file}.safetensors`))).toEqual(
          readSafetensors(path.join(saved, `${file}.safetensors`)),
        );
    }
  });
});
