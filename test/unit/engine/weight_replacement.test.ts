import { WeightReplacement } from '../../../ts/engine/weight_replacement';

const SETS = {
  importWeights: ['weights'],
  updateWeights: ['weights'],
  loadCheckpoint: ['weights', 'optimizer'],
} as const;
const ADAPTED = {
  importWeights: ['adapter'],
  updateWeights: ['weights'],
  loadCheckpoint: ['adapter', 'optimizer'],
} as const;

const whole = async (touch: () => void): Promise<number> => {
  touch();
  return 1;
};
const half = async (touch: () => void): Promise<never> => {
  touch();
  throw new Error('it breaks');
};

test('what fails before it has set anything leaves the weights as they were', async () => {
  const weights = new WeightReplacement('actor', SETS);
  const failed = weights.run('importWeights', async () => {
    throw new Error('no such file');
  });
  await expect(failed).rejects.toThrow(/^no such file$/);
  expect(() => weights.check()).not.toThrow();
  expect(weights.leftHalf).toBe(false);
});

test.each([
  ['importWeights', SETS, 'importWeights, updateWeights of a directory or loadCheckpoint'],
  ['updateWeights', SETS, 'importWeights, updateWeights of a directory or loadCheckpoint'],
  ['loadCheckpoint', SETS, 'loadCheckpoint'],
  ['importWeights', ADAPTED, 'importWeights or loadCheckpoint'],
  ['updateWeights', ADAPTED, 'updateWeights of a directory'],
  ['loadCheckpoint', ADAPTED, 'loadCheckpoint'],
] as const)('%s that fails half way with %j: until %s', async (what, sets, remedies) => {
  const weights = new WeightReplacement('actor', sets);
  const remedy = `the actor refuses all work until ${remedies} succeeds`;
  await expect(weights.run(what, half)).rejects.toThrow(
    `it breaks; a part of the weights had been replaced: ${remedy}`,
  );
  const why = {
    code: 'INVALID_MODEL',
    message: `[actor] ${what} failed after it had replaced a part of the weights, so they are neither the old ones nor the new: ${remedy}`,
  };
  for (const other of ['importWeights', 'updateWeights', 'loadCheckpoint'] as const) {
    expect(() => weights.check()).toThrow(expect.objectContaining(why));
    expect(weights.leftHalf).toBe(true);
    const puts = remedies.includes(other);
    const next = weights.run(other, whole);
    if (!puts) {
      await expect(next).rejects.toMatchObject(why);
      continue;
    }
    expect(await next).toBe(1);
    expect(() => weights.check()).not.toThrow();
    expect(weights.leftHalf).toBe(false);
    await expect(weights.run(what, half)).rejects.toThrow('it breaks');
  }
});

test('one at a time, and nothing is computed meanwhile', async () => {
  const weights = new WeightReplacement('critic', SETS);
  let end = (): void => {};
  const first = weights.run('loadCheckpoint', () => new Promise<void>((resolve) => (end = resolve)));
  expect(() => weights.check()).toThrow('[critic] loadCheckpoint is replacing the weights: wait for it');
  await expect(weights.run('importWeights', whole)).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: '[importWeights] the weights are being replaced already: wait for it',
  });
  const over = weights.over;
  end();
  await first;
  await over;
  expect(weights.over).toBeNull();
  expect(() => weights.check()).not.toThrow();
});
