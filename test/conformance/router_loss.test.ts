import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { batchOf, CONFORMANCE, layoutsOf, TestGroups } from '../helpers/conformance';
import { expectGradients } from '../helpers/gradients';
import { floats, readSafetensors } from '../helpers/safetensors';

// The load-balancing loss and its gradients against transformers' load_balancing_loss_func and autograd in float64, over the tokens
// that predict one of a response and those before them.
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

test('a model without experts refuses the loss', async () => {
  const model = path.join(CONFORMANCE, 'models', 'qwen2_tied', 'actor');
  const actor = await Actor.create({ model, group: await groups.of(1) });
  try {
    const { batch } = batchOf(
      readSafetensors(path.join(CONFORMANCE, 'models', 'qwen2_tied', 'batch.safetensors')),
    );
    const zeros = new Float32Array(batch.numResponseTokens);
    const update = actor.updatePolicy(batch.with({ advantages: zeros, oldLogProbs: zeros }), {
      loss: { routerAuxLossCoef: 0.1 },
    });
    await expect(update).rejects.toThrow('expected 0 for a model without experts');
  } finally {
    await actor.close();
  }
});
