import { Mt19937 } from '../../../ts/base/mt19937';
import {
  newestEpoch,
  PromptStream,
  StreamedBatches,
  type StreamedPrompt,
} from '../../../ts/trainer/prompt_stream';
import type { PromptSource } from '../../../ts/trainer/training_data';

const EPOCH = 13;

/** Batches of `size` prompts, of 13 to an epoch; what is no batch at its end is left out. */
function source(position = 0, size = 3): PromptSource {
  let at = position;
  const prompt = (i: number) => ({ tokens: [i], dataSource: 'x', groundTruth: i, extraInfo: {} });
  return {
    batchesPerEpoch: Math.floor(EPOCH / size),
    next: async () => {
      if ((at % EPOCH) + size > EPOCH) at += EPOCH - (at % EPOCH);
      const prompts = Array.from({ length: size }, (_, i) => prompt(at + i));
      const epoch = Math.floor(at / EPOCH);
      at += size;
      return { prompts, epoch };
    },
    state: () => ({ at }),
    restore: (state) => {
      at = (state as { at: number }).at;
    },
  };
}

async function take(stream: PromptStream, count: number): Promise<StreamedPrompt[]> {
  const taken: StreamedPrompt[] = [];
  for (let i = 0; i < count; i++) taken.push(await stream.next());
  return taken;
}
const ids = (prompts: readonly StreamedPrompt[]): number[] =>
  prompts.map(({ prompt }) => prompt.tokens[0] as number);

test('prompts come one by one in the order of the source, with their batch and their place in it', async () => {
  const stream = new PromptStream(source(), 0);
  expect(stream.position()).toEqual({ loader: { at: 0 }, queue: { batch: 1, read: [] } });
  const prompts = await take(stream, 13);
  // Of an epoch of 13 the last one is no batch.
  expect(ids(prompts)).toEqual([...Array(12).keys(), 13]);
  const [, , , , fifth] = prompts;
  expect([fifth?.batch, fifth?.index, fifth?.siblings.length]).toEqual([2, 1, 3]);
  expect(prompts.map(({ epoch }) => epoch)).toEqual([...Array(12).fill(0), 1]);
});

test('a batch of more prompts than a call has arguments', async () => {
  const size = 200_000;
  const prompt = { tokens: [1], dataSource: 'x', groundTruth: 0, extraInfo: {} };
  let epoch = 0;
  const large: PromptSource = {
    ...source(),
    next: async () => ({ prompts: Array.from({ length: size / 2 }, () => prompt), epoch: epoch++ }),
  };
  const { prompts, epoch: newest } = await new StreamedBatches(new PromptStream(large, 0), size, 1).next();
  expect([prompts.length, newest]).toEqual([size, 1]);
});

/** A stream that goes on from a position, with batches of `size`. */
function resume({ loader, queue }: ReturnType<PromptStream['position']>, size = 3): PromptStream {
  const again = source(0, size);
  again.restore(loader);
  return new PromptStream(again, 2, queue);
}

test('a run goes on with the prompts that are left, in their order, and with no others', async () => {
  const stream = new PromptStream(source(), 0);
  const prompts = await take(stream, 8);
  for (const i of [0, 2, 3, 4, 5, 7]) stream.done(prompts[i] as StreamedPrompt);
  // Prompt 8 has been read, and nobody has asked for it.
  const position = stream.position();
  expect(position).toEqual({
    loader: { at: 0 },
    queue: { batch: 1, read: [{ epoch: 0, prompts: 9, left: [1, 6, 8] }] },
  });
  const resumed = resume(position);
  const again = await take(resumed, 5);
  expect(ids(again)).toEqual([1, 6, 8, 9, 10]);
  expect(again.map(({ batch, index }) => [batch, index])).toEqual([
    [1, 1],
    [3, 0],
    [3, 2],
    [4, 0],
    [4, 1],
  ]);
  expect(resumed.position().queue.read).toEqual([{ epoch: 0, prompts: 12, left: [1, 6, 8, 9, 10, 11] }]);
});

test('what is left is not forgotten by a run that has not come to it', async () => {
  const stream = new PromptStream(source(), 0);
  for (const prompt of (await take(stream, 13)).slice(3, 11)) stream.done(prompt);
  const first = resume(stream.position());
  expect(first.position()).toEqual(stream.position());
  for (const prompt of await take(first, 3)) first.done(prompt);
  const second = resume(first.position());
  expect(ids(await take(second, 4))).toEqual([11, 13, 14, 15]);
});

test('what is done with is forgotten from the front', async () => {
  const stream = new PromptStream(source(), 0);
  const prompts = await take(stream, 9);
  for (const prompt of prompts.slice(0, 3)) stream.done(prompt);
  expect(stream.position()).toEqual({
    loader: { at: 3 },
    queue: { batch: 2, read: [{ epoch: 0, prompts: 6, left: [0, 1, 2, 3, 4, 5] }] },
  });
  for (const prompt of prompts.slice(3)) stream.done(prompt);
  expect(stream.position()).toEqual({ loader: { at: 9 }, queue: { batch: 4, read: [] } });
});

test('batches of another size: the same prompts are left, over the end of an epoch, too', async () => {
  const stream = new PromptStream(source(), 0);
  const prompts = await take(stream, 16);
  expect(ids(prompts).slice(11)).toEqual([11, 13, 14, 15, 16]);
  const done = [0, 1, 2, 4, 5, 8, 10, 14, 15];
  for (const prompt of prompts) if (done.includes(prompt.prompt.tokens[0] as number)) stream.done(prompt);
  // Prompts 12 (of batches of 2, not), 17 and 18 have not been read before.
  const smaller = resume(stream.position(), 2);
  expect(ids(await take(smaller, 9))).toEqual([3, 6, 7, 9, 11, 12, 13, 16, 17]);
  const larger = resume(stream.position(), 5);
  expect(ids(await take(larger, 7))).toEqual([3, 6, 7, 9, 11, 12, 13]);
});

test('a run that is no longer ahead of its steps takes what is left first', async () => {
  const stream = new PromptStream(source(), 0);
  const prompts = await take(stream, 9);
  for (const prompt of [...prompts.slice(0, 4), ...prompts.slice(6, 8)]) stream.done(prompt);
  const batches = new StreamedBatches(resume(stream.position()), 3, 4);
  const tokens = async () => (await batches.next()).prompts.map((prompt) => prompt.tokens[0]);
  expect(await tokens()).toEqual([4, 5, 8]);
  expect(await tokens()).toEqual([9, 10, 11]);
  expect(batches.position()).toEqual({ loader: { at: 12 }, queue: { batch: 5, read: [] } });
  expect(await batches.next()).toMatchObject({ epoch: 1, prompts: [{ tokens: [13] }, {}, {}] });
});

test('however often a run is stopped, and whatever is done with first, each prompt is done with once', async () => {
  for (let seed = 0; seed < 100; seed++) {
    const random = new Mt19937(seed);
    let stream = new PromptStream(source(), 0);
    const done: number[] = [];
    let open: StreamedPrompt[] = [];
    while (done.length < 60) {
      if (random.nextBelow(8) === 0) {
        stream = resume(stream.position());
        open = [];
      }
      open.push(...(await take(stream, random.nextBelow(7))));
      for (let i = random.nextBelow(1 + open.length); i > 0; i--) {
        const [prompt] = open.splice(random.nextBelow(open.length), 1) as [StreamedPrompt];
        stream.done(prompt);
        done.push(prompt.prompt.tokens[0] as number);
      }
    }
    stream = resume(stream.position());
    // Those that were left come first; then what was never read.
    const rest = ids(await take(stream, 100));
    const all = [...done, ...rest].sort((a, b) => a - b);
    expect([seed, new Set(all).size]).toEqual([seed, all.length]);
    const whole = [...Array(13 * 60).keys()].filter((i) => i % 13 !== 12);
    expect(all).toEqual(whole.slice(0, all.length));
  }
});

test('a run that has taken a batch per step so far goes on behind these', async () => {
  const stream = new PromptStream(source(16), 5);
  const [next] = await take(stream, 1);
  expect([next?.batch, next?.prompt.tokens]).toEqual([6, [16]]);
});

test('of an epoch that is done with nothing is kept, also while the next one is worked on', async () => {
  const stream = new PromptStream(source(), 0);
  const prompts = await take(stream, 15);
  const last = prompts.filter(({ epoch }) => epoch === 0);
  for (const prompt of last.slice(0, -1)) stream.done(prompt);
  expect(stream.position().queue.read).toEqual([
    { epoch: 0, prompts: 3, left: [2] },
    { epoch: 1, prompts: 3, left: [0, 1, 2] },
  ]);
  stream.done(last.at(-1) as StreamedPrompt);
  expect(stream.position().queue.read).toEqual([{ epoch: 1, prompts: 3, left: [0, 1, 2] }]);
});

test('the newest epoch of prompts in any order', () => {
  const prompts = [0, 2, 1].map((epoch) => ({ epoch }) as StreamedPrompt);
  expect([newestEpoch(prompts), newestEpoch([])]).toEqual([2, 0]);
});
