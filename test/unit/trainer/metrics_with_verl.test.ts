import { Batch } from '../../../ts/batch/batch';
import { varianceProxyMetrics } from '../../../ts/trainer/metrics/batch_metrics';
import { dataMetrics } from '../../../ts/trainer/metrics/metrics';
import { processValidationMetrics } from '../../../ts/trainer/metrics/validation_metrics';
import {
  describeWithVerl,
  differingMetrics,
  drawnByVerl,
  expectAllAgree,
  type Matrix,
  ragged,
  type VerlCase,
} from '../../helpers/verl_cases';

// Metrics of batches and of validation, from random inputs, against verl's own functions in float64 (test/fixtures/random_verl).

type Metrics = Record<string, number>;
interface BatchCase extends VerlCase {
  longest_prompt: number;
  prompts: number[];
  lengths: number[];
  inputs: Record<
    | 'response_mask'
    | 'token_level_scores'
    | 'token_level_rewards'
    | 'advantages'
    | 'returns'
    | 'values'
    | 'old_log_probs'
    | 'sum_pi_squared',
    Matrix
  >;
  weights: Matrix | null;
  turns: number[] | null;
  critic: boolean;
  gradient_norm: number;
  expected: { data: Metrics; proxies: Metrics };
}
interface ValidationCase extends VerlCase {
  sources: string[];
  uids: string[];
  infos: Record<string, unknown[]>;
  expected: Record<string, Record<string, Metrics>>;
}

const TOLERANCE = 1e-9;
// verl has lengths, and shares of responses, in float32.
const FLOAT = 1e-7;
// Smaller ones are compared as if they were this large.
const LEAST = 1e-3;

function batchOf({ prompts, lengths, inputs, weights, turns, critic }: BatchCase): Batch {
  const column = (rows: Matrix): Float32Array => Float32Array.from(ragged(rows, lengths));
  return Batch.fromSequences(
    prompts.map((length) => new Array<number>(length).fill(1)),
    lengths.map((length) => new Array<number>(length).fill(1)),
    {
      responseMask: column(inputs.response_mask),
      tokenScores: column(inputs.token_level_scores),
      tokenRewards: column(inputs.token_level_rewards),
      advantages: column(inputs.advantages),
      returns: column(inputs.returns),
      oldLogProbs: column(inputs.old_log_probs),
      sumPiSquared: column(inputs.sum_pi_squared),
      ...(critic ? { values: column(inputs.values) } : {}),
      ...(weights === null ? {} : { rolloutIsWeights: column(weights) }),
      ...(turns === null ? {} : { numTurns: Float32Array.from(turns) }),
    },
    { granularity: { numTurns: 'sequence' } },
  );
}

/** Each of verl's that is there, and none besides. */
function differingNames(actual: Metrics, expected: Metrics): string[] {
  const [ours, theirs] = [actual, expected].map((metrics) => new Set(Object.keys(metrics)));
  return [
    ...[...ours!].filter((name) => !theirs!.has(name)).map((name) => `${name} is not one of verl's`),
    ...[...theirs!].filter((name) => !ours!.has(name)).map((name) => `${name} is missing`),
  ];
}

const without = (metrics: Metrics, leave: (name: string, value: number) => boolean): Metrics =>
  Object.fromEntries(Object.entries(metrics).filter(([name, value]) => !leave(name, value)));

describeWithVerl('as verl computes them', () => {
  let drawn: { batch_metrics: BatchCase[]; validation_metrics: ValidationCase[] };
  beforeAll(() => {
    drawn = drawnByVerl<{ batch_metrics: BatchCase; validation_metrics: ValidationCase }>(40, [
      'batch_metrics',
      'validation_metrics',
    ]);
  });

  // docs/algorithms.md: what is not a number in verl is absent.
  test('metrics of a batch', async () => {
    await expectAllAgree(drawn.batch_metrics, (one) => {
      if (one.error !== undefined) return [one.error];
      const width = one.inputs.response_mask[0]!.length;
      const all = dataMetrics(batchOf(one), { prompt: one.longest_prompt, response: width });
      // A name that verl's other trainer has.
      const actual = without(all, (name) => name.startsWith('training/'));
      const expected = without(one.expected.data, (_, value) => Number.isNaN(value));
      return [...differingNames(actual, expected), ...differingMetrics(actual, expected, FLOAT, LEAST)];
    });
  });

  // docs/algorithms.md: what nothing was measured for is absent, and 0 in verl.
  test('variance proxies', async () => {
    await expectAllAgree(drawn.batch_metrics, (one) => {
      if (one.error !== undefined) return [one.error];
      const actual = varianceProxyMetrics(batchOf(one), one.gradient_norm);
      const tokens = one.inputs.response_mask.flat().includes(1);
      const expected = without(
        one.expected.proxies,
        (name) => !tokens || (name.endsWith('proxy3_pure_noise') && one.lengths.length === 1),
      );
      return [...differingNames(actual, expected), ...differingMetrics(actual, expected, TOLERANCE, LEAST)];
    });
  });

  test('metrics of validation, with the same resamples', async () => {
    await expectAllAgree(drawn.validation_metrics, ({ error, sources, uids, infos, expected }) => {
      if (error !== undefined) return [error];
      const result = processValidationMetrics(sources, uids, infos);
      const flat = (metrics: ValidationCase['expected']): Metrics =>
        Object.fromEntries(
          Object.entries(metrics).flatMap(([source, variables]) =>
            Object.entries(variables).flatMap(([name, values]) =>
              Object.entries(values).map(([metric, value]) => [`${source}/${name}/${metric}`, value]),
            ),
          ),
        );
      const [actual, wanted] = [flat(result), flat(expected)];
      return [...differingNames(actual, wanted), ...differingMetrics(actual, wanted, TOLERANCE, LEAST)];
    });
  });
});
