import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { workersOf } from '../helpers/e2e_process';
import { modelTensors, VOCABULARY, Workspace, writeModel } from '../helpers/e2e_workspace';

// What a script meets that gives an actor a batch it cannot work on: an error before any work starts, and an actor that
// goes on.

let workspace: Workspace;
let actor: Actor;
beforeAll(async () => {
  workspace = await Workspace.create();
  const model = workspace.file('model');
  actor = await Actor.create({ model, optim: { lr: 0 }, maxTokensPerMicroBatch: 16, device: 'cpu' });
});
afterAll(async () => {
  await actor.close();
  workspace.remove();
});

const good = (): Batch =>
  Batch.fromSequences(
    [
      [2, 3],
      [4, 5],
      [6, 7],
    ],
    [[8], [9, 10], [11]],
  );
const updatable = (): Batch => {
  const perToken = new Float32Array(good().numResponseTokens).fill(-1);
  return good().with({ oldLogProbs: perToken, advantages: perToken });
};

const CASES: readonly [string, () => Promise<unknown>, string[]][] = [
  [
    'a token id beyond the vocabulary',
    () => actor.computeLogProb(Batch.fromSequences([[2, 3], [2]], [[4], [5, VOCABULARY]])),
    ['sequence 1, position 2', `token id ${VOCABULARY}`, `0 to ${VOCABULARY - 1}`],
  ],
  [
    'a negative token id',
    () => actor.updatePolicy(Batch.fromSequences([[2, -1]], [[4]])),
    ['sequence 0, position 1', 'token id -1'],
  ],
  [
    'a token id beyond the vocabulary in a prompt',
    () => actor.generate([[2], [3, 99]], { maxNewTokens: 2 }),
    ['sequence 1, position 1', 'token id 99'],
  ],
  [
    'a stop id beyond the vocabulary',
    () => actor.generate([[2]], { maxNewTokens: 2, stopTokenIds: [77] }),
    ['stopTokenIds', '77'],
  ],
  [
    'a sequence longer than the capacity',
    () =>
      actor.computeLogProb(Batch.fromSequences([[2], new Array(10).fill(2)], [[3], new Array(7).fill(3)])),
    ['sequence 1', '17 tokens', 'maxTokensPerMicroBatch = 16'],
  ],
  [
    'a sequence longer than the model',
    () => actor.generate([[2]], { maxNewTokens: 64 }),
    ['prompt 0', '64 positions'],
  ],
  [
    'a mini-batch that does not divide',
    () => actor.updatePolicy(updatable(), { miniBatchSize: 2 }),
    ['miniBatchSize', '3 sequences', 'mini-batches of 2'],
  ],
  ['a missing column', () => actor.updatePolicy(good()), ["'oldLogProbs'"]],
  [
    'an unknown option',
    () => actor.updatePolicy(updatable(), { minibatchSize: 2 } as object),
    ["'minibatchSize'", "'miniBatchSize'"],
  ],
  [
    'an unknown loss',
    () => actor.updatePolicy(updatable(), { loss: { mode: 'vanila' } }),
    ['vanila', 'vanilla'],
  ],
];

it.each(CASES)('%s', async (_, call, says) => {
  const error = await call().then(
    () => null,
    (reason: unknown) => reason as { code: string; message: string },
  );
  expect(error).toMatchObject({ code: 'INVALID_ARGUMENT' });
  for (const part of says) expect(error?.message).toContain(part);
});

it('a model with NaN in its weights: no actor, and no worker left behind', async () => {
  const before = workersOf(process.pid);
  const tensors = modelTensors();
  tensors[0]!.data[0] = Number.NaN;
  const model = await writeModel(workspace.file('nan'), { tensors });
  await expect(Actor.create({ model, device: 'cpu' })).rejects.toMatchObject({
    code: 'NON_FINITE',
    message: expect.stringContaining(tensors[0]!.name),
  });
  expect(workersOf(process.pid)).toEqual(before);
});

it('and the actor goes on', async () => {
  const { logProbs } = await actor.computeLogProb(good());
  expect(logProbs).toHaveLength(4);
  expect(Array.from(logProbs).every((x) => x < 0)).toBe(true);
  expect(await actor.updatePolicy(updatable())).toMatchObject({ 'actor/lr': 0 });
});
