import { gradientSequences } from '../../../ts/actor/gradient_sequences';
import { resolvePolicyLoss } from '../../../ts/actor/update_options';
import { PROPORTIONAL_LOSSES } from '../../../ts/algorithms/policy_losses/registry';
import { Batch } from '../../../ts/batch/batch';

// Two policy tokens each: advantages, none, advantages behind the mask alone, no policy token, no token.
const batch = Batch.fromSequences([[1], [1], [1], [1], [1]], [[1, 1], [1, 1], [1, 1], [1], []], {
  responseMask: [1, 1, 1, 1, 1, 0, 0],
  advantages: [0, 0.5, 0, -0, 0, 3, 7],
});
const flags = (mode: string, options: object = {}): number[] | null => {
  const found = gradientSequences(batch, resolvePolicyLoss('loss', { mode, ...options }, 2));
  return found && [...found];
};

test.each([...PROPORTIONAL_LOSSES])('%s: none where all advantages of policy tokens are zero', (mode) =>
  expect(flags(mode)).toEqual([1, 0, 0, 0, 0]),
);

test.each<[string, object]>([
  ['dro', { droBeta: 0.1 }],
  ['kl_cov', {}],
  ['clip_cov', {}],
  ['vanilla', { entropyCoeff: 0.01 }],
  ['vanilla', { useKlLoss: true }],
])('%s %j: other terms move them, too, if there is a policy token', (mode, options) =>
  expect(flags(mode, options)).toEqual([1, 1, 1, 0, 0]),
);

test('a KL term of weight zero moves nothing', () =>
  expect(flags('vanilla', { useKlLoss: true, klLossCoef: 0 })).toEqual([1, 0, 0, 0, 0]));

test.each(['routerAuxLossCoef', 'routerZLossCoef'])('%s is of every token', (name) =>
  expect(flags('vanilla', { [name]: 0.1 })).toBeNull(),
);

test('null where every sequence has a gradient; NaN is one', () => {
  const loss = resolvePolicyLoss('loss', { mode: 'vanilla' }, 2);
  const all = Batch.fromSequences([[1], [1]], [[1], [1]], { advantages: [1, Number.NaN] });
  expect(gradientSequences(all, loss)).toBeNull();
});
