// Arguments of the public API, as they come from JavaScript.
import { join } from 'node:path';
import { Actor } from '../../../ts/actor/actor';
import { Batch } from '../../../ts/batch/batch';
import { WorkerGroup } from '../../../ts/controller/worker_group';
import { Critic } from '../../../ts/critic/critic';
import { FakeGroup } from '../../unit/actor/fake_group';
import type { Cases, HostileCase } from './case';

const MODEL = join(__dirname, '../../fixtures/conformance/models/llama_gqa/actor');
const BAD: readonly unknown[] = [null, {}, 'x', 5];

const shown = (value: unknown): string => JSON.stringify(value) ?? String(value);
const create = (more: object = {}): Promise<Actor> =>
  Actor.create({ model: MODEL, group: new FakeGroup().asGroup(), ...more } as Parameters<
    typeof Actor.create
  >[0]);

/** Options of an engine that no engine has. */
const OPTIONS: readonly [object, string][] = [
  [{ worldSize: 1e9 }, 'worldSize'],
  [{ worldSize: 0 }, 'worldSize'],
  [{ worldSize: '2' }, 'worldSize'],
  [{ numThreads: 1e6 }, 'numThreads'],
  [{ numThreads: 0 }, 'numThreads'],
  [{ numThreads: Number.NaN }, 'numThreads'],
  [{ maxTokensPerMicroBatch: 2 ** 40 }, 'maxTokensPerMicroBatch'],
  [{ optim: { lr: Number.POSITIVE_INFINITY } }, 'lr'],
  [{ optim: { lr: Number.NaN } }, 'lr'],
  [{ optim: { betas: [0.9] } }, 'betas'],
  [{ optim: { betas: null } }, 'betas'],
  [{ optim: { betas: [0.9, 'x'] } }, 'betas[1]'],
  [{ optim: { eps: -1 } }, 'eps'],
  [{ optim: 5 }, 'optim'],
  [{ lora: { rank: 1e9 } }, 'rank'],
  [{ lora: { rank: 1, alpha: Number.POSITIVE_INFINITY } }, 'alpha'],
  [{ lora: null }, 'lora'],
  [{ parallel: null }, 'parallel'],
  [{ parallel: { ulysses: 1e9 } }, 'ulysses'],
  [{ offload: 5 }, 'offload'],
  [{ seed: -1 }, 'seed'],
  [{ model: '' }, 'model'],
  [{ model: 5 }, 'model'],
  [{ model: null }, 'model'],
  [{ ['\u001b[31m'.repeat(1000)]: 1 }, 'unknown option'],
  [{ ['x'.repeat(1_000_000)]: 1 }, 'unknown option'],
];

const SAMPLING: readonly [unknown, string][] = [
  [null, 'generate'],
  [{}, 'maxNewTokens'],
  [{ maxNewTokens: 1e12 }, 'maxNewTokens'],
  [{ maxNewTokens: 1, n: 1e9 }, 'n'],
  [{ maxNewTokens: 1, n: 65_536 }, 'n'],
  [{ maxNewTokens: 1, temperature: 1e-300 }, 'temperature'],
  [{ maxNewTokens: 1, temperature: Number.POSITIVE_INFINITY }, 'temperature'],
  [{ maxNewTokens: 1, topP: 2 }, 'topP'],
  [{ maxNewTokens: 1, stopTokenIds: 'x' }, 'stopTokenIds'],
  [{ maxNewTokens: 1, seed: 1.5 }, 'seed'],
];

const b = (): Batch => Batch.fromSequences([[1], [2]], [[3], [4]]);
const not = (value: unknown): never => value as never;

const BATCHES: readonly [string, () => unknown, string][] = [
  ...BAD.map((bad): [string, () => unknown, string] => [
    `fromSequences(${shown(bad)}, ...)`,
    () => Batch.fromSequences(not(bad), not(bad)),
    'fromSequences',
  ]),
  ...BAD.map((bad): [string, () => unknown, string] => [
    `fromRagged(${shown(bad)})`,
    () => Batch.fromRagged(not(bad)),
    'fromRagged',
  ]),
  ...BAD.map((bad): [string, () => unknown, string] => [
    `fromPadded(${shown(bad)})`,
    () => Batch.fromPadded(not(bad)),
    'fromPadded',
  ]),
  ...BAD.map((bad): [string, () => unknown, string] => [
    `concat(${shown(bad)})`,
    () => Batch.concat(not(bad)),
    'concat',
  ]),
  ['a prompt of null', () => Batch.fromSequences([not(null)], [[1]]), 'prompt 0'],
  ['a response of a word', () => Batch.fromSequences([[1]], [not('abc')]), 'response 0'],
  ['a token of a word', () => Batch.fromSequences([[not('a')]], [[1]]), 'prompt 0'],
  ['a token of 2^40', () => Batch.fromSequences([[2 ** 40]], [[1]]), 'prompt 0'],
  ['fewer responses', () => Batch.fromSequences([[1], [2]], [[1]]), 'responses'],
  ['repeat(1e9)', () => b().repeat(1e9), 'repeat'],
  ['repeat(-1)', () => b().repeat(-1), 'repeat'],
  ['padToDivisor(1e12)', () => b().padToDivisor(1e12), 'padToDivisor'],
  ['chunk(0)', () => b().chunk(0), 'chunk'],
  ['take(null)', () => b().take(not(null)), 'take'],
  ['take([5])', () => b().take([5]), 'index 5'],
  ['with(null)', () => b().with(not(null)), 'with'],
  ['get of nothing', () => b().get('nothing'), "'nothing'"],
];

export const argumentCases: Cases = () => {
  const cases: HostileCase[] = OPTIONS.map(([options, place], i) => ({
    name: `engine option ${i}: ${place}`,
    place: [place],
    run: () => create(options),
  }));
  for (const [options, place] of SAMPLING) {
    cases.push({
      name: `generate(prompts, ${shown(options)})`,
      place: [place],
      run: async () => (await create()).generate(new Array(1000).fill([1]), not(options)),
    });
  }
  for (const [name, run, place] of BATCHES) cases.push({ name, place: [place], run });
  for (const bad of BAD) {
    const verbs: [string, (batch: never) => Promise<unknown>][] = [
      ['computeLogProb', async (batch) => (await create()).computeLogProb(batch)],
      ['updatePolicy', async (batch) => (await create()).updatePolicy(batch)],
      ['updateSft', async (batch) => (await create()).updateSft(batch)],
      ['generate', async (prompts) => (await create()).generate(prompts, { maxNewTokens: 1 })],
      [
        'computeValues',
        async (batch) =>
          (await Critic.create({ model: MODEL, group: new FakeGroup().asGroup() })).computeValues(batch),
      ],
    ];
    for (const [verb, call] of verbs)
      cases.push({ name: `${verb}(${shown(bad)})`, place: [verb], run: () => call(not(bad)) });
  }
  cases.push(
    { name: 'create(null)', place: ['actor options'], run: () => Actor.create(not(null)) },
    {
      name: 'a group of 1e9 workers',
      place: ['worldSize'],
      run: () => WorkerGroup.launch({ worldSize: 1e9, device: 'cpu' }),
    },
    {
      name: 'a group with a million threads',
      place: ['numThreads'],
      run: () => WorkerGroup.launch({ worldSize: 1, device: 'cpu', numThreads: 1e6 }),
    },
  );
  return cases;
};
