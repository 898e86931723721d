import type { NativeEngine, NativeRolloutRequest } from '../../ts/native/bridge';
import { loadBinding } from '../../ts/native/loader';
import {
  tinyBatch,
  tinyEngine,
  tinyMiniBatches,
  tinyModel,
  tinyPolicyBatch,
  tinyPolicyLoss,
  tinyTurn,
} from '../helpers/tiny_model';

// What the binding says about arguments that are not what bridge.ts promises. The casts are the point: TypeScript
// would not let these through.

const binding = loadBinding();
let engine: NativeEngine;

beforeAll(async () => {
  engine = await binding.createEngine(tinyEngine());
});
afterAll(async () => {
  await binding.close(engine);
});

function updatePolicy(changes: {
  batch?: object;
  tokens?: object;
  mini?: object;
  loss?: object;
}): Promise<unknown> {
  const batch = tinyPolicyBatch();
  return binding.updatePolicy(
    engine,
    { ...batch, tokens: { ...batch.tokens, ...changes.tokens }, ...changes.batch },
    { ...tinyMiniBatches, ...changes.mini },
    { ...tinyPolicyLoss, ...changes.loss },
    1,
  );
}

const rolloutTurn = (changes: { request?: object; sampling?: object }): Promise<unknown> => {
  const [request] = tinyTurn.submit as [NativeRolloutRequest];
  const sampling = { ...request.sampling, ...changes.sampling };
  return binding.rolloutTurn(engine, { ...tinyTurn, submit: [{ ...request, sampling, ...changes.request }] });
};

const cases: [string, () => Promise<unknown>, string][] = [
  [
    'wrong array type',
    () => updatePolicy({ tokens: { seqOffsets: Float64Array.of(0, 5, 8) } }),
    'updatePolicy.batch.tokens.seqOffsets: expected Int32Array, got Float64Array',
  ],
  [
    'plain array',
    () => updatePolicy({ batch: { oldLogProbs: [1, 2, 3, 4, 5] } }),
    'updatePolicy.batch.oldLogProbs: expected Float32Array, got Array',
  ],
  [
    'missing property',
    () => updatePolicy({ batch: { refLogProbs: undefined } }),
    'updatePolicy.batch.refLogProbs: missing property (every property must be present; null says none)',
  ],
  [
    'null where it has no meaning',
    () => updatePolicy({ batch: { advantages: null } }),
    'updatePolicy.batch.advantages: expected Float32Array, got null',
  ],
  [
    'response array of a wrong length',
    () => updatePolicy({ batch: { advantages: new Float32Array(4) } }),
    'updatePolicy.batch.advantages: expected 5 elements (one per response token), got 4',
  ],
  [
    'part of a given loss',
    () =>
      updatePolicy({
        batch: { givenLoss: { values: new Float32Array(5), byLogProb: null, byEntropy: null } },
      }),
    'updatePolicy.batch.givenLoss.byLogProb: expected Float32Array, got null',
  ],
  [
    'offsets that do not fit the tokens',
    () => updatePolicy({ tokens: { seqOffsets: Int32Array.of(0, 5, 9) } }),
    'updatePolicy.batch.tokens.seqOffsets: expected the last offset to be 8 (the number of tokens), got 9',
  ],
  [
    'offsets that decrease',
    () => updatePolicy({ tokens: { seqOffsets: Int32Array.of(0, 9, 8) } }),
    'updatePolicy.batch.tokens.seqOffsets[2]: expected at least 9 (offsets never decrease), got 8',
  ],
  [
    'prompt longer than its sequence',
    () => updatePolicy({ tokens: { promptLens: Int32Array.of(2, 4) } }),
    'updatePolicy.batch.tokens.promptLens[1]: expected 0 to 3 (the length of the sequence), got 4',
  ],
  [
    'mini-batch beyond the batch',
    () => updatePolicy({ mini: { offsets: [0, 3] } }),
    'updatePolicy.mini.offsets[1]: expected 0 to 2 (the number of sequences), got 3',
  ],
  [
    'mini-batch counts of different lengths',
    () => updatePolicy({ mini: { globalSequences: [] } }),
    'updatePolicy.mini.globalSequences: expected 1 elements (as many as globalTokens), got 0',
  ],
  [
    'fraction where an integer belongs',
    () => updatePolicy({ mini: { epochs: 1.5 } }),
    'updatePolicy.mini.epochs: expected an integer, got the number 1.5',
  ],
  [
    'entry of a record',
    () => updatePolicy({ loss: { extra: { tau_pos: '1' } } }),
    "updatePolicy.loss.extra.tau_pos: expected a number, got the string '1'",
  ],
  [
    'element of an array',
    () => rolloutTurn({ sampling: { stopTokenIds: [1, 'x'] } }),
    "rolloutTurn.commands.submit[0].sampling.stopTokenIds[1]: expected an integer, got the string 'x'",
  ],
  [
    'number of elements',
    () => rolloutTurn({ request: { seedAndSalt: BigUint64Array.of(1n) } }),
    'rolloutTurn.commands.submit[0].seedAndSalt: expected two elements, got BigUint64Array',
  ],
  [
    'offsets beyond the array',
    () => rolloutTurn({ sampling: { badWordOffsets: Int32Array.of(0, 3) } }),
    'rolloutTurn.commands.submit[0].sampling.badWordOffsets: expected the last offset to be 2 (the number of badWordIds), got 3',
  ],
  [
    'tokens that no distillation compares',
    () =>
      binding.policyLoss(
        {
          offsets: Int32Array.of(0, 1),
          responseMask: Uint8Array.of(1),
          globalTokens: 1,
          globalSequences: 1,
          logProbs: Float32Array.of(-1),
          entropy: null,
          oldLogProbs: Float32Array.of(-1),
          advantages: Float32Array.of(1),
          refLogProbs: null,
          rolloutIsWeights: null,
          givenLoss: null,
          teacherLogProbs: null,
          studentTop: { logProbs: new Float32Array(0), amongTop: new Uint8Array(0) },
        },
        tinyPolicyLoss,
      ),
    'policyLoss.inputs.studentTop: expected null, because no distillation with topK compares these tokens, got an object',
  ],
  [
    'a turn before there is a rollout',
    () => rolloutTurn({}),
    '[rollout] expected open_rollout before rollout_turn',
  ],
  [
    'unknown word',
    () => binding.createEngine(tinyEngine({ model: tinyModel({ norm: 'batch' as 'rms' }) })),
    "createEngine.options.model.norm: expected one of 'rms', 'layer', got the string 'batch'",
  ],
  [
    'object where there is none',
    () => binding.createEngine(tinyEngine({ model: 'llama' as unknown as ReturnType<typeof tinyModel> })),
    "createEngine.options.model: expected an object, got the string 'llama'",
  ],
  [
    'missing argument',
    () => (binding.computeValues as (engine: NativeEngine) => Promise<unknown>)(engine),
    'computeValues.batch: missing argument (position 1)',
  ],
  [
    'no handle',
    () => binding.computeValues({} as NativeEngine, tinyBatch()),
    'computeValues.engine: expected an engine made by createEngine, got an object',
  ],
];

test.each(cases)('%s', async (_name, call, message) => {
  await expect(call()).rejects.toMatchObject({ name: 'TroupeError', code: 'INVALID_ARGUMENT', message });
});

test('a getter that throws is passed on', async () => {
  const batch = Object.defineProperty(tinyBatch(), 'tokens', {
    get() {
      throw new Error('from the getter');
    },
  });
  await expect(binding.computeValues(engine, batch)).rejects.toThrow('from the getter');
});
