import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { batchOf, CONFORMANCE, layoutsOf, TestGroups } from '../helpers/conformance';
import { expectGradients } from '../helpers/gradients';
import { floats, integers, readSafetensors } from '../helpers/safetensors';

// Gradients of the policy loss through latent attention, through sinks, biases and the clamped SwiGLU of
// gpt-oss, through the gated delta rule and gates of attention, through OLMo's norms over all heads, through Granite's
// factors and GLM-4's pairs of numbers that turn, through routers with corrections, against transformers and autograd in float64: of -sum(A log p) / tokens, which is the loss where the policy is the one that has sampled.
const groups = new TestGroups();
afterAll(() => groups.close());

describe.each(
  [
    ...['deepseek_v3', 'moonlight', 'gpt_oss', 'qwen3_next', 'qwen3_5', 'qwen3_5_moe', 'olmo2', 'olmo3'],
    ...[
      'granite',
      'granitemoe',
      'glm4',
      'glm4_moe_lite',
      'deepseek_v2',
      'deepseek_v2_lite',
      'ministral3',
      'ernie4_5',
    ],
    ...[
      'glm',
      'exaone',
      'apertus',
      'exaone4',
      'cwm',
      'olmoe',
      'ernie4_5_moe',
      'minimax_m2',
      'hy_v3',
      'exaone_moe',
      'afmoe',
      'nemotron_h',
      'nemotron_h_latent',
      'youtu',
      'mellum',
      'olmo_hybrid',
      'olmo_hybrid_rope',
      'lfm2',
      'lfm2_moe',
      'gemma4_text',
      'gemma4_moe',
      'gemma4_shared',
      'granitemoehybrid',
      'granitemoehybrid_dense',
      'granitemoeshared',
      'arcee',
      'solar_open',
    ],
  ].flatMap((name) =>
    layoutsOf(path.join(CONFORMANCE, 'models', name, 'actor')).map((layout) => ({ name, ...layout })),
  ),
)('$name on $layout', ({ name, worldSize, parallel }) => {
  test('gradients of every parameter', async () => {
    const directory = path.join(CONFORMANCE, 'models', name);
    const model = path.join(directory, 'actor');
    const { advantages: _, ...gradients } = readSafetensors(path.join(directory, 'gradients.safetensors'));
    const tensors = readSafetensors(path.join(directory, 'batch.safetensors'));
    const padded = floats(readSafetensors(path.join(directory, 'gradients.safetensors')), 'advantages');
    const { batch, responseLength } = batchOf(tensors);
    const tokens = integers(tensors, 'attention_mask');
    const width = tokens.length / batch.size;
    const there = (i: number): boolean =>
      tokens[Math.floor(i / responseLength) * width + width - responseLength + (i % responseLength)] === 1n;
    const advantages = Float32Array.from(padded.filter((_, i) => there(i)));
    const group = await groups.of(worldSize);
    const optim = { lr: 0, weightDecay: 0, gradClip: 1e9 };
    const actor = await Actor.create({ model, optim, group, parallel, dtype: 'float32' });
    try {
      const { logProbs } = await actor.computeLogProb(batch);
      await actor.updatePolicy(batch.with({ advantages, oldLogProbs: logProbs }));
      await expectGradients(group, actor.name, model, 'lm', gradients);
    } finally {
      await actor.close();
    }
  });
});
