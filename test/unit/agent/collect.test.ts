import { getEventListeners } from 'node:events';
import { collectTrajectories } from '../../../ts/agent/collect';
import { defineAgent } from '../../../ts/agent/define';
import { speaking } from './chat_world';
import { task, tokenizer } from './endpoint_world';

// A run that is asked to stop.

const options = {
  engine: speaking(tokenizer, () => 'yes'),
  tokenizer,
  chat: null,
  sampling: { maxNewTokens: 20 },
  tools: [],
  toolOptions: { timeout: 1, maxResponseLength: 100, truncateSide: 'middle' },
  timeout: 20,
  retries: 20,
  seed: 1,
  concurrency: 4,
  onError: 'zero',
} as const;

test('nothing is begun once it has been asked', async () => {
  const began = jest.fn(() => 1);
  const signal = AbortSignal.abort(new Error('stopped'));
  const collected = collectTrajectories(defineAgent({ run: began }), [task()], { ...options, signal });
  await expect(collected).rejects.toThrow('stopped');
  expect(began).not.toHaveBeenCalled();
});

test('it does not wait for the next attempt of an agent that fails', async () => {
  const stop = new AbortController();
  let asked = 0;
  let attempts = 0;
  const agent = defineAgent({
    run: () => {
      if (++attempts === 6) {
        // After this one 3.2 s pass before the next.
        setTimeout(() => stop.abort(new Error('stopped')), 50);
        asked = performance.now();
      }
      throw new Error('broken');
    },
  });
  const collected = collectTrajectories(agent, [task()], { ...options, signal: stop.signal });
  await expect(collected).rejects.toThrow('stopped');
  expect([attempts, performance.now() - asked < 2000]).toEqual([6, true]);
});

test('what is random about a task follows from its number in the batch, however many are collected at once', async () => {
  const seeds: Record<number, string> = {};
  const agent = defineAgent({
    run: async ({ extraInfo }, { model }) => {
      const { seed } = model.sampling([1], 1);
      seeds[extraInfo['number'] as number] = String(seed);
      return 1;
    },
  });
  const tasks = [0, 1, 2, 3].map((number) => task({ number }));
  await collectTrajectories(agent, tasks, options);
  const all = { ...seeds };
  expect(new Set(Object.values(all)).size).toBe(4);
  await collectTrajectories(agent, tasks.slice(2), { ...options, first: 2 });
  expect(seeds).toEqual(all);
});

test('nothing of it listens for an end any more when it is over', async () => {
  const { signal } = new AbortController();
  const tasks = [task(), task()];
  await collectTrajectories(defineAgent({ run: () => 1 }), tasks, { ...options, signal });
  expect(getEventListeners(signal, 'abort')).toEqual([]);
});
