// Actors of conformance models, and what they are asked for.
import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import type { RolloutRequest, RolloutResult } from '../../ts/rollout/request';
import { CONFORMANCE } from './conformance';

/** The directory of a conformance model. */
export const directory = (name: string): string => path.join(CONFORMANCE, 'models', name, 'actor');
const model = directory('qwen3_headdim');

/** What `body` makes of a small actor that learns nothing, unless `o` says so. */
export async function withActor<T>(o: Partial<ActorOptions>, body: (actor: Actor) => Promise<T>): Promise<T> {
  const actor = await Actor.create({ model, optim: null, numThreads: 1, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

/** Token ids that every model knows. */
export const prompt = (length: number, salt: number): number[] =>
  Array.from({ length }, (_, i) => 1 + ((i * 7 + salt * 13 + i * i) % 119));

/** Of different lengths and temperatures; none ends before its last token. */
export const requests = (count: number): RolloutRequest[] =>
  Array.from({ length: count }, (_, i) => ({
    promptIds: prompt(1 + ((i * 11) % 60), i % 5),
    sampling: {
      maxNewTokens: 5 + (i % 30),
      temperature: i % 4 === 0 ? 0 : 1,
      seed: BigInt(i),
      stopTokenIds: [],
    },
  }));

export const answers = (actor: Actor, list: readonly RolloutRequest[]): Promise<RolloutResult[]> =>
  Promise.all(list.map((request) => actor.rollout.submit(request).result));

export const tokensOf = (results: readonly RolloutResult[]): number[][] =>
  results.map(({ tokens }) => [...tokens]);
