import { Actor } from '../../../ts/actor/actor';
import type {
  NativeRolloutCommands,
  NativeRolloutOutput,
  NativeRolloutRequest,
  NativeRolloutTurn,
} from '../../../ts/native/bridge';
import { KeptResponses, type RolloutCommands } from '../../../ts/worker/kept_responses';
import { CONFORMANCE } from '../../helpers/conformance';
import { FakeGroup } from '../actor/fake_group';

// Batches of the native engine over ranks that are made up, when not everything goes well.

const model = `${CONFORMANCE}/models/llama_gqa/actor`;
const stats = { pages: 100, pagesHeld: 0, running: 0 };

/** A rank whose requests run until the test ends them. */
class Rank {
  readonly running = new Map<number, NativeRolloutRequest>();
  /** Ids that were to be aborted. */
  readonly aborted: number[] = [];
  /** What the next turn answers. */
  outputs: Partial<NativeRolloutOutput>[] = [];
  fails: Error | null = null;
  /** A step that takes long: no turn ends before it. */
  step: Promise<void> = Promise.resolve();

  async turn({ submit, abort }: NativeRolloutCommands): Promise<NativeRolloutTurn> {
    await new Promise((resolve) => setImmediate(resolve));
    await this.step;
    if (this.fails !== null) throw this.fails;
    for (const request of submit) this.running.set(request.id, request);
    this.aborted.push(...abort);
    const ended = abort
      .filter((id) => this.running.has(id))
      .map((id) => answer({ id, finish: 'abort' as const }));
    const outputs = [...this.outputs.map(answer), ...ended];
    this.outputs = [];
    for (const { id, finish, error } of outputs)
      if (finish !== 'none' || error !== null) this.running.delete(id);
    return { outputs, stats, ready: true, idle: this.running.size === 0 } as unknown as NativeRolloutTurn;
  }
}

const answer = (some: Partial<NativeRolloutOutput>): NativeRolloutOutput => ({
  id: 0,
  tokens: new Int32Array(0),
  logProbs: new Float32Array(some.tokens?.length ?? 0),
  topTokens: new Int32Array(0),
  topLogProbs: new Float32Array(0),
  promptLogProbs: null,
  routedExperts: null,
  version: 0,
  cachedTokens: 0,
  finish: 'none',
  error: null,
  nonFinite: false,
  needsMask: false,
  ...some,
});

async function twoRanks(): Promise<{ actor: Actor; ranks: Rank[]; group: FakeGroup }> {
  const ranks = [new Rank(), new Rank()];
  const kept = ranks.map(() => new KeptResponses());
  const group = new FakeGroup({ openRollout: () => stats }, 2);
  const { callRank } = FakeGroup.prototype;
  group.callRank = async (rank, engine, method, args) => {
    const recorded = callRank.call(group, rank, engine, method, args);
    const received = group.calls.at(-1)?.args ?? [];
    const own = kept[rank] as KeptResponses;
    if (method === 'rolloutTurn')
      return own.turn(received[0] as RolloutCommands, (commands) => (ranks[rank] as Rank).turn(commands));
    if (method === 'takeRollout') return own.take(args[0] as number);
    if (method === 'dropRollout') own.drop(args[0] as number);
    return recorded;
  };
  const actor = await Actor.create({ model, group: group.asGroup(), maxTokensPerMicroBatch: 32 });
  return { actor, ranks, group };
}

/** Ends when `condition` holds. */
async function until(condition: () => boolean): Promise<void> {
  for (let i = 0; !condition(); i++) {
    if (i > 1000) throw new Error('it does not come to pass');
    await new Promise((resolve) => setImmediate(resolve));
  }
}

type Handle = ReturnType<Actor['rollout']['submit']>;
const prompts = [[1], [2]];
const options = { maxNewTokens: 4, n: 2 };

test('when one request fails the others are given up, and the error comes when all have ended', async () => {
  const { actor, ranks, group } = await twoRanks();
  const batch = actor.generate(prompts, options);
  const refused = expect(batch).rejects.toMatchObject({ code: 'NON_FINITE', message: 'row 3' });
  await until(() => ranks.every(({ running }) => running.size === 2));
  const [first, second] = ranks as [Rank, Rank];
  const [failing, other] = [...first.running.keys()];
  first.outputs = [{ id: failing as number, error: 'row 3', nonFinite: true }];
  const rest = [other, ...second.running.keys()];
  await refused;
  expect([...first.aborted, ...second.aborted].sort()).toEqual(rest.sort());
  await until(() => group.callsOf('dropRollout').length === 2);
  expect(group.callsOf('takeRollout')).toEqual([]);
  // The ranks serve the next batch.
  const again = actor.generate([[3]], { maxNewTokens: 1 });
  await until(() => ranks.some(({ running }) => running.size === 1));
  for (const rank of ranks)
    rank.outputs = [...rank.running.keys()].map((id) => ({
      id,
      tokens: Int32Array.of(7),
      finish: 'length' as const,
    }));
  expect([...(await again).response(0)]).toEqual([7]);
});

test('log-probabilities of the prompt are those that came first, for who asked; NaN where none came', async () => {
  const { actor, ranks } = await twoRanks();
  const promptIds = [1, 2, 3];
  const handles = [true, true, false].map((promptLogProbs) =>
    actor.rollout.submit({ promptIds, sampling: { maxNewTokens: 4, promptLogProbs } }),
  );
  const running = () => ranks.flatMap((rank) => [...rank.running.values()].map((one) => ({ rank, ...one })));
  await until(() => running().length === 3);
  const [asked, cut, not] = handles as [Handle, Handle, Handle];
  const found = Float32Array.of(Number.NaN, -1, -2);
  for (const { rank, id, sampling } of running())
    if (!sampling.promptLogProbs) rank.outputs.push({ id, tokens: Int32Array.of(7), finish: 'length' });
  const first = running().find(({ sampling }) => sampling.promptLogProbs);
  first?.rank.outputs.push(
    { id: first.id, tokens: Int32Array.of(7), promptLogProbs: found },
    { id: first.id, tokens: Int32Array.of(8), finish: 'length' },
  );
  expect((await not.result).promptLogProbs).toBeUndefined();
  expect((await asked.result).promptLogProbs).toEqual(found);
  cut.abort();
  expect((await cut.result).promptLogProbs).toEqual(new Float32Array(3).fill(Number.NaN));
});

test('a turn that fails ends the batch with its error', async () => {
  const { actor, ranks } = await twoRanks();
  const batch = actor.generate(prompts, options);
  const refused = expect(batch).rejects.toThrow('out of memory');
  await until(() => ranks.every(({ running }) => running.size === 2));
  (ranks[1] as Rank).fails = new Error('out of memory');
  await refused;
  expect((ranks[0] as Rank).aborted).toHaveLength(2);
});

test('a turn that fails ends those of its requests that had not ended', async () => {
  const { actor, ranks } = await twoRanks();
  const batch = actor.generate(prompts, options);
  const refused = expect(batch).rejects.toThrow('out of memory');
  await until(() => ranks.every(({ running }) => running.size === 2));
  const [, second] = ranks as [Rank, Rank];
  const [id] = [...second.running.keys()] as [number];
  second.outputs = [{ id, tokens: Int32Array.of(7), finish: 'length' }];
  await until(() => second.running.size === 1);
  second.fails = new Error('out of memory');
  await refused;
  expect(await actor.rollout.stats()).toMatchObject({ running: 0, waiting: 0 });
});

test('a pause that aborts ends a batch with what there is, on its ranks and held', async () => {
  const { actor, ranks } = await twoRanks();
  const { rollout } = actor;
  const batch = actor.generate(prompts, options);
  await until(() => ranks.every(({ running }) => running.size === 2));
  const [first] = ranks as [Rank];
  const [id] = [...first.running.keys()];
  first.outputs = [{ id: id as number, tokens: Int32Array.of(5, 6) }];
  await until(() => first.outputs.length === 0);
  expect((await rollout.stats()).running + (await rollout.stats()).waiting).toBe(4);
  await rollout.pause('keep');
  const held = actor.generate(prompts, options);
  await new Promise((resolve) => setImmediate(resolve));
  expect(ranks.map(({ running }) => running.size)).toEqual([2, 2]);
  await rollout.pause('abort');
  expect([...(await batch).responseLens]).toEqual([2, 0, 0, 0]);
  expect([...(await held).responseLens]).toEqual([0, 0, 0, 0]);
  expect((await rollout.stats()).waiting).toBe(0);
});

test('a request that is aborted while a step takes long ends at once, and there when the step is over', async () => {
  const { actor, ranks } = await twoRanks();
  const { rollout } = actor;
  const handle = rollout.submit({ promptIds: [1], sampling: { maxNewTokens: 9 } });
  await until(() => ranks.some(({ running }) => running.size === 1));
  const rank = ranks.find(({ running }) => running.size === 1) as Rank;
  const [id] = [...rank.running.keys()] as [number];
  rank.outputs = [{ id, tokens: Int32Array.of(5, 6) }];
  expect([...((await handle[Symbol.asyncIterator]().next()).value?.tokens ?? [])]).toEqual([5, 6]);
  let stepEnds = (): void => undefined;
  rank.step = new Promise((resolve) => {
    stepEnds = resolve;
  });
  handle.abort();
  expect(await handle.result).toMatchObject({ tokens: Int32Array.of(5, 6), finishReason: 'abort' });
  expect(rank.aborted).toEqual([]);
  // What it still made is nobody's.
  rank.outputs = [{ id, tokens: Int32Array.of(7) }];
  stepEnds();
  await rollout.pause('wait');
  expect([rank.aborted, rank.running.size]).toEqual([[id], 0]);
  expect((await handle.result).tokens).toHaveLength(2);
});
