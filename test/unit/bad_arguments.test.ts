// Values of every kind to everything that computes without workers: an error of ours, or a result, and never one from inside.
import {
  Actor,
  applyKlPenalty,
  Batch,
  balanceOrder,
  Critic,
  checkPolicyLoss,
  computeAdvantages,
  createKlController,
  joinCalls,
  karmarkarKarp,
  klPenalty,
  type PolicyLossFunction,
  PythonSandbox,
  policyLoss,
  ResourcePools,
  RewardModel,
  registerAdvantageEstimator,
  registerPolicyLoss,
  rewardByDataSource,
  rolloutCorrection,
  rolloutCorrectionPreset,
  scoreFunctionCalling,
  scoreGsm8k,
  scoreMath,
  scoreMathDapo,
  scorePrimeMath,
  scoreQaEm,
  scoreRlla,
  scoreSearchR1,
  sequenceWorkload,
  valueLoss,
  WorkerGroup,
} from '../../ts';
import { show } from '../../ts/base/text';
import { BAD_VALUES, detached } from '../helpers/bad_values';

const given = (value: unknown): never => value as never;
const errorOf = (run: () => unknown): { code?: string; message?: string } | null => {
  try {
    run();
  } catch (error) {
    return error as Error;
  }
  return null;
};

const batch = Batch.fromSequences([[1, 2], [3]], [[4, 5], [6]], {
  oldLogProbs: [[-1, -2], [-1]],
  refLogProbs: [[-1, -2], [-1]],
  rolloutLogProbs: [[-1, -2], [-1]],
  tokenScores: [[0, 1], [1]],
  tokenRewards: [[0, 1], [1]],
  values: [[0, 1], [1]],
  uid: ['a', 'a'],
});
const scored = batch.drop('tokenRewards');
const padded = { inputIds: [0, 1, 2, 3], attentionMask: [0, 1, 1, 0], responseLength: 2, batchSize: 1 };
const ragged = { tokens: [1, 2], promptLens: [1], responseLens: [1] };
const perSequence = (name: string, value: unknown): Batch =>
  batch.with({ [name]: [value, value] }, { granularity: { [name]: 'sequence' } });
const linear: PolicyLossFunction = ({ logProbs }) => ({
  loss: Array.from(logProbs),
  gradLogProbs: Array.from(logProbs, () => 1),
});
const adaptive = (): ReturnType<typeof createKlController> => createKlController({ type: 'adaptive' });
const call = (name: string, ...args: unknown[]): unknown =>
  (batch as unknown as Record<string, (...args: unknown[]) => unknown>)[name]?.(...args);

type Use = (value: never, name: string) => unknown;

const uses: [string, Use][] = [
  ['Batch.fromPadded', (v) => Batch.fromPadded(v)],
  ...[
    'inputIds',
    'attentionMask',
    'responseLength',
    'responseMask',
    'columns',
    'granularity',
    'batchSize',
  ].map((key): [string, Use] => [
    `Batch.fromPadded ${key}`,
    (v) => Batch.fromPadded(given({ ...padded, [key]: v })),
  ]),
  ['Batch.fromPadded columns.x', (v) => Batch.fromPadded({ ...padded, columns: { x: v } })],
  ['Batch.fromPadded columns.values', (v) => Batch.fromPadded({ ...padded, columns: { values: v } })],
  ['Batch.fromSequences prompts', (v) => Batch.fromSequences(v, [[1]])],
  ['Batch.fromSequences responses', (v) => Batch.fromSequences([[1], [1], [1]], v)],
  ['Batch.fromSequences prompts[0]', (v) => Batch.fromSequences([v], [[1]])],
  ['Batch.fromSequences prompts[0][0]', (v) => Batch.fromSequences([[v]], [[1]])],
  ['Batch.fromSequences columns', (v) => Batch.fromSequences([[1]], [[1]], v)],
  ['Batch.fromSequences columns.x', (v) => Batch.fromSequences([[1]], [[1, 2]], { x: v })],
  ['Batch.fromSequences oldLogProbs', (v) => Batch.fromSequences([[1]], [[1]], { oldLogProbs: [v] })],
  ['Batch.fromSequences images', (v) => Batch.fromSequences([[1]], [[1]], { images: v })],
  ['Batch.fromSequences images[0]', (v) => Batch.fromSequences([[1]], [[1]], { images: [v] })],
  ['Batch.fromSequences images[0][0]', (v) => Batch.fromSequences([[1]], [[1]], { images: [[v]] })],
  ['Batch.fromSequences options', (v) => Batch.fromSequences([[1]], [[1]], {}, v)],
  ['Batch.fromSequences granularity', (v) => Batch.fromSequences([[1]], [[1]], {}, { granularity: v })],
  [
    'Batch.fromSequences granularity.x',
    (v) => Batch.fromSequences([[1]], [[1]], {}, { granularity: { x: v } }),
  ],
  ['Batch.fromSequences adopt', (v) => Batch.fromSequences([[1]], [[1]], {}, { adopt: v })],
  ['Batch.fromRagged', (v) => Batch.fromRagged(v)],
  ...['tokens', 'promptLens', 'responseLens', 'columns'].map((key): [string, Use] => [
    `Batch.fromRagged ${key}`,
    (v) => Batch.fromRagged(given({ ...ragged, [key]: v })),
  ]),
  ['Batch.concat', (v) => Batch.concat(v)],
  ['Batch.concat of one', (v) => Batch.concat([batch, v])],
  ...[
    'has',
    'get',
    'granularity',
    'prompt',
    'response',
    'toPadded',
    'with',
    'withResponseMask',
    'select',
    'drop',
  ]
    .concat([
      'pop',
      'rename',
      'slice',
      'take',
      'reorder',
      'chunk',
      'split',
      'repeat',
      'padToDivisor',
      'unpad',
    ])
    .map((name): [string, Use] => [`batch.${name}`, (v) => call(name, v)]),
  ['batch.row', (v) => batch.row('values', v)],
  ['batch.minibatches', (v) => [...batch.minibatches(v)]],
  ['batch.minibatches epochs', (v) => batch.minibatches(1, v).next()],
  ['batch.toPadded responseLength', (v) => batch.toPadded('values', v)],
  ['batch.toPadded padValue', (v) => batch.toPadded('values', 3, v)],
  ['batch.with a column', (v) => batch.with({ x: v })],
  ['batch.rename a column', (v) => batch.rename({ values: v })],
  ['batch.repeat order', (v) => batch.repeat(2, v)],
  ['karmarkarKarp lengths', (v) => karmarkarKarp(v, 1, false)],
  ['karmarkarKarp length', (v) => karmarkarKarp([v], 1, false)],
  ['karmarkarKarp k', (v) => karmarkarKarp([1, 2, 3], v, false)],
  ['karmarkarKarp equalSize', (v) => karmarkarKarp([1, 2, 3], 3, v)],
  ['balanceOrder lengths', (v) => balanceOrder(v, 1)],
  ['balanceOrder length', (v) => balanceOrder([v], 1)],
  ['sequenceWorkload', (v) => sequenceWorkload(v)],
  ['computeAdvantages name', (v) => computeAdvantages(v, batch)],
  ['computeAdvantages batch', (v) => computeAdvantages('grpo', v)],
  ['computeAdvantages config', (v) => computeAdvantages('grpo', batch, v)],
  ...['gamma', 'normAdvByStdInGrpo', 'gdpoRewardKeys', 'gdpoRewardWeights', 'gpgFNorm', 'kwargs'].map(
    (key): [string, Use] => [
      `computeAdvantages ${key}`,
      (v) => computeAdvantages('gdpo', perSequence('rewardComponents', { a: 1 }), { [key]: v }),
    ],
  ),
  ['rewardComponents', (v) => computeAdvantages('gdpo', perSequence('rewardComponents', v))],
  ['a reward component', (v) => computeAdvantages('gdpo', perSequence('rewardComponents', { a: v }))],
  ['a reward baseline', (v) => computeAdvantages('remax', perSequence('rewardBaselines', v))],
  ['a score', (v) => computeAdvantages('grpo', perSequence('score', v))],
  ['registerAdvantageEstimator name', (v) => registerAdvantageEstimator(v, given(5))],
  ['registerAdvantageEstimator function', (v) => registerAdvantageEstimator('vanilla', v)],
  [
    'an estimator that returns',
    (v, name) => {
      registerAdvantageEstimator(`returns ${name}`, () => v);
      computeAdvantages(`returns ${name}`, batch);
    },
  ],
  [
    'an estimator that throws',
    (v, name) => {
      registerAdvantageEstimator(`throws ${name}`, () => {
        throw v;
      });
      computeAdvantages(`throws ${name}`, batch);
    },
  ],
  ['klPenalty type', (v) => klPenalty(v, [1], [1])],
  ['klPenalty logProbs', (v) => klPenalty('kl', v, [1, 2, 3])],
  ['klPenalty refLogProbs', (v) => klPenalty('kl', [1, 2, 3], v)],
  ['klPenalty a log-prob', (v) => klPenalty('kl', [v], [1])],
  ['applyKlPenalty batch', (v) => applyKlPenalty(v, createKlController(), 'kl')],
  ['applyKlPenalty controller', (v) => applyKlPenalty(scored, v, 'kl')],
  ['applyKlPenalty type', (v) => applyKlPenalty(scored, createKlController(), v)],
  ['createKlController', (v) => createKlController(v)],
  ...['type', 'klCoef', 'targetKl', 'horizon'].map((key): [string, Use] => [
    `createKlController ${key}`,
    (v) => createKlController({ type: 'adaptive', [key]: v }),
  ]),
  ['KlController.update', (v) => adaptive().update(v, 3)],
  ['KlController.update steps', (v) => adaptive().update(1, v)],
  ['KlController.restore', (v) => adaptive().restore(v)],
  ['rolloutCorrection batch', (v) => rolloutCorrection(v)],
  ['rolloutCorrection options', (v) => rolloutCorrection(batch, v)],
  ['rolloutCorrection rolloutIs', (v) => rolloutCorrection(batch, { rolloutIs: v })],
  ['rolloutCorrectionPreset', (v) => rolloutCorrectionPreset(v)],
  ['rolloutCorrectionPreset overrides', (v) => rolloutCorrectionPreset('disabled', v)],
  ['registerPolicyLoss name', (v) => registerPolicyLoss(v, given(5))],
  ['registerPolicyLoss function', (v) => registerPolicyLoss('vanilla', v)],
  ['checkPolicyLoss', (v) => checkPolicyLoss(v)],
  ['checkPolicyLoss inputs', (v) => checkPolicyLoss(linear, v)],
  ...['offsets', 'responseMask', 'logProbs', 'entropy', 'advantages', 'globalTokens', 'options'].map(
    (key): [string, Use] => [`checkPolicyLoss ${key}`, (v) => checkPolicyLoss(linear, { [key]: v })],
  ),
  ['checkPolicyLoss options', (v) => checkPolicyLoss(linear, {}, v)],
  ['checkPolicyLoss step', (v) => checkPolicyLoss(linear, {}, { step: v })],
  ['a loss that returns', (v) => checkPolicyLoss(() => v)],
];

const scored1 = { logProbs: [1], oldLogProbs: [1], advantages: [1] };
const valued1 = { predictions: [1], values: [1], returns: [1] };
const layout = ['offsets', 'responseMask', 'globalTokens', 'globalSequences'];
// What is right by itself ends here: no worker is started.
const nowhere = given('no group');
const answers: [string, Use][] = (
  [
    ['scoreFunctionCalling', scoreFunctionCalling],
    ['scoreGsm8k', scoreGsm8k],
    ['scoreMath', scoreMath],
    ['scoreMathDapo', scoreMathDapo],
    ['scorePrimeMath', scorePrimeMath],
    ['scoreQaEm', scoreQaEm],
    ['scoreRlla', scoreRlla],
    ['scoreSearchR1', scoreSearchR1],
  ] as [string, (...args: never[]) => unknown][]
).flatMap(([name, score]) => [
  [`${name} response`, (v) => score(v, given('x'))],
  [`${name} truth`, (v) => score(given('no answer'), v)],
  [`${name} options`, (v) => score(given('no answer'), given(name === 'scoreQaEm' ? [] : 'x'), v)],
]);

const others: [string, Use][] = [
  ...answers,
  ['rewardByDataSource', (v) => rewardByDataSource(v, {})],
  ['joinCalls', (v) => joinCalls(v)],
  ['joinCalls of one', (v) => joinCalls([v])],
  ['policyLoss mode', (v) => policyLoss(v, scored1, {}, nowhere)],
  ['policyLoss inputs', (v) => policyLoss('vanilla', v, {}, nowhere)],
  ['policyLoss options', (v) => policyLoss('vanilla', scored1, v, nowhere)],
  ...['logProbs', 'oldLogProbs', 'advantages', 'entropy', ...layout].map((key): [string, Use] => [
    `policyLoss ${key}`,
    (v) => policyLoss('vanilla', { ...scored1, [key]: v }, {}, nowhere),
  ]),
  ['valueLoss inputs', (v) => valueLoss(v, {}, nowhere)],
  ['valueLoss options', (v) => valueLoss(valued1, v, nowhere)],
  ...['predictions', 'values', 'returns', ...layout].map((key): [string, Use] => [
    `valueLoss ${key}`,
    (v) => valueLoss({ ...valued1, [key]: v }, {}, nowhere),
  ]),
  ['ResourcePools.launch', (v) => ResourcePools.launch(v)],
  ['ResourcePools.launch pools', (v) => ResourcePools.launch({ pools: v, device: 'cpu' })],
  ['WorkerGroup.launch', (v) => WorkerGroup.launch(v)],
  ['WorkerGroup.launch launcher', (v) => WorkerGroup.launch({ worldSize: 0, device: 'cpu', launcher: v })],
  ...[Actor, Critic, RewardModel].flatMap((Role): [string, Use][] => [
    [`${Role.name}.create`, (v) => Role.create(v)],
    ...[
      'model',
      'launcher',
      'group',
      'name',
      'optim',
      'parallel',
      'maxTokensPerMicroBatch',
      'lora',
      'seed',
    ].map((key): [string, Use] => [
      `${Role.name}.create ${key}`,
      (v) => Role.create({ model: '/nothing/is/here', device: 'cpu', [key]: v }),
    ]),
    [`new ${Role.name}`, (v) => new (Role as unknown as new (v: never) => unknown)(v)],
  ]),
  ['new ResourcePools', (v) => new (ResourcePools as unknown as new (v: never) => unknown)(v)],
  ['new PythonSandbox', (v) => new (PythonSandbox as unknown as new (v: never) => unknown)(v)],
];

it.each(others)('%s: so is what is given to graders, losses and workers', async (_, use) => {
  for (const [name, value] of Object.entries(BAD_VALUES)) {
    const error = await Promise.resolve()
      .then(() => use(given(value), name))
      .then(
        () => null,
        (thrown: { code?: string; message: string }) => thrown,
      );
    if (error === null) continue;
    expect([name, error]).toEqual([
      name,
      expect.objectContaining({
        code: expect.stringMatching(/^(INVALID_ARGUMENT|INVALID_MODEL|INVALID_DATA|INVALID_CONFIG|IO)$/),
      }),
    ]);
    expect(error.message).not.toMatch(/\[object |Cannot /);
  }
});

it('an answer is not compared with a number, which no text is equal to', () => {
  expect(() => scoreGsm8k('#### 5', given(5))).toThrow(
    /\[scoreGsm8k\] groundTruth: expected a text but got 5/,
  );
  expect(() => scoreQaEm('x', given('target'))).toThrow(
    /targets: expected an array of texts but got "target"/,
  );
  expect(() => scoreSearchR1('x', 'y', given({ match: 'sub' }))).toThrow(
    /match: expected one of exact, substring/,
  );
});

it('says where groups and roles come from', async () => {
  const wanted = /group: expected a WorkerGroup \(WorkerGroup\.launch makes one, .* but got \{\}/;
  await expect(Actor.create({ model: 'm', group: given({}) })).rejects.toThrow(wanted);
  await expect(policyLoss('vanilla', scored1, {}, given({}))).rejects.toThrow(wanted);
  const Made = Actor as unknown as new (o: object) => unknown;
  expect(() => new Made({ model: 'm' })).toThrow(/\[Actor\] it is made by await Actor\.create\(options\)/);
  await expect(Critic.create({ model: 'm', launcher: given({ start: 5 }) })).rejects.toThrow(
    /launcher\] start: expected a function but got 5/,
  );
});

it.each(uses)('%s: what is refused is refused by name', (_, use) => {
  for (const [name, value] of Object.entries(BAD_VALUES)) {
    const error = errorOf(() => use(given(value), name));
    if (error === null) continue;
    expect([name, error]).toEqual([
      name,
      expect.objectContaining({ code: expect.stringMatching(/^(INVALID_ARGUMENT|NON_FINITE)$/) }),
    ]);
    expect(error.message).not.toMatch(/\[object |Cannot /);
  }
});

it('what would be read as nothing is refused', () => {
  const options: [string, unknown][] = [
    ['an options object but got \\[\\]', []],
    ['an options object but got a Map', new Map([['klCoef', 1]])],
    ['await it first', Promise.resolve({ klCoef: 1 })],
  ];
  for (const [message, value] of options)
    expect(() => createKlController(given(value))).toThrow(new RegExp(message));
  expect(() => batch.with(given(new Map([['x', [1, 2]]])))).toThrow(/with: expected an object/);
  expect(() => batch.take(detached())).toThrow(/its memory was transferred/);
  expect(() => batch.with({ x: [1, 2] }, given({ granularity: { x: 'row' } }))).toThrow(
    /granularity\.x: expected one of token, response, sequence but got "row"/,
  );
});

it('a coefficient does not become NaN', () => {
  const controller = adaptive();
  const before = controller.value;
  expect(() => controller.update(Number.NaN, 3)).toThrow(/currentKl: expected a finite number but got NaN/);
  expect(controller.value).toBe(before);
});

it('shows any value without throwing, and no more of it than fits', () => {
  for (const value of Object.values(BAD_VALUES)) expect(show(value).length).toBeLessThan(100);
  expect(show(10n)).toBe('10n');
  expect(show(new Float32Array([1, 2]))).toBe('[1,2]');
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  expect(show(proxy)).toMatch(/an object that JSON cannot hold/);
  const started = performance.now();
  for (const long of [new Uint8Array(2 ** 28), new Array(2 ** 24).fill(0)])
    expect(show({ long }).length).toBeLessThan(100);
  expect(performance.now() - started).toBeLessThan(5_000);
});
