import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { batchOf, CONFORMANCE, layoutsOf, TestGroups } from '../helpers/conformance';
import { expectGradients } from '../helpers/gradients';
import { floats, integers, readSafetensors } from '../helpers/safetensors';

// forward_kl_topk of whole models against transformers and autograd in float64: six tokens of a teacher near the model, temperature 0.9, log-probs of
// both at least -4 and the loss of a token at most 1.5, which some of them reach.
const groups = new TestGroups();
afterAll(() => groups.close());

const K = 6;

/** One array per sequence of [ΣR * K]. */
function perSequence<T extends Float32Array | Int32Array>(offsets: ArrayLike<number>, all: T): T[] {
  return Array.from(
    { length: offsets.length - 1 },
    (_, i) => all.slice((offsets[i] as number) * K, (offsets[i + 1] as number) * K) as T,
  );
}

describe.each(
  ['qwen3_headdim', 'gemma2'].flatMap((name) =>
    layoutsOf(path.join(CONFORMANCE, 'models', name, 'actor')).map((layout) => ({ name, ...layout })),
  ),
)('$name on $layout', ({ name, worldSize, parallel }) => {
  // clip_cov needs all tokens of a micro-batch at once: the distillation is added to what it gives.
  test.each(['vanilla', 'clip_cov'])('loss, gradients and metrics beside %s', async (mode) => {
    const model = path.join(CONFORMANCE, 'models', name, 'actor');
    const expected = readSafetensors(path.join(CONFORMANCE, 'distillation', `${name}.safetensors`));
    const { batch: read } = batchOf(
      readSafetensors(path.join(CONFORMANCE, 'models', name, 'batch.safetensors')),
    );
    const zeros = new Float32Array(read.numResponseTokens);
    const { responseOffsets } = read;
    const batch = read.with({
      advantages: zeros,
      oldLogProbs: zeros,
      teacherTopLogProbs: perSequence(
        responseOffsets,
        Float32Array.from(floats(expected, 'teacher_log_probs')),
      ),
      teacherTopIds: perSequence(responseOffsets, Int32Array.from(integers(expected, 'teacher_ids'), Number)),
    });
    const group = await groups.of(worldSize);
    const optim = { lr: 0, weightDecay: 0, gradClip: 1e9 };
    const actor = await Actor.create({ model, optim, group, parallel, dtype: 'float32' });
    try {
      const distillation = {
        mode: 'forward_kl_topk',
        topK: K,
        logProbMinClamp: -4,
        lossMaxClamp: 1.5,
      } as const;
      const metrics = await actor.updatePolicy(batch, { temperature: 0.9, loss: { mode, distillation } });
      const close = (metric: string, tensor: string) =>
        expect(metrics[`distillation/${metric}`]).toBeCloseTo(floats(expected, tensor)[0] as number, 5);
      close('loss', 'loss');
      close('student_mass', 'student_mass');
      close('overlap_ratio', 'overlap_ratio');
      expect(metrics['actor/loss']).toBeCloseTo(metrics['distillation/loss'] as number, 6);
      const gradients = Object.entries(expected).filter(([hf]) => hf.endsWith('.weight'));
      await expectGradients(group, actor.name, model, 'lm', Object.fromEntries(gradients));
    } finally {
      await actor.close();
    }
  });
});
