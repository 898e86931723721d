import path from 'node:path';
import { Actor } from '../../../ts/actor/actor';
import { Batch } from '../../../ts/batch/batch';
import { Critic } from '../../../ts/critic/critic';
import type {
  NativeMiniBatches,
  NativePolicyLossOptions,
  NativeRolloutCommands,
  NativeRolloutOutput,
  NativeRolloutRequest,
  NativeRolloutTurn,
  NativeTokenBatch,
} from '../../../ts/native/bridge';
import { promptsBatch, sampledBatch } from '../../../ts/rollout/sampling';
import { KeptResponses, type RolloutCommands } from '../../../ts/worker/kept_responses';
import { FakeGroup } from './fake_group';

const model = path.join(__dirname, '../../fixtures/conformance/models/llama_gqa/actor');

const batch = (): Batch =>
  Batch.fromSequences([[1, 2], [3], [4, 5], [6]], [[7], [8, 9, 10], [11, 12], []], {
    responseMask: [1, 1, 0, 1, 1, 1],
    oldLogProbs: [-1, -2, -3, -4, -5, -6],
    advantages: [1, 1, 1, 1, -1, -1],
  });

const create = (group: FakeGroup, more: object = {}): Promise<Actor> =>
  Actor.create({ model, group: group.asGroup(), maxTokensPerMicroBatch: 32, ...more });

test.each([null, {}, [], 3])('verbs refuse %j, which is no batch', async (bad) => {
  const actor = await create(new FakeGroup());
  const critic = await Critic.create({ model, group: new FakeGroup().asGroup() });
  for (const verb of [
    actor.computeLogProb(bad as never),
    actor.updatePolicy(bad as never),
    actor.updateSft(bad as never),
    critic.computeValues(bad as never),
    critic.updateCritic(bad as never),
  ]) {
    await expect(verb).rejects.toThrow(/expected a Batch .* but got/);
    await expect(verb).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
  }
  await expect(actor.generate(null!, { maxNewTokens: 1 })).rejects.toThrow(/prompts: expected an array/);
});

describe('create', () => {
  test('options of the rollout that the model does not allow leave no engine behind', async () => {
    const group = new FakeGroup();
    await expect(create(group, { rollout: { quantization: 'int4' } })).rejects.toThrow(
      /quantization: expected one of int8, fp8/,
    );
    expect([group.callsOf('importTensors').length > 0, group.engines.size]).toEqual([true, 0]);
  });

  test('resolves defaults and loads the weights', async () => {
    const group = new FakeGroup();
    const actor = await create(group);
    expect(group.engines.get('actor')).toMatchObject({
      device: 'cpu',
      dtype: 'float32',
      maxTokens: 32,
      optim: { lr: 1e-6, beta2: 0.999, weightDecay: 0.01, gradClip: 1, schedule: { kind: 'constant' } },
    });
    expect(group.callsOf('importTensors')[0]?.args[0]).toBe('param');
    await actor.close();
    await actor.close();
    expect([group.engines.size, group.closed]).toEqual([0, false]);
    await expect(actor.computeLogProb(batch())).rejects.toMatchObject({ code: 'CLOSED' });
  });

  test('the reference and the critic share the workers', async () => {
    const group = new FakeGroup();
    await create(group);
    await create(group, { name: 'ref', optim: null });
    await Critic.create({ model, group: group.asGroup() });
    expect([...group.engines.keys()]).toEqual(['actor', 'ref', 'critic']);
    expect(group.engines.get('ref')).toMatchObject({ optim: null });
    expect(group.engines.get('critic')).toMatchObject({
      maxTokens: 4096,
      optim: { lr: 1e-5 },
      model: { head: 'value' },
    });
    await expect(create(group)).rejects.toThrow(/exists already/);
    expect(group.engines.has('actor')).toBe(true);
  });

  test.each<[object, RegExp]>([
    [{ modle: 'x' }, /unknown option 'modle'; did you mean 'model'/],
    [{ strategy: 'zero' }, /strategy: expected one of fsdp, megatron but got "zero"/],
    [{ device: 'cuda' }, /device 'cuda': the workers of the given group were started for 'cpu'/],
    [{ dtype: 'fp8' }, /dtype: expected one of float32, bfloat16/],
    [{ optim: { learningRate: 1 } }, /unknown option 'learningRate'/],
    [{ optim: { schedule: 'cosine' } }, /totalSteps: schedule 'cosine' needs it/],
    [{ optim: { muon: { momentum: 1 } } }, /optim\.muon\] momentum: expected a number below 1, got 1/],
    [{ optim: { muon: { numNsStep: 5 } } }, /unknown option 'numNsStep'; did you mean 'numNsSteps'/],
    [{ optim: { muon: { scaleMode: 'rms' } } }, /scaleMode: expected one of spectral, unit_rms_norm/],
    [{ optim: { muon: { coefficientType: 'aol' } } }, /numNsSteps: expected at most 4: aol has 4/],
    [{ optim: { muon: {} }, masterDtype: 'bfloat16' }, /muon: its steps are of float32/],
    [{ parallel: { tp: 2 } }, /parallel.tp 2: expected tp\(2\) x dp = worldSize\(1\)/],
    [{ parallel: { pp: 2 } }, /parallel.pp 2: expected a divisor of worldSize = 1/],
    [{ parallel: { sharding: 'zero' } }, /parallel.sharding: expected one of full_shard, shard_grad_op/],
    [{ parallel: { ulysses: 2 } }, /parallel.ulysses 2: expected a divisor of worldSize = 1/],
    [{ parallel: { ulysses: 0 } }, /parallel.ulysses 0: expected a divisor of worldSize = 1/],
    [{ parallel: { fsdpSize: 0 } }, /parallel.fsdpSize 0: expected -1, a divisor of worldSize = 1/],
    [{ worldSize: 1e9 }, /worldSize: expected an integer from 1 to 65536 but got 1000000000/],
    [{ numThreads: 1e6 }, /numThreads: expected an integer from 1 to 1024 but got 1000000/],
    [{ numThreads: 0 }, /numThreads: expected an integer from 1 to 1024 but got 0/],
    [{ optim: { lr: Infinity } }, /lr: expected a number from 0 to 1000000 but got Infinity/],
    [{ optim: { betas: [0.9] } }, /betas: expected two numbers from 0 and below 1 but got \[0.9\]/],
    [{ optim: { betas: [0.9, 1] } }, /betas\[1\]: expected a number below 1, got 1/],
    [
      { maxTokensPerMicroBatch: 0 },
      /maxTokensPerMicroBatch: expected an integer from 1 to 2147483647 but got 0/,
    ],
  ])('refuses %j', async (more, message) => {
    await expect(create(new FakeGroup(), more)).rejects.toThrow(message);
  });
});

describe('checks before any work', () => {
  test.each<[string, Batch, RegExp]>([
    [
      'vocabulary',
      Batch.fromSequences([[1], [2]], [[3], [4, 150]]),
      /sequence 1, position 2: token id 150 is outside .*\(0 to 149\)/,
    ],
    [
      'capacity',
      Batch.fromSequences([[1], new Int32Array(40)], [[1], [2]]),
      /sequence 1 has 41 tokens, more than maxTokensPerMicroBatch = 32/,
    ],
    [
      'positions',
      Batch.fromSequences([new Int32Array(128)], [[2]]),
      /sequence 0 has 129 tokens, more than the 128 positions/,
    ],
  ])('%s', async (_name, b, message) => {
    const group = new FakeGroup();
    const actor = await create(group);
    await expect(actor.computeLogProb(b)).rejects.toThrow(message);
    expect(group.callsOf('computeLogProb')).toEqual([]);
  });

  test('updates', async () => {
    const actor = await create(new FakeGroup());
    const b = batch();
    await expect(actor.updatePolicy(b, { miniBatchSize: 3 })).rejects.toThrow(
      /4 sequences do not divide into mini-batches of 3 \(remainder 1\)/,
    );
    await expect(actor.updatePolicy(b.drop('advantages'))).rejects.toThrow(/no column 'advantages'/);
    await expect(actor.updatePolicy(b, { loss: { useKlLoss: true } })).rejects.toThrow(
      /no column 'refLogProbs'/,
    );
    await expect(actor.updatePolicy(b, { minibatchSize: 2 } as never)).rejects.toThrow(
      /did you mean 'miniBatchSize'/,
    );
    await expect(actor.updatePolicy(b, { loss: { clipRatioHi: 1 } })).rejects.toThrow(
      /did you mean 'clipRatioHigh'/,
    );
    await expect(actor.updatePolicy(b, { loss: { klLossType: 'k9' } })).rejects.toThrow(
      /klLossType: expected one of kl, /,
    );
    await expect(actor.updatePolicy(b.slice(0, 0))).rejects.toThrow(/no sequence/);
    const inference = await create(new FakeGroup(), { optim: null });
    await expect(inference.updatePolicy(b)).rejects.toThrow(/optim: null/);
  });
});

test.each(['oldLogProbs', 'advantages', 'refLogProbs', 'rolloutIsWeights', 'values', 'returns'])(
  'NaN in %s is found before any work',
  async (name) => {
    const group = new FakeGroup();
    const [actor, critic] = [await create(group), await Critic.create({ model, group: group.asGroup() })];
    const columns = ['oldLogProbs', 'advantages', 'refLogProbs', 'rolloutIsWeights', 'values', 'returns'];
    const zeros = batch().responseOffsets.at(-1) as number;
    const column = (other: string): number[] =>
      Array.from({ length: zeros }, (_, i) => (other === name && i === 2 ? Number.NaN : 0));
    const b = Batch.fromSequences(
      [0, 1, 2, 3].map((i) => [...batch().prompt(i)]),
      [0, 1, 2, 3].map((i) => [...batch().response(i)]),
      Object.fromEntries(columns.map((other) => [other, column(other)])),
    );
    const update = ['values', 'returns'].includes(name)
      ? critic.updateCritic(b)
      : actor.updatePolicy(b, { loss: { useKlLoss: true } });
    await expect(update).rejects.toThrow(`column '${name}'`);
    expect([...group.callsOf('updatePolicy'), ...group.callsOf('updateCritic')]).toEqual([]);
  },
);

describe('updatePolicy', () => {
  test('sends mini-batches with global counts and reduces the metrics', async () => {
    const records = [
      { pg_loss: 1, max_ratio: 2, lr: 0.5, update_skipped: 0, entropy: 3, entropy_loss: 3 },
      { pg_loss: 3, max_ratio: 1, lr: 0.25, update_skipped: 1, entropy: 5, entropy_loss: 5 },
    ];
    const group = new FakeGroup({ updatePolicy: () => records });
    const actor = await create(group, { peakTflops: 1 });
    const metrics = await actor.updatePolicy(batch(), {
      miniBatchSize: 2,
      ppoEpochs: 2,
      temperature: 0.5,
      loss: { aggregation: 'seq-mean-token-sum-norm', clipRatioHigh: 0.28, tauPos: 2 },
    });
    const [sent, mini, loss, temperature] = group.callsOf('updatePolicy')[0]!.args as [
      { tokens: NativeTokenBatch; refLogProbs: null },
      NativeMiniBatches,
      NativePolicyLossOptions,
      number,
    ];
    expect(mini).toEqual({ offsets: [0, 2, 4], globalTokens: [3, 2], globalSequences: [2, 2], epochs: 2 });
    expect(loss).toMatchObject({
      scaleFactor: 3,
      clipRatioLow: 0.2,
      clipRatioHigh: 0.28,
      extra: { tau_pos: 2 },
    });
    expect([temperature, sent.refLogProbs]).toEqual([0.5, null]);
    expect([...sent.tokens.seqOffsets]).toEqual([0, 3, 7, 11, 12]);
    expect(metrics).toMatchObject({
      'actor/pg_loss': 2,
      'actor/max_ratio': 2,
      'actor/lr': 0.5,
      'actor/update_skipped': 1,
      'actor/entropy': 4,
      'actor/entropy_loss': 4,
      'perf/max_memory_allocated_gb': 1,
    });
    expect(metrics['perf/mfu/actor']).toBeGreaterThan(0);
  });

  test('one scale factor for all mini-batches, or the one given', async () => {
    const group = new FakeGroup({ updatePolicy: () => [{}] });
    const actor = await create(group);
    await actor.updatePolicy(batch(), { loss: { aggregation: 'seq-mean-token-sum-norm', scaleFactor: 20 } });
    await actor.updatePolicy(batch());
    expect(
      group.callsOf('updatePolicy').map((c) => (c.args[2] as NativePolicyLossOptions).scaleFactor),
    ).toEqual([20, 0]);
  });
});

describe('generate', () => {
  type Answer = (request: NativeRolloutRequest) => number[];
  const stats = { pages: 100, pagesHeld: 0, running: 0 };
  const output = (request: NativeRolloutRequest, tokens: number[]): Partial<NativeRolloutOutput> => ({
    id: request.id,
    tokens: Int32Array.from(tokens),
    logProbs: Float32Array.from(tokens, (id) => -id),
    finish: 'length',
    error: null,
    promptLogProbs: null,
    routedExperts: null,
    version: 0,
    cachedTokens: 0,
    needsMask: false,
  });
  /** What the engines of the ranks were given in each turn. */
  let turns: NativeRolloutRequest[][] = [];
  /** Ranks that answer every request at once. */
  const sampler = (answer: Answer, worldSize = 1): FakeGroup => {
    turns = [];
    const kept = new KeptResponses();
    return new FakeGroup(
      {
        openRollout: () => stats,
        rolloutTurn: (commands: RolloutCommands) =>
          kept.turn(commands, async ({ submit }: NativeRolloutCommands) => {
            turns.push(submit);
            const outputs = submit.map((request) => output(request, answer(request)));
            return { outputs, stats, ready: true, idle: true } as NativeRolloutTurn;
          }),
        takeRollout: (firstId: number) => kept.take(firstId),
      },
      worldSize,
    );
  };
  const submitted = (): NativeRolloutRequest[] => turns.flat();

  test('groups samples by prompt', async () => {
    let next = 0;
    const group = sampler(() => [next++]);
    const actor = await create(group);
    const b = await actor.generate([[10], [20, 21]], { maxNewTokens: 4, n: 2 });
    expect([0, 1, 2, 3].map((i) => [...b.prompt(i), ...b.response(i)])).toEqual([
      [10, 0],
      [10, 1],
      [20, 21, 2],
      [20, 21, 3],
    ]);
    expect([...b.get('rolloutLogProbs')]).toEqual([-0, -1, -2, -3]);
    expect([...b.get('responseMask')]).toEqual([1, 1, 1, 1]);
    expect(submitted()[0]).toMatchObject({
      prompt: Int32Array.of(10),
      sampling: { maxNewTokens: 4, temperature: 1, topK: 0, topP: 1, minP: 0, stopTokenIds: [149] },
    });
    expect(group.calls.map(({ method }) => method).filter((name) => name.endsWith('Rollout'))).toEqual([
      'openRollout',
      'beginRollout',
      'takeRollout',
      'parkRollout',
    ]);
  });

  test('what the ranks generated comes back in the order of the prompts, whatever the lengths', async () => {
    // The sample's length is the prompt's first token.
    const answer: Answer = ({ prompt }) => new Array(prompt[0]).fill(prompt[0]);
    const group = sampler(answer, 3);
    const actor = await create(group);
    const prompts = [[3], [0, 9], [2], [1, 1, 1]];
    const b = await actor.generate(prompts, { maxNewTokens: 4, n: 2 });
    const twice = prompts.flatMap((prompt) => [prompt, prompt]);
    expect(twice.map((_, i) => [...b.prompt(i)])).toEqual(twice);
    expect(twice.map((_, i) => [...b.response(i)])).toEqual(
      twice.map(([id]) => new Array(id as number).fill(id)),
    );
    // All ranks have work, and samples of a prompt are together.
    const served = turns.filter((submit) => submit.length > 0);
    expect(served).toHaveLength(3);
    expect(served.map((submit) => submit.length % 2)).toEqual([0, 0, 0]);
  });

  test('more tokens than a batch holds are an error before they are joined', () => {
    const sample = { tokens: { length: 2 ** 30 } as Int32Array, logProbs: new Float32Array(0) };
    const prompts = promptsBatch('generate', [[1], [2]], 1);
    expect(() => sampledBatch(prompts, 1, [sample, sample])).toThrow(
      /at most 2\^31-1 tokens, exceeded at sequence 1 of 2/,
    );
  });

  test('seeds depend on seed, prompt and how often it came before, not on the batch', async () => {
    const group = sampler(() => [1]);
    const actor = await create(group);
    const seeds = async (prompts: number[][], seed = 0): Promise<bigint[]> => {
      const before = submitted().length;
      await actor.generate(prompts, { maxNewTokens: 1, n: 2, seed });
      return submitted()
        .slice(before)
        .map(({ seedAndSalt }) => seedAndSalt[0] as bigint);
    };
    const [a0, a1, b0, b1] = await seeds([[1], [2]]);
    expect(new Set([a0, a1, b0, b1]).size).toBe(4);
    expect(await seeds([[2], [3], [1]])).toEqual(expect.arrayContaining([a0, a1, b0, b1]));
    expect((await seeds([[2], [1]])).slice(0, 2)).toEqual([b0, b1]);
    const twice = await seeds([[1], [1]]);
    expect(twice.slice(0, 2)).toEqual([a0, a1]);
    expect(new Set(twice).size).toBe(4);
    expect(await seeds([[1], [2]], 1)).not.toEqual([a0, a1, b0, b1]);
  });

  test.each<[object, RegExp]>([
    [{}, /maxNewTokens: expected an integer from 1 to 16777216, but it is not given/],
    [{ maxNewTokens: 200 }, /prompt 0 has 1 tokens and maxNewTokens is 200: the engine has room for 128 /],
    [{ maxNewTokens: 1, topP: 0 }, /topP: expected a number > 0 and <= 1 but got 0/],
    [{ maxNewTokens: 1, temperature: -1 }, /temperature: expected 0 \(greedy\), or a number from 0.000001/],
    [
      { maxNewTokens: 1, temperature: 1e-300 },
      /temperature: expected 0 \(greedy\), or a number from 0.000001/,
    ],
    [{ maxNewTokens: 1, n: 1e9 }, /n: expected an integer from 1 to 65536 but got 1000000000/],
    [{ maxNewTokens: 1, stopTokenIds: [150] }, /stopTokenIds: 150 is outside the vocabulary of 150/],
    [{ maxNewTokens: 1, top_k: 3 }, /unknown option 'top_k'; did you mean 'topK'/],
  ])('refuses %j', async (options, message) => {
    const actor = await create(sampler(() => []));
    await expect(actor.generate([[1]], options as never)).rejects.toThrow(message);
  });
});
