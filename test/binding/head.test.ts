import type { NativeHeadInputs } from '../../ts/native/bridge';
import { loadBinding } from '../../ts/native/loader';

// linearLogProb against the same formulas in double precision.

const binding = loadBinding();
const [N, H, V, TEMPERATURE] = [5, 6, 11, 0.7];

let state = 7;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 31 - 1;
};
const floats = (count: number): Float32Array => Float32Array.from({ length: count }, random);
const inputs: NativeHeadInputs = {
  hidden: floats(N * H),
  weight: floats(V * H),
  targets: Int32Array.from([0, 10, 3, 3, 7]),
  hiddenSize: H,
  temperature: TEMPERATURE,
  dtype: 'float32',
  device: 'cpu',
  numThreads: 1,
  byLogProb: null,
  byEntropy: null,
};
const weights = { byLogProb: floats(N), byEntropy: floats(N) };

function reference(
  hidden: ArrayLike<number>,
  weight: ArrayLike<number>,
): { logProb: number; entropy: number }[] {
  return Array.from({ length: N }, (_, i) => {
    const logits = Array.from({ length: V }, (_, v) => {
      let sum = 0;
      for (let h = 0; h < H; h++) sum += Number(hidden[i * H + h]) * Number(weight[v * H + h]);
      return sum / TEMPERATURE;
    });
    const normaliser = Math.log(logits.reduce((sum, z) => sum + Math.exp(z), 0));
    const logProbs = logits.map((z) => z - normaliser);
    return {
      logProb: logProbs[inputs.targets[i] as number] as number,
      entropy: -logProbs.reduce((sum, lp) => sum + Math.exp(lp) * lp, 0),
    };
  });
}

/** The loss whose gradients by the outputs are `weights`. */
function loss(hidden: Float64Array, weight: Float64Array): number {
  return reference(hidden, weight).reduce(
    (sum, { logProb, entropy }, i) =>
      sum + Number(weights.byLogProb[i]) * logProb + Number(weights.byEntropy[i]) * entropy,
    0,
  );
}

test('log-probs and entropies', async () => {
  const { logProbs, entropy, byHidden, byWeight, seconds } = await binding.linearLogProb(inputs);
  for (const [i, expected] of reference(inputs.hidden, inputs.weight).entries()) {
    expect(logProbs[i]).toBeCloseTo(expected.logProb, 5);
    expect(entropy[i]).toBeCloseTo(expected.entropy, 5);
  }
  expect([byHidden, byWeight]).toEqual([null, null]);
  expect(seconds).toBeGreaterThan(0);
});

test('gradients', async () => {
  const { byHidden, byWeight } = await binding.linearLogProb({ ...inputs, ...weights });
  const point = { hidden: Float64Array.from(inputs.hidden), weight: Float64Array.from(inputs.weight) };
  for (const [name, found] of [
    ['hidden', byHidden],
    ['weight', byWeight],
  ] as const) {
    expect(found).toHaveLength(point[name].length);
    for (let k = 0; k < point[name].length; k++) {
      const at = (step: number): number => {
        const moved = { ...point, [name]: Float64Array.from(point[name]) };
        moved[name][k] = Number(moved[name][k]) + step;
        return loss(moved.hidden, moved.weight);
      };
      expect(found?.[k]).toBeCloseTo((at(1e-5) - at(-1e-5)) / 2e-5, 4);
    }
  }
});

test.each([
  [{ hiddenSize: 4 }, /inputs\.hidden: expected rows of hiddenSize numbers/],
  [{ targets: Int32Array.from([0, 1, 2, 3, V]) }, /inputs\.targets: expected ids of rows of weight/],
  [{ targets: Int32Array.from([0]) }, /inputs\.targets.*one per row/],
  [{ device: 'gpu' }, /expected device cpu or cuda, got gpu/],
  [{ temperature: 0 }, /inputs\.temperature: expected a number > 0/],
  [{ byLogProb: floats(N), byEntropy: floats(2) }, /inputs\.byEntropy.*one per row/],
])('refuses %j', async (change, message) => {
  await expect(
    (async () => binding.linearLogProb({ ...inputs, ...(change as Partial<NativeHeadInputs>) }))(),
  ).rejects.toThrow(message);
});
