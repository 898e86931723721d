import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor, type ActorOptions } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { loadModelDirectory } from '../../ts/checkpoint/model_dir';
import { WorkerGroup } from '../../ts/controller/worker_group';
import type { NativeModelConfig } from '../../ts/native/bridge';
import type { RolloutStats } from '../../ts/rollout/engine';
import type { NativeRolloutConfig } from '../../ts/rollout/native/native_options';
import type { RolloutRequest, RolloutResult } from '../../ts/rollout/request';
import { CONFORMANCE } from '../helpers/conformance';
import { modelTensors, writeModel } from '../helpers/e2e_workspace';
import { OWN_PRODUCTS } from '../helpers/processor';

// What holds whatever else runs, for every model of the conformance tests: greedy and sampled requests have the tokens that they have
// alone, and the bits of their log-probs, which are those of computeLogProb; over latents they are these to rounding.
const MODELS = path.join(CONFORMANCE, 'models');
const PAGE_POSITIONS = 32;
const REQUESTS = 64;
const MOST_TOKENS = 26;
/** Of a sequence; models that know fewer have shorter ones. */
const MOST_POSITIONS = 96;
/** How a request samples, by its number. */
const SAMPLINGS = [
  { temperature: 0 },
  { temperature: 0.8 },
  { temperature: 1, topP: 0.9 },
  { temperature: 1, topK: 20 },
] as const;

/** Every eighth request begins with the same page. */
const beginsWithPage = (request: number): boolean => request % 8 === 7;

/** Prompts of up to three pages, in tokens that all models have. */
function requests(maxPositions: number): RolloutRequest[] {
  const longest = Math.min(maxPositions, MOST_POSITIONS) - MOST_TOKENS;
  return Array.from({ length: REQUESTS }, (_, i) => {
    const length = beginsWithPage(i) ? PAGE_POSITIONS + 1 + (i % 5) : 1 + ((i * 11) % longest);
    const salt = (at: number): number => (beginsWithPage(i) && at < PAGE_POSITIONS ? 0 : i);
    return {
      promptIds: Array.from({ length }, (_, at) => 1 + ((at * 7 + salt(at) * 13 + at * at) % 119)),
      sampling: {
        ...SAMPLINGS[i % SAMPLINGS.length],
        maxNewTokens: 3 + (i % (MOST_TOKENS - 2)),
        stopTokenIds: [],
        seed: BigInt(i),
      },
    };
  });
}

interface Play {
  actor: Actor;
  list: readonly RolloutRequest[];
}

const together = ({ actor, list }: Play): Promise<RolloutResult[]> =>
  Promise.all(list.map((request) => actor.rollout.submit(request).result));

async function oneByOne({ actor, list }: Play): Promise<RolloutResult[]> {
  const results: RolloutResult[] = [];
  for (const request of list) results.push(await actor.rollout.submit(request).result);
  return results;
}

interface Way {
  way: string;
  workers: 1 | 2;
  /** `page`: bytes of a page of keys and values. */
  options(page: number): Partial<ActorOptions>;
  play(play: Play): Promise<RolloutResult[]>;
  /** That the way was taken. */
  taken?(stats: RolloutStats, results: readonly RolloutResult[]): void;
  /** How far log-probs may be from those of the requests alone, and from those of computeLogProb. */
  within: { alone: number; scored: number };
}

const BITS = { alone: 0, scored: 0 };
/** How far log-probs over latents may be from those of computeLogProb, which is over heads. */
const OVER_LATENTS = 2e-5;

/** A model, and whether latents are what is kept of its tokens. */
interface Form {
  name: string;
  model: string;
  config: NativeModelConfig;
  latentCache: boolean;
}

const FORMS = readdirSync(MODELS).flatMap((name): Form[] => {
  const model = path.join(MODELS, name, 'actor');
  const { config } = loadModelDirectory(model, 'lm');
  const heads = { name, model, config, latentCache: false };
  return config.latent === null
    ? [heads]
    : [heads, { ...heads, name: `${name}, over latents`, latentCache: true }];
});

/** Numbers that are kept of a token in a layer. */
const keptNumbers = ({ config: { latent, numKvHeads, headDim }, latentCache }: Form): number =>
  latentCache && latent !== null ? latent.keyRank + latent.rotaryDim : 2 * numKvHeads * headDim;

/** Where sums are rounded elsewhere: states of linear attention carry that on from token to token; 7e-5 was seen. */
const roundedTo = (within: number, { linear }: NativeModelConfig): number =>
  linear === null ? within : 10 * within;

const ALONE: Way = {
  way: 'alone',
  workers: 1,
  options: () => ({ rollout: { enablePrefixCaching: false } }),
  play: oneByOne,
  within: BITS,
};

/** After other responses to the same prompts, which drafts are made from: greedy ones are the same again. */
const drafted = async ({ actor, list }: Play): Promise<RolloutResult[]> => {
  const others = list.map(({ sampling, ...request }, i) => ({
    ...request,
    sampling: { ...sampling, seed: BigInt(1000 + i) },
  }));
  await together({ actor, list: others });
  return await together({ actor, list });
};

const DRAFTING: NativeRolloutConfig = {
  freeCacheEngine: false,
  speculative: {
    method: 'ngram',
    numSpeculativeTokens: 5,
    promptLookupMin: 1,
    disableByBatchSize: 100 * REQUESTS,
  },
};

const someWereRight: Way['taken'] = ({ draftedTokens, acceptedTokens }) => {
  expect(acceptedTokens).toBeGreaterThan(0);
  expect(draftedTokens).toBeGreaterThan(acceptedTokens);
};

const TP: Way = {
  way: 'tp 2',
  workers: 2,
  options: () => ({ parallel: { tp: 2 } }),
  play: together,
  // Sums of matrices that ranks share are rounded elsewhere; 1.1e-5 was seen.
  within: { alone: 2e-5, scored: 0 },
};

/** Every model has all of them: with one head of keys, as llama3_rope_tied has it, the two ranks of tp 2 have copies. */
const WAYS: readonly Way[] = [
  { way: `${REQUESTS} together`, workers: 1, options: () => ({}), play: together, within: BITS },
  {
    way: 'prompts in chunks of 16 tokens',
    workers: 1,
    options: () => ({ rollout: { maxNumBatchedTokens: 16 } }),
    play: together,
    within: BITS,
  },
  {
    way: 'preempted, with pages for a few',
    workers: 1,
    options: (page) => ({ rollout: { kvCacheBytes: 5 * page, enablePrefixCaching: false } }),
    play: together,
    taken: ({ preemptions }) => expect(preemptions).toBeGreaterThan(0),
    within: BITS,
  },
  {
    way: 'beginnings found in the cache',
    workers: 1,
    options: () => ({ rollout: { freeCacheEngine: false } }),
    play: async (play) => {
      await together(play);
      return await together(play);
    },
    taken: (_, results) => {
      for (const [i, { cachedTokens }] of results.entries())
        if (beginsWithPage(i)) expect(cachedTokens).toBeGreaterThanOrEqual(PAGE_POSITIONS);
    },
    within: BITS,
  },
  { way: 'fsdp 2', workers: 2, options: () => ({}), play: together, within: BITS },
  {
    way: 'fsdp 2 that decodes together',
    workers: 2,
    options: () => ({ rollout: { tensorParallel: 2 } }),
    play: together,
    // It is scored with whole matrices.
    within: { alone: 2e-5, scored: 2e-5 },
  },
  TP,
  {
    way: 'several tokens per step, by drafts',
    workers: 1,
    options: () => ({ rollout: DRAFTING }),
    play: drafted,
    taken: someWereRight,
    within: BITS,
  },
  {
    ...TP,
    way: 'drafts, tp 2',
    options: () => ({ parallel: { tp: 2 }, rollout: DRAFTING }),
    play: drafted,
    taken: someWereRight,
  },
];

/** What computeLogProb says of these answers: for each temperature of those that have it. */
async function scored({ actor, list }: Play, results: readonly RolloutResult[]): Promise<number[][]> {
  const found: number[][] = [];
  // Of greedy tokens the log-probs are at temperature 1.
  const temperatures = list.map(({ sampling }) => sampling.temperature || 1);
  for (const temperature of new Set(temperatures)) {
    const own = [...list.keys()].filter((i) => temperatures[i] === temperature);
    const batch = Batch.fromSequences(
      own.map((i) => (list[i] as RolloutRequest).promptIds),
      own.map((i) => (results[i] as RolloutResult).tokens),
    );
    const filled = batch.with({ logProbs: (await actor.computeLogProb(batch, { temperature })).logProbs });
    for (const [row, i] of own.entries()) found[i] = [...(filled.row('logProbs', row) as Float32Array)];
  }
  return found;
}

const tokensOf = (results: readonly RolloutResult[]): number[][] => results.map(({ tokens }) => [...tokens]);
const logProbsOf = (results: readonly RolloutResult[]): number[][] =>
  results.map(({ logProbs }) => [...logProbs]);

function expectWithin(actual: readonly number[][], expected: readonly number[][], bound: number): void {
  expect(actual.map(({ length }) => length)).toEqual(expected.map(({ length }) => length));
  const [one, other] = [actual.flat(), expected.flat()];
  expect(Math.max(...one.map((x, i) => Math.abs(x - (other[i] as number))))).toBeLessThanOrEqual(bound);
}

const groups = {} as Record<1 | 2, WorkerGroup>;
beforeAll(async () => {
  for (const worldSize of [1, 2] as const)
    groups[worldSize] = await WorkerGroup.launch({ worldSize, device: 'cpu', numThreads: 1 });
});
afterAll(async () => {
  for (const group of Object.values(groups)) await group.close();
});

/** Answers, from an engine that keeps nothing of them, with the log-probs of computeLogProb. */
async function run(form: Form, { workers, options, play, taken, within }: Way): Promise<RolloutResult[]> {
  const { model, config, latentCache } = form;
  const { numLayers, maxPositions } = config;
  const page = numLayers * keptNumbers(form) * PAGE_POSITIONS * Float32Array.BYTES_PER_ELEMENT;
  const group = groups[workers];
  const { rollout, ...others } = options(page);
  const actor = await Actor.create({
    model,
    optim: null,
    dtype: 'float32',
    group,
    ...others,
    rollout: { ...rollout, latentCache },
  });
  try {
    const own = { actor, list: requests(maxPositions) };
    const results = await play(own);
    const stats = await actor.rollout.stats();
    expect(stats).toMatchObject({ running: 0, waiting: 0, cachePositionsUsed: 0 });
    taken?.(stats, results);
    const bound = Math.max(within.scored, latentCache ? OVER_LATENTS : 0);
    if (OWN_PRODUCTS) expectWithin(logProbsOf(results), await scored(own, results), roundedTo(bound, config));
    return results;
  } finally {
    await actor.close();
  }
}

describe.each(FORMS)('$name', (form) => {
  let alone: RolloutResult[];

  test('alone, with the log-probs of computeLogProb', async () => {
    alone = await run(form, ALONE);
  });

  test.each(WAYS)('$way: as alone', async (way) => {
    const results = await run(form, way);
    expect(tokensOf(results)).toEqual(tokensOf(alone));
    expectWithin(logProbsOf(results), logProbsOf(alone), roundedTo(way.within.alone, form.config));
  });
});

(OWN_PRODUCTS ? test : test.skip)(
  'tp 2 of a vocabulary of which each part is some blocks and a rest: the bits of computeLogProb',
  async () => {
    const vocab = 1601;
    const directory = mkdtempSync(path.join(tmpdir(), 'rollout-ways-'));
    try {
      const tensors = modelTensors().map(({ name, shape, data }) => {
        if (name !== 'model.embed_tokens.weight') return { name, shape, data };
        const width = shape[1] as number;
        const wide = Float32Array.from({ length: vocab * width }, (_, i) => 0.3 * Math.sin(i * i));
        return { name, shape: [vocab, width], data: wide };
      });
      const model = await writeModel(directory, { config: { vocab_size: vocab }, tensors });
      const { config } = loadModelDirectory(model, 'lm');
      await run({ name: 'wide', model, config, latentCache: false }, TP);
    } finally {
      rmSync(directory, { recursive: true });
    }
  },
);
