import { PromptStream, type StreamedPrompt } from '../../ts/trainer/prompt_stream';
import type { PromptSource } from '../../ts/trainer/training_data';

/** Batches of three prompts; four to an epoch. */
function source(position = 0): PromptSource {
  let at = position;
  const prompt = (i: number) => ({ tokens: [i], dataSource: 'x', groundTruth: i, extraInfo: {} });
  return {
    batchesPerEpoch: 4,
    next: async () => {
      const first = 3 * at;
      const epoch = Math.floor(at++ / 4);
      return { prompts: [prompt(first), prompt(first + 1), prompt(first + 2)], epoch };
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
  expect(stream.position()).toEqual({ loader: { at: 0 }, queue: { batch: 1, left: [] } });
  const prompts = await take(stream, 13);
  expect(ids(prompts)).toEqual([...Array(13).keys()]);
  const [, , , , fifth] = prompts;
  expect([fifth?.batch, fifth?.index, fifth?.siblings.length]).toEqual([2, 1, 3]);
  expect(prompts.map(({ epoch }) => epoch)).toEqual([...Array(12).fill(0), 1]);
});

test('a run goes on with the prompts that are left, in their order, and with no others', async () => {
  const stream = new PromptStream(source(), 0);
  const prompts = await take(stream, 8);
  for (const i of [0, 2, 3, 4, 5, 7]) stream.done(prompts[i] as StreamedPrompt);
  // Prompt 8 has been read, and nobody has asked for it.
  const position = stream.position();
  expect(position).toEqual({ loader: { at: 0 }, queue: { batch: 1, left: [[1], [], [0, 2]] } });
  const again = source();
  again.restore(position.loader);
  const resumed = new PromptStream(again, 2, position.queue);
  expect(ids(await take(resumed, 5))).toEqual([1, 6, 8, 9, 10]);
  expect(resumed.position().queue).toEqual({ batch: 1, left: [[1], [], [0, 2], [0, 1, 2]] });
});

test('what is done with is forgotten from the front', async () => {
  const stream = new PromptStream(source(), 0);
  const prompts = await take(stream, 9);
  for (const prompt of prompts.slice(0, 3)) stream.done(prompt);
  expect(stream.position()).toEqual({
    loader: { at: 1 },
    queue: {
      batch: 2,
      left: [
        [0, 1, 2],
        [0, 1, 2],
      ],
    },
  });
  for (const prompt of prompts.slice(3)) stream.done(prompt);
  expect(stream.position()).toEqual({ loader: { at: 3 }, queue: { batch: 4, left: [] } });
});

test('a run that has taken a batch per step so far goes on behind these', async () => {
  const stream = new PromptStream(source(5), 5);
  const [next] = await take(stream, 1);
  expect([next?.batch, next?.prompt.tokens]).toEqual([6, [15]]);
});
