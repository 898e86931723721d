import { Batch } from '../../ts/batch/batch';
import type { RolloutResult } from '../../ts/rollout/request';
import { workersOf } from '../helpers/e2e_process';
import { answers, prompt, requests, withActor } from '../helpers/rollout_actor';

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
