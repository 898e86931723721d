import type {
  NativeImage,
  NativeRolloutCommands,
  NativeRolloutOutput,
  NativeRolloutTurn,
} from '../../../ts/native/bridge';
import { type BatchSubmission, KeptResponses, type RolloutTurn } from '../../../ts/worker/kept_responses';

const sampling = { maxNewTokens: 9 } as BatchSubmission['sampling'];
/** Three samples of the prompt [1, 2] and one of [3], ids 10 to 13. */
const batch = (more: Partial<BatchSubmission> = {}): BatchSubmission => ({
  firstId: 10,
  prompts: Int32Array.of(1, 2, 3),
  promptLens: Int32Array.of(2, 1),
  images: null,
  samples: Int32Array.of(3, 1),
  seeds: BigUint64Array.of(5n, 6n, 7n, 8n),
  sampling,
  priority: -3,
  keeps: true,
  versions: false,
  maxTokens: Number.POSITIVE_INFINITY,
  ...more,
});
const none = { images: [], submit: [], batches: [], abort: [], masks: [], milliseconds: 1 };

const output = (
  id: number,
  tokens: number[],
  finish: NativeRolloutOutput['finish'] = 'none',
  more: Partial<NativeRolloutOutput> = {},
): NativeRolloutOutput => ({
  id,
  tokens: Int32Array.from(tokens),
  logProbs: Float32Array.from(tokens, (token) => -token),
  topTokens: new Int32Array(0),
  topLogProbs: new Float32Array(0),
  promptLogProbs: null,
  routedExperts: null,
  version: 0,
  cachedTokens: 0,
  finish,
  error: null,
  nonFinite: false,
  needsMask: false,
  ...more,
});

/** Turns of an engine that answers with `outputs`. */
function turnOf(
  kept: KeptResponses,
  outputs: NativeRolloutOutput[],
  batches: BatchSubmission[] = [],
): Promise<RolloutTurn> {
  return kept.turn({ ...none, batches }, async () => ({ outputs }) as unknown as NativeRolloutTurn);
}

test('a batch with more images than a call has arguments', async () => {
  const all = new Array<NativeImage>(200_000).fill({} as NativeImage);
  const images = { all, indices: new Int32Array(0), offsets: Int32Array.of(0, 0, 0) };
  const given: NativeRolloutCommands[] = [];
  await new KeptResponses().turn({ ...none, batches: [batch({ images })] }, async (commands) => {
    given.push(commands);
    return { outputs: [] } as unknown as NativeRolloutTurn;
  });
  expect(given[0]?.images).toHaveLength(all.length);
});

test('images of batches stand behind those of single requests, and those of the batches before', async () => {
  const image = (width: number): NativeImage => ({ width }) as NativeImage;
  const batches = [
    batch({
      images: { all: [image(2), image(3)], indices: Int32Array.of(1, 0, 1), offsets: Int32Array.of(0, 1, 3) },
    }),
    batch({
      firstId: 20,
      images: { all: [image(4)], indices: Int32Array.of(0), offsets: Int32Array.of(0, 0, 1) },
    }),
  ];
  const given: NativeRolloutCommands[] = [];
  await new KeptResponses().turn({ ...none, images: [image(1)], batches }, async (commands) => {
    given.push(commands);
    return { outputs: [] } as unknown as NativeRolloutTurn;
  });
  const [{ images, submit }] = given as [NativeRolloutCommands];
  const widths = submit.map((one) => Array.from(one.images, (i) => (images[i] as { width: number }).width));
  expect(widths).toEqual([[3], [3], [3], [2, 3], [], [], [], [4]]);
});

test('a batch is single requests for the engine, behind those that came one by one', async () => {
  const given: NativeRolloutCommands[] = [];
  const images = new Int32Array(0);
  const single = {
    id: 3,
    prompt: Int32Array.of(9),
    sampling,
    seedAndSalt: BigUint64Array.of(1n, 2n),
    images,
  };
  await new KeptResponses().turn(
    { ...none, submit: [{ ...single, priority: 2 }], batches: [batch()] },
    async (commands) => {
      given.push(commands);
      return { outputs: [] } as unknown as NativeRolloutTurn;
    },
  );
  expect(given[0]).not.toHaveProperty('batches');
  const [first, ...others] = given[0]?.submit ?? [];
  expect(first).toMatchObject(single);
  expect(others.map(({ id, prompt, seedAndSalt }) => [id, [...prompt], [...seedAndSalt]])).toEqual([
    [10, [1, 2], [5n, 0n]],
    [11, [1, 2], [6n, 0n]],
    [12, [1, 2], [7n, 0n]],
    [13, [3], [8n, 0n]],
  ]);
  expect(others.map(({ priority }) => priority)).toEqual([-3, -3, -3, -3]);
});

test('responses stay until they are taken, in the order of the requests, however they came', async () => {
  const kept = new KeptResponses();
  const first = await turnOf(kept, [output(12, [1]), output(3, [50]), output(10, [2, 3])], [batch()]);
  expect(first.outputs.map(({ id }) => id)).toEqual([3]);
  expect(first.ended).toEqual([]);
  const second = await turnOf(kept, [output(12, [4, 5, 6], 'stop'), output(13, [], 'abort')]);
  expect(second).toMatchObject({
    outputs: [],
    ended: [{ firstId: 10, places: [2, 3], lengths: [4, 0], expertBytes: [0, 0] }],
  });
  const experts = { routedExperts: Uint8Array.of(7, 8) };
  const third = await turnOf(kept, [output(10, [9], 'length', experts), output(11, [8], 'stop', experts)]);
  expect(third.ended).toEqual([{ firstId: 10, places: [0, 1], lengths: [3, 1], expertBytes: [2, 2] }]);
  const { tokens, logProbs, routedExperts } = kept.take(10);
  expect([...tokens]).toEqual([2, 3, 9, 8, 1, 4, 5, 6]);
  expect([...logProbs]).toEqual([...tokens].map((token) => -token));
  expect([...routedExperts]).toEqual([7, 8, 7, 8]);
  expect(() => kept.take(10)).toThrow('there are no responses of a batch 10');
});

test('an error passes by, and what nobody wants is forgotten when it has ended', async () => {
  const kept = new KeptResponses();
  const failed = output(11, [], 'none', { error: 'too long' });
  const turn = await turnOf(kept, [failed, output(10, [1], 'stop')], [batch()]);
  expect(turn.outputs).toEqual([failed]);
  expect(turn.ended).toMatchObject([{ places: [0], lengths: [1] }]);
  kept.drop(10);
  expect((await turnOf(kept, [output(12, [1], 'stop'), output(13, [1], 'stop')])).ended).toHaveLength(1);
  expect(() => kept.take(10)).toThrow('there are no responses');
  // Its ids are of no batch any more.
  expect((await turnOf(kept, [output(12, [1])])).outputs).toHaveLength(1);
});

test('of ranks that make the same responses one keeps them', async () => {
  const kept = new KeptResponses();
  const turn = await turnOf(kept, [output(10, [1, 2], 'stop')], [batch({ keeps: false })]);
  expect(turn).toMatchObject({ outputs: [], ended: [{ firstId: 10, places: [0] }] });
  expect(() => kept.take(10)).toThrow('there are no responses');
});

test('the weights of each token, where they are wanted', async () => {
  const kept = new KeptResponses();
  const of = (
    id: number,
    tokens: number[],
    version: number,
    finish: NativeRolloutOutput['finish'] = 'none',
  ) => output(id, tokens, finish, { version });
  await turnOf(kept, [of(10, [1, 2], 3), of(11, [1], 3, 'stop')], [batch({ versions: true })]);
  await turnOf(kept, [
    of(10, [3], 3),
    of(10, [4, 5], 4, 'stop'),
    of(12, [], 4, 'abort'),
    of(13, [6], 5, 'stop'),
  ]);
  const { tokens, versions } = kept.take(10);
  expect([...tokens]).toEqual([1, 2, 3, 4, 5, 1, 6]);
  expect([...versions]).toEqual([3, 3, 3, 4, 4, 3, 5]);
  await turnOf(
    kept,
    [10, 11, 12, 13].map((id) => output(id, [1], 'stop')),
    [batch()],
  );
  expect(kept.take(10).versions).toHaveLength(0);
});

test('of thousands of batches each output finds its own', async () => {
  const kept = new KeptResponses();
  const firsts = Array.from({ length: 3000 }, (_, i) => 10 + 5 * i);
  await turnOf(
    kept,
    [],
    firsts.map((firstId) => batch({ firstId })),
  );
  // Id 14 + 5 i is of none.
  const turn = await turnOf(
    kept,
    firsts.flatMap((first) => [0, 1, 2, 3, 4].map((k) => output(first + k, [first], 'stop'))),
  );
  expect(turn.outputs).toHaveLength(3000);
  for (const first of [...firsts].reverse())
    expect([...kept.take(first).tokens]).toEqual([first, first, first, first]);
});
