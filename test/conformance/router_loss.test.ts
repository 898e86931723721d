import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Critic } from '../../ts/critic/critic';
import { batchOf, CONFORMANCE, layoutsOf, TEST_DEVICE, TestGroups } from '../helpers/conformance';
import { expectGradients } from '../helpers/gradients';
import { floats, readSafetensors, type TestTensor } from '../helpers/safetensors';

// The load-balancing loss and its gradients against transformers' load_balancing_loss_func and autograd in float64, over the tokens
// that predict one of a response and those before them; the z-loss against numbers of router_z/make_losses.py.
const groups = new TestGroups();
afterAll(() => groups.close());

const COEFFICIENT = 0.25;

describe.each(
  ['qwen3_moe', 'qwen2_moe', 'mixtral'].flatMap((name) =>
    layoutsOf(path.join(CONFORMANCE, 'models', name, 'actor')).map((layout) => ({ name, ...layout })),
  ),
)('$name on $layout', ({ name, worldSize, parallel }) => {
  test('loss, gradients and metrics of the routers', async () => {
    const model = path.join(CONFORMANCE, 'models', name, 'actor');
    const expected = readSafetensors(path.join(CONFORMANCE, 'router_aux', `${name}.safetensors`));
    const loss = floats(expected, 'loss')[0] as number;
    const { batch: read } = batchOf(
      readSafetensors(path.join(CONFORMANCE, 'models', name, 'batch.safetensors')),
    );
    const zeros = new Float32Array(read.numResponseTokens);
    // No other term of the loss has a gradient.
    const batch = read.with({ advantages: zeros, oldLogProbs: zeros });
    const group = await groups.of(worldSize);
    const optim = { lr: 0, weightDecay: 0, gradClip: 1e9 };
    const actor = await Actor.create({ model, optim, group, parallel, dtype: 'float32' });
    try {
      const metrics = await actor.updatePolicy(batch, { loss: { routerAuxLossCoef: COEFFICIENT } });
      expect(metrics['actor/moe/aux_loss']).toBeCloseTo(loss, 5);
      expect(metrics['actor/loss']).toBeCloseTo(COEFFICIENT * loss, 5);
      expect(metrics['actor/moe/max_vio/max']).toBeGreaterThan(0);
      expect(metrics['actor/moe/entropy']).toBeGreaterThan(0);
      const { loss: _, ...gradients } = expected;
      await expectGradients(group, actor.name, model, 'lm', gradients, COEFFICIENT);
    } finally {
      await actor.close();
    }
  });
});

describe.each(
  ['qwen3_moe', 'glm4_moe', 'deepseek_v3', 'gpt_oss'].flatMap((name) =>
    [
      ...layoutsOf(path.join(CONFORMANCE, 'models', name, 'actor')),
      ...(TEST_DEVICE === 'cuda' ? [] : [{ layout: 'two workers', worldSize: 2, parallel: {} }]),
    ].map((layout) => ({ name, ...layout })),
  ),
)('the z-loss of $name on $layout', ({ name, worldSize, parallel }) => {
  const model = path.join(CONFORMANCE, 'models', name, 'actor');
  const { loss, ...gradients } = readSafetensors(path.join(CONFORMANCE, 'router_z', `${name}.safetensors`));
  const expected = floats({ loss: loss as TestTensor }, 'loss')[0] as number;
  const { batch: read } = batchOf(
    readSafetensors(path.join(CONFORMANCE, 'models', name, 'batch.safetensors')),
  );
  const zeros = new Float32Array(read.numResponseTokens);

  test('loss and gradients', async () => {
    const group = await groups.of(worldSize);
    const optim = { lr: 0, weightDecay: 0, gradClip: 1e9 };
    const actor = await Actor.create({ model, optim, group, parallel, dtype: 'float32' });
    try {
      // No other term of the loss has a gradient.
      const batch = read.with({ advantages: zeros, oldLogProbs: zeros });
      const metrics = await actor.updatePolicy(batch, { loss: { routerZLossCoef: COEFFICIENT } });
      expect((metrics['actor/moe/z_loss'] as number) / expected).toBeCloseTo(1, 6);
      expect(metrics['actor/loss'] as number).toBeCloseTo(
        COEFFICIENT * (metrics['actor/moe/z_loss'] as number),
        5,
      );
      expect(metrics['actor/moe/aux_loss']).toBeUndefined();
      await expectGradients(group, actor.name, model, 'lm', gradients, COEFFICIENT);
    } finally {
      await actor.close();
    }
  });
});

test('the z-loss is there in supervised updates and in those of a critic', async () => {
  const group = await groups.of(1);
  const directory = path.join(CONFORMANCE, 'models', 'glm4_moe');
  const { batch } = batchOf(readSafetensors(path.join(directory, 'batch.safetensors')));
  const zeros = new Float32Array(batch.numResponseTokens);
  const optim = { lr: 0, weightDecay: 0 };
  const actor = await Actor.create({ model: path.join(directory, 'actor'), optim, group, dtype: 'float32' });
  const critic = await Critic.create({
    model: path.join(directory, 'critic'),
    optim,
    group,
    dtype: 'float32',
  });
  try {
    const values = batch.with({ values: zeros, returns: zeros });
    const updates = [
      ['actor', (o: { routerZLossCoef?: number }) => actor.updateSft(batch, o)],
      ['critic', (o: { routerZLossCoef?: number }) => critic.updateCritic(values, o)],
    ] as const;
    for (const [role, update] of updates) {
      const without = await update({});
      const metrics = await update({ routerZLossCoef: COEFFICIENT });
      const loss = metrics[`${role}/moe/z_loss`] as number;
      expect(loss).toBeGreaterThan(1);
      expect(without[`${role}/moe/z_loss`]).toBeUndefined();
      const added = (metrics[`${role}/loss`] as number) - (without[`${role}/loss`] as number);
      expect(added / (COEFFICIENT * loss)).toBeCloseTo(1, 6);
      await expect(update({ routerZLossCoef: -1 })).rejects.toThrow('routerZLossCoef');
    }
  } finally {
    await actor.close();
    await critic.close();
  }
});

test.each(['routerAuxLossCoef', 'routerZLossCoef'])('a model without experts refuses %s', async (name) => {
  const model = path.join(CONFORMANCE, 'models', 'qwen2_tied', 'actor');
  const actor = await Actor.create({ model, group: await groups.of(1) });
  try {
    const { batch } = batchOf(
      readSafetensors(path.join(CONFORMANCE, 'models', 'qwen2_tied', 'batch.safetensors')),
    );
    const zeros = new Float32Array(batch.numResponseTokens);
    const update = actor.updatePolicy(batch.with({ advantages: zeros, oldLogProbs: zeros }), {
      loss: { [name]: 0.1 },
    });
    await expect(update).rejects.toThrow('expected 0 for a model without experts');
  } finally {
    await actor.close();
  }
});
