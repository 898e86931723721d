import path from 'node:path';
import { readModelShape } from '../../../ts/checkpoint/model_shape';
import { flopUtilisation, trainingFlops } from '../../../ts/engine/flops';
import { tensorMapping } from '../../../ts/model/tensor_names';
import { CONFORMANCE } from '../../helpers/conformance';
import { tinyExperts, tinyModel } from '../../helpers/tiny_model';

test('a dense decoder: 6 N Σ L + 6 Σ L² head_dim heads layers', () => {
  // Per layer: MLP 3·8·16, projections 8·(8 + 4 + 4 + 8); embedding and head 2·16·8; N = 384 + 192 + 256.
  expect(trainingFlops(tinyModel(), [2, 3])).toBe(6 * 832 * 5 + 6 * (4 + 9) * 4 * 2 * 1);
});

test('mixture of experts: the experts that a token meets, and the router', () => {
  const model = (sharedIntermediateSize: number, sharedGate = true) =>
    tinyModel({
      numLayers: 2,
      moe: tinyExperts({ intermediateSize: 6, sharedIntermediateSize, sharedGate }),
      moeLayers: [false, true],
    });
  const matrices = 2 * 192 + 384 + (2 * 3 * 8 * 6 + 8 * 4) + 256;
  expect(trainingFlops(model(0), [1])).toBe(6 * matrices + 6 * 4 * 2 * 2);
  // A shared expert and its gate.
  expect(trainingFlops(model(5), [1])).toBe(6 * (matrices + 3 * 8 * 5 + 8) + 6 * 4 * 2 * 2);
  expect(trainingFlops(model(5, false), [1])).toBe(6 * (matrices + 3 * 8 * 5) + 6 * 4 * 2 * 2);
});

test.each(['gemma4_text', 'gemma4_moe', 'gemma4_shared'])(
  '%s: heads and MLPs of each layer, and what it does with its token',
  (name) => {
    const { config } = readModelShape(path.join(CONFORMANCE, 'models', name, 'actor'), 'lm', 'model');
    const { numExperts = 1, topK = 1 } = config.moe ?? {};
    // Of the experts a token meets a share; the table of words is looked up, and so is the embedding, which is the head, too.
    const matrices = tensorMapping(config)
      .filter(({ shape, param }) => shape.length > 1 && param !== 'per_layer.embed.weight')
      .map(({ shape, part, param }) => {
        const [rows, cols] = shape.slice(-2) as [number, number];
        const times = part !== undefined ? topK / numExperts : param === 'embed.weight' ? 2 : 1;
        return rows * cols * times;
      });
    const dims = config.secondRopeLayers.map((second) => (second ? 8 : 12));
    const sum = (values: number[]): number => values.reduce((a, b) => a + b, 0);
    expect(trainingFlops(config, [3])).toBeCloseTo(6 * sum(matrices) * 3 + 6 * 9 * sum(dims) * 4, 6);
  },
);

test('a value head counts as nothing', () => {
  expect(trainingFlops(tinyModel({ head: 'value' }), [1])).toBe(6 * (832 - 128) + 6 * 4 * 2);
});

test('utilisation: of all devices, over all passes; a forward pass is a third', () => {
  const flops = trainingFlops(tinyModel(), [2, 3]);
  const work = { seconds: 2, peakTflops: 1e-9, devices: 4 };
  expect(flopUtilisation(tinyModel(), [2, 3], work)).toBeCloseTo(flops / 2 / 1000 / 4, 12);
  expect(flopUtilisation(tinyModel(), [2, 3], { ...work, passes: 3 })).toBeCloseTo((3 * flops) / 8000, 12);
  expect(flopUtilisation(tinyModel(), [2, 3], { ...work, forwardOnly: true })).toBeCloseTo(flops / 24000, 12);
  const half = { ...work, hasGradient: Uint8Array.of(0, 1) };
  const done = trainingFlops(tinyModel(), [3]) + trainingFlops(tinyModel(), [2]) / 3;
  expect(flopUtilisation(tinyModel(), [2, 3], half)).toBeCloseTo(done / 8000, 12);
});
