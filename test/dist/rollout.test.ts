import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { readHeader } from '../../ts/checkpoint/safetensors';
import type { RolloutRequest, RolloutResult } from '../../ts/rollout/request';
import { promptsBatch, sampleSeeds } from '../../ts/rollout/sampling';
import { CONFORMANCE } from '../helpers/conformance';
import { workersOf } from '../helpers/e2e_process';
import { CODE_PRODUCTS, OWN_BFLOAT16_PRODUCTS } from '../helpers/processor';

const directory = (name: string): string => path.join(CONFORMANCE, 'models', name, 'actor');
const model = directory('qwen3_headdim');

async function withActor<T>(o: Partial<ActorOptions>, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({ model, optim: null, numThreads: 1, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

const prompt = (length: number, salt: number): number[] =>
  Array.from({ length }, (_, i) => 1 + ((i * 7 + salt * 13 + i * i) % 119));

const requests = (count: number): RolloutRequest[] =>
  Array.from({ length: count }, (_, i) => ({
    promptIds: prompt(1 + ((i * 11) % 60), i % 5),
    sampling: {
      maxNewTokens: 5 + (i % 30),
      temperature: i % 4 === 0 ? 0 : 1,
      seed: BigInt(i),
      stopTokenIds: [],
    },
  }));

const answers = (actor: Actor, list: readonly RolloutRequest[]): Promise<RolloutResult[]> =>
  Promise.all(list.map((request) => actor.rollout.submit(request).result));

const tokensOf = (results: readonly RolloutResult[]): number[][] => results.map(({ tokens }) => [...tokens]);

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

test('a second turn takes what the first has left, and weights that change are seen', async () => {
  await withActor({ optim: { lr: 1e-2 }, rollout: { freeCacheEngine: false } }, async (actor) => {
    const ask = async (promptIds: number[]): Promise<RolloutResult> =>
      await actor.rollout.submit({
        promptIds,
        sampling: { maxNewTokens: 8, temperature: 0, stopTokenIds: [] },
      }).result;
    const first = await ask(prompt(70, 1));
    const history = [...prompt(70, 1), ...first.tokens, 5, 6, 7];
    const second = await ask(history);
    // All but the last token of the first turn has been through the model.
    expect([first.cachedTokens, second.cachedTokens]).toEqual([0, 70 + first.tokens.length - 1]);
    const batch = Batch.fromSequences([history], [second.tokens]);
    await actor.updateSft(batch);
    await actor.rollout.updateWeights({ kind: 'in-place' }, 7);
    const third = await ask(history);
    expect(third.cachedTokens).toBe(0);
    expect(third.versions).toEqual([{ version: 7, start: 0, end: 8 }]);
    expect([...third.logProbs]).not.toEqual([...second.logProbs]);
  });
});

test('requests in flight outlive training, new versions, pauses and aborts of others', async () => {
  await withActor({ optim: { lr: 0 } }, async (actor) => {
    const { rollout } = actor;
    const sampling = { maxNewTokens: 60, temperature: 1, stopTokenIds: [] };
    const alone = await rollout.submit({ promptIds: prompt(4, 2), sampling: { ...sampling, seed: 5n } })
      .result;
    const kept = rollout.submit({ promptIds: prompt(4, 2), sampling: { ...sampling, seed: 5n } });
    const others = Array.from({ length: 20 }, (_, i) =>
      rollout.submit({ promptIds: prompt(30, i), sampling, ...(i % 2 === 0 ? { deadlineMs: 1 } : {}) }),
    );
    for (const handle of others.slice(0, 5)) handle.abort();
    const batch = Batch.fromSequences([[1, 2]], [[3, 4]]);
    for (let version = 1; version <= 5; version++) {
      await actor.updateSft(batch);
      await rollout.updateWeights({ kind: 'in-place' }, version);
      await rollout.pause('keep');
      await rollout.resume();
    }
    const result = await kept.result;
    expect([...result.tokens]).toEqual([...alone.tokens]);
    expect(result.versions[0]?.start).toBe(0);
    expect(result.versions.at(-1)?.end).toBe(60);
    expect((await others[0]?.result)?.finishReason).toBe('abort');
    await rollout.pause('abort');
    await Promise.all(others.map(({ result: own }) => own));
    const late = rollout.submit({ promptIds: [1], sampling: { ...sampling, maxNewTokens: 2 } });
    await rollout.resume();
    expect((await late.result).tokens).toHaveLength(2);
    await rollout.pause('wait');
    expect(await rollout.stats()).toMatchObject({ running: 0, waiting: 0, cachePositionsUsed: 0 });
  });
});

test('constraints are asked before every token; what they forbid does not come', async () => {
  await withActor({}, async (actor) => {
    const seen: number[][] = [];
    const only = (token: number): Uint32Array => {
      const mask = new Uint32Array(5);
      mask[token >> 5] = 1 << (token & 31);
      return mask;
    };
    const constrained = actor.rollout.submit({
      promptIds: [1, 2, 3],
      sampling: {
        maxNewTokens: 4,
        stopTokenIds: [],
        constraint: {
          next: async (tokens) => {
            seen.push([...tokens]);
            return only(40 + seen.length);
          },
        },
      },
    });
    const free = actor.rollout.submit({ promptIds: [4], sampling: { maxNewTokens: 50, stopTokenIds: [] } });
    expect([...(await constrained.result).tokens]).toEqual([41, 42, 43, 44]);
    expect(seen).toEqual([[], [41], [42], [43]]);
    expect((await free.result).tokens).toHaveLength(50);
    const none = actor.rollout.submit({
      promptIds: [1],
      sampling: { maxNewTokens: 4, constraint: { next: () => new Uint32Array(5) } },
    });
    await expect(none.result).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('the constraint allows no token'),
    });
    const answering = (next: () => unknown): Promise<unknown> =>
      actor.rollout.submit({
        promptIds: [1],
        sampling: { maxNewTokens: 4, constraint: { next: next as () => null } },
      }).result;
    for (const wrong of [undefined, true, 5, 'all', {}, [1]])
      await expect(answering(() => wrong)).rejects.toThrow(/next: expected a Uint32Array or null but got/);
    for (const thrown of [undefined, null, 'why'])
      await expect(answering(() => Promise.reject(thrown))).rejects.toThrow(
        /next threw .* which is no error/,
      );
    await expect(
      answering(() => {
        throw new Error('of its own');
      }),
    ).rejects.toThrow('of its own');
    const schema = { kind: 'json-schema', schema: '{}' } as const;
    expect(() =>
      actor.rollout.submit({ promptIds: [1], sampling: { maxNewTokens: 4 }, grammar: schema }),
    ).toThrow('turn the json-schema into sampling.constraint first');
  });
});

test('what becomes of the arrays of a request behind its back ends that request alone', async () => {
  await withActor({}, async (actor) => {
    const image: { height: number; width: number; pixels?: Uint8Array } = { height: 1, width: 1 };
    image.pixels = new Uint8Array(3);
    const sampling = { maxNewTokens: 2, stopTokenIds: [] };
    const torn = actor.rollout.submit({ promptIds: [1], sampling, images: [image as never] });
    delete image.pixels;
    const whole = actor.rollout.submit({ promptIds: [1], sampling });
    await expect(torn.result).rejects.toThrow(/the request was changed after it was given/);
    expect((await whole.result).tokens).toHaveLength(2);
    await expect(
      actor.generate([[1]], { maxNewTokens: 1 }, [[{ height: 1, width: 1 } as never]]),
    ).rejects.toThrow(/images.*sequence 0\] image 0: pixels: expected a Uint8Array of 1 x 1 x 3 = 3 bytes/);
  });
});

test('an engine whose worker is gone has no numbers to give', async () => {
  await withActor({}, async (actor) => {
    await answers(actor, requests(1));
    expect(await actor.rollout.stats()).toMatchObject({ running: 0 });
    for (const pid of workersOf(process.pid)) process.kill(pid, 'SIGKILL');
    await actor.engine.group.failed;
    await expect(actor.rollout.stats()).rejects.toMatchObject({ code: 'WORKER_DIED' });
  });
});

test('what can never fit is refused with numbers', async () => {
  await withActor({ rollout: { kvCacheBytes: 40_000 } }, async (actor) => {
    const long = { promptIds: prompt(60, 0), sampling: { maxNewTokens: 60 } };
    const message = /need 4 pages of 32 positions, and the cache has \d/;
    const { maxTokens } = actor.rollout;
    await expect(actor.rollout.submit(long).result).rejects.toThrow(message);
    expect(() => actor.rollout.submit(long)).toThrow(message);
    // Whoever asks for what there is room for gets it.
    const room = actor.rollout.maxTokens;
    expect(room).toBeLessThan(maxTokens);
    const sampling = { maxNewTokens: room - 20, stopTokenIds: [] };
    const { tokens } = await actor.rollout.submit({ promptIds: prompt(20, 0), sampling }).result;
    expect(tokens).toHaveLength(room - 20);
  });
});

test('a batch is what its requests are one by one, while others run, and as far as they got when they are aborted', async () => {
  await withActor({ worldSize: 2, rollout: { maxNumBatchedTokens: 24 } }, async (actor) => {
    const prompts = [prompt(5, 1), prompt(30, 2), prompt(1, 3)];
    const sampling = { maxNewTokens: 20, temperature: 0.9 };
    const seeds = sampleSeeds(promptsBatch('test', prompts, 3), 3, 7);
    const other = actor.rollout.submit({
      promptIds: prompt(9, 4),
      sampling: { maxNewTokens: 60, seed: 1n, stopTokenIds: [] },
    });
    const batch = await actor.generate(prompts, { ...sampling, n: 3, seed: 7 });
    const single = await answers(
      actor,
      Array.from(seeds, (seed, j) => ({
        promptIds: prompts[Math.floor(j / 3)] as number[],
        sampling: { ...sampling, seed },
      })),
    );
    expect(single.map((_, j) => [...batch.response(j)])).toEqual(tokensOf(single));
    expect([...batch.get('rolloutLogProbs')]).toEqual(single.flatMap(({ logProbs }) => [...logProbs]));
    expect((await other.result).tokens).toHaveLength(60);
    const long = actor.generate(prompts, { ...sampling, maxNewTokens: 90, n: 3, seed: 7, stopTokenIds: [] });
    await actor.rollout.stats();
    await actor.rollout.pause('abort');
    const aborted = await long;
    await actor.rollout.resume();
    const whole = await actor.generate(prompts, {
      ...sampling,
      maxNewTokens: 90,
      n: 3,
      seed: 7,
      stopTokenIds: [],
    });
    for (let j = 0; j < 9; j++) {
      const begun = [...aborted.response(j)];
      expect([...whole.response(j)].slice(0, begun.length)).toEqual(begun);
    }
  });
});

test('a response ends where prompt and response reach maxTokens, as it does at maxNewTokens', async () => {
  await withActor({ worldSize: 2, rollout: { maxModelLen: 40 } }, async (actor) => {
    const prompts = [prompt(5, 1), prompt(30, 2), prompt(39, 3)];
    const sampling = { maxNewTokens: 20, temperature: 0.9, n: 2, seed: 7, stopTokenIds: [] };
    await expect(actor.generate(prompts, sampling)).rejects.toThrow(
      /prompt 1 has 30 tokens and maxNewTokens is 20/,
    );
    const batch = await actor.generate(prompts, { ...sampling, maxTokens: 40 });
    const lengths = Array.from({ length: 6 }, (_, j) => batch.response(j).length);
    expect(lengths).toEqual([20, 20, 10, 10, 1, 1]);
    const short = await actor.generate(prompts.slice(0, 2), { ...sampling, maxNewTokens: 10 });
    for (const j of [0, 1, 2, 3]) expect([...batch.response(j)].slice(0, 10)).toEqual([...short.response(j)]);
    await expect(actor.generate([prompt(40, 1)], { ...sampling, maxTokens: 40 })).rejects.toThrow(
      /prompt 0 has 40 tokens: expected fewer than the 40 that prompt and response may have together/,
    );
  });
});

test('of batches that wait the one of the higher priority is served first', async () => {
  await withActor({ rollout: { maxNumSeqs: 4 } }, async ({ rollout }) => {
    const order: number[] = [];
    const serve = async (priority: number): Promise<void> => {
      const prompts = promptsBatch('test', [prompt(6, 2)], 8);
      const seeds = BigUint64Array.from({ length: 8 }, (_, i) => BigInt(i));
      const sampling = { maxNewTokens: 20, stopTokenIds: [] };
      await rollout.submitBatch?.({ prompts, n: 8, sampling, seeds, priority });
      order.push(priority);
    };
    // Nothing is admitted until all are there.
    await rollout.pause('keep');
    const all = Promise.all([-2, 0, 3, -1].map(serve));
    await rollout.resume();
    await all;
    expect(order).toEqual([3, 0, -1, -2]);
    await expect(serve(Number.NaN)).rejects.toThrow(/priority: expected/);
  });
});

test('memory that goes from one batch to the next: the tokens and log-probs are those of fresh memory, and nothing of the batch before', async () => {
  const steps = (actor: Actor, recycles: boolean): Promise<number[][]> => {
    const step = async (count: number, seed: number): Promise<number[]> => {
      const prompts = Array.from({ length: count }, (_, i) => prompt(3 + ((5 * i) % 20), i));
      const batch = await actor.generate(prompts, { maxNewTokens: 12, n: 2, seed, stopTokenIds: [] });
      const { logProbs } = await actor.computeLogProb(batch, { temperature: 0.9 });
      const all = batch.with({ oldLogProbs: logProbs }, { adopt: true });
      const seen = [...all.get('tokens'), ...all.get('rolloutLogProbs'), ...all.get('oldLogProbs')];
      if (recycles) all.recycle();
      return seen;
    };
    // Longer, shorter and as long as the first.
    return [10, 11, 7, 10].reduce<Promise<number[][]>>(
      async (done, count, i) => [...(await done), await step(count, i)],
      Promise.resolve([]),
    );
  };
  const fresh = await withActor({ worldSize: 2 }, (actor) => steps(actor, false));
  const recycled = await withActor({ worldSize: 2 }, async (actor) => {
    const seen = await steps(actor, true);
    expect(actor.engine.memory.freeBytes).toBeGreaterThan(0);
    return seen;
  });
  expect(recycled).toEqual(fresh);
});
