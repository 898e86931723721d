// What a rollout computes with: weights in bfloat16 and of 8 bits, those of a directory, those that come while tokens are made.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { ActorOptions } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { readHeader } from '../../ts/checkpoint/safetensors';
import type { RolloutRequest, RolloutResult } from '../../ts/rollout/request';
import { CODE_PRODUCTS, OWN_BFLOAT16_PRODUCTS } from '../helpers/processor';
import { answers, directory, prompt, requests, tokensOf, withActor } from '../helpers/rollout_actor';

// Products of our own have the same bits in bfloat16, too. Those of LibTorch round a row as its shape has it: 2^-9 of the hidden states in each
// product of a few layers.
const BFLOAT16_BOUND = OWN_BFLOAT16_PRODUCTS ? 0 : 0.05;

test('in bfloat16 log-probs are within a bound of those of computeLogProb', async () => {
  await withActor({ dtype: 'bfloat16' }, async (actor) => {
    const list = requests(24).map((r) => ({ ...r, sampling: { ...r.sampling, temperature: 1 } }));
    const results = await answers(actor, list);
    const batch = Batch.fromSequences(
      list.map(({ promptIds }) => promptIds),
      results.map(({ tokens }) => tokens),
    );
    const { logProbs } = await actor.computeLogProb(batch, { temperature: 1 });
    const off = results
      .flatMap((result) => [...result.logProbs])
      .map((value, i) => Math.abs(value - (logProbs[i] as number)));
    expect(Math.max(...off)).toBeLessThanOrEqual(BFLOAT16_BOUND);
  });
});

/** The int8 weights of a model in float32, from their definition alone, as a directory; where products read codes, its head's too. */
function writeQuantized(source: string): string {
  const target = mkdtempSync(path.join(tmpdir(), 'quantized-'));
  cpSync(source, target, { recursive: true });
  const file = path.join(target, 'model.safetensors');
  const bytes = readFileSync(file);
  for (const { name, shape, offset, bytes: size } of readHeader(file)) {
    if (!name.endsWith('_proj.weight') && !(CODE_PRODUCTS && name === 'lm_head.weight')) continue;
    const values = new Float32Array(
      bytes.buffer.slice(bytes.byteOffset + offset, bytes.byteOffset + offset + size),
    );
    const [rows, columns] = shape as [number, number];
    for (let r = 0; r < rows; r++) {
      const row = values.subarray(r * columns, (r + 1) * columns);
      const scale = Math.fround(row.reduce((most, value) => Math.max(most, Math.abs(value)), 0) / 127);
      row.forEach((value, i) => {
        row[i] = scale * Math.round(Math.fround(value / scale));
      });
    }
    bytes.set(new Uint8Array(values.buffer), offset);
  }
  writeFileSync(file, bytes);
  return target;
}

test('int8 weights are those of their definition, and a directory takes the place of the weights', async () => {
  const list = requests(16);
  const quantized = writeQuantized(directory('llama_gqa'));
  try {
    const inPlace = { model: directory('llama_gqa'), rollout: { quantization: 'int8' } } as const;
    const results = await withActor(inPlace, (actor) => answers(actor, list));
    const batch = Batch.fromSequences(
      list.map(({ promptIds }) => promptIds),
      results.map(({ tokens }) => tokens),
    );
    const temperatures = { temperature: 1 };
    const { logProbs } = await withActor({ model: quantized }, (actor) =>
      actor.computeLogProb(batch, temperatures),
    );
    const off = results
      .flatMap((result) => [...result.logProbs])
      .map((value, i) => Math.abs(value - (logProbs[i] as number)));
    expect(Math.max(...off)).toBeLessThan(1e-4);

    const fresh = await withActor({ model: quantized }, (actor) => answers(actor, list));
    const updated = await withActor({ model: directory('llama_gqa') }, async (actor) => {
      const running = actor.rollout.submit({
        promptIds: [1],
        sampling: { maxNewTokens: 50, stopTokenIds: [] },
      });
      await actor.rollout.updateWeights({ kind: 'directory', path: quantized }, 3);
      expect((await running.result).versions.at(-1)?.end).toBe(50);
      return await answers(actor, list);
    });
    expect(tokensOf(updated)).toEqual(tokensOf(fresh));
    expect(updated[0]?.versions).toEqual([{ version: 3, start: 0, end: updated[0]?.tokens.length }]);
  } finally {
    rmSync(quantized, { recursive: true });
  }
});

test('a token carries the version of the weights that made it, whatever is in flight while they change', async () => {
  const other = writeQuantized(directory('llama_gqa'));
  const request = (changes: Partial<RolloutRequest['sampling']>): RolloutRequest => ({
    promptIds: prompt(6, 1),
    sampling: { maxNewTokens: 40, temperature: 1, seed: 3n, stopTokenIds: [], ...changes },
  });
  const all = new Uint32Array(64).fill(0xffffffff);
  try {
    await withActor({ model: directory('llama_gqa'), worldSize: 2 }, async (actor) => {
      const { rollout } = actor;
      const before = await rollout.submit(request({})).result;
      let updated: Promise<void> | null = null;
      // Others are in flight on both ranks; this one is at its tenth token when the update begins.
      const others = Array.from({ length: 6 }, (_, i) => rollout.submit(request({ seed: BigInt(9 + i) })));
      const next = (): Uint32Array => {
        if (++asked === 10) updated = rollout.updateWeights({ kind: 'directory', path: other }, 7);
        return all;
      };
      let asked = 0;
      const during = await rollout.submit(request({ constraint: { next } })).result;
      await updated;
      const at = during.versions[1]?.start as number;
      expect(during.versions).toEqual([
        { version: 0, start: 0, end: at },
        { version: 7, start: at, end: 40 },
      ]);
      expect(at).toBeGreaterThanOrEqual(9);
      // Of the weights of before to the last bit up to there, and not one token further.
      expect([...during.logProbs.subarray(0, at)]).toEqual([...before.logProbs.subarray(0, at)]);
      expect(during.logProbs[at]).not.toBe(before.logProbs[at]);
      for (const { result } of others) expect((await result).tokens).toHaveLength(40);
      const after = await rollout.submit(request({})).result;
      expect(after.versions).toEqual([{ version: 7, start: 0, end: 40 }]);
    });
  } finally {
    rmSync(other, { recursive: true });
  }
});

test.each(['int8', 'fp8'] as const)(
  'weights of 8 bits change tokens, and nothing else does: %s',
  async (quantization) => {
    const list = requests(16);
    const run = (rollout: ActorOptions['rollout']): Promise<RolloutResult[]> =>
      withActor({ rollout: { quantization, ...rollout } }, (actor) => answers(actor, list));
    const found = tokensOf(await run({}));
    expect(tokensOf(await run({ maxNumBatchedTokens: 16 }))).toEqual(found);
    expect(tokensOf(await withActor({}, (actor) => answers(actor, list)))).not.toEqual(found);
  },
);

test('weights of 8 bits are refused where they are not there', async () => {
  const refused = (model: string, quantization: unknown): Promise<void> =>
    withActor(
      { model: directory(model), rollout: { quantization } as ActorOptions['rollout'] },
      async () => undefined,
    );
  await expect(refused('mixtral', 'int8')).rejects.toThrow(/mixtures of experts cannot be quantised/);
  await expect(refused('llama_gqa', 'int4')).rejects.toThrow(/expected one of int8, fp8/);
});

test('latents of a model that has none are not kept', async () => {
  const refused = withActor(
    { model: directory('llama_gqa'), rollout: { latentCache: true } },
    async () => undefined,
  );
  await expect(refused).rejects.toThrow(/latentCache: the model has no latent attention/);
});
