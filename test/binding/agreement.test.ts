import { layersByPart, ONE_STAGE, pipelineProblem } from '../../ts/model/pipeline_parts';
import type { NativeEngineOptions, NativePipelineOptions } from '../../ts/native/bridge';
import { loadBinding } from '../../ts/native/loader';
import { PAGE_POSITIONS } from '../../ts/rollout/native/summed_stats';
import { tinyEngine, tinyModel } from '../helpers/tiny_model';

// What TypeScript says of the core without asking it, beside what the core does.

const binding = loadBinding();

test('positions of a page of keys and values', async () => {
  const model = tinyModel({ numLayers: 2, slidingWindows: [0, 0] });
  const engine = await binding.createEngine(tinyEngine({ model }));
  try {
    const { pages, cacheBytes } = await binding.openRollout(engine, {
      maxSequences: 64,
      maxStepTokens: 64,
      maxPositions: 64,
      kvCacheBytes: 2 ** 16,
      memoryShare: 1,
      chunkedPrefill: true,
      prefixCaching: true,
      tensorParallel: 1,
      quantization: 'none',
      latentCache: false,
      routedExperts: false,
      drafts: null,
    });
    const perPosition = 2 * 4 * model.numLayers * model.numKvHeads * model.headDim; // key and value, float32
    expect(pages).toBeGreaterThan(1);
    expect(cacheBytes / pages).toBe(PAGE_POSITIONS * perPosition);
  } finally {
    await binding.close(engine);
  }
});

const LOAD = { count: 1, length: 3, response: 1, images: [] };

/** The numbers of the layers of each stage. @throws what the core throws */
async function layersOfStages(options: NativeEngineOptions): Promise<number[][]> {
  const { stages } = options.pipeline;
  const found: number[][] = [];
  for (let rank = 0; rank < stages; rank++) {
    const { groups } = await binding.simulateUpdate(options, rank, stages, LOAD, false);
    found.push(groups.flatMap(({ name }) => (/^layers\.\d+$/.test(name) ? [Number(name.slice(7))] : [])));
  }
  return found;
}

/** The same by the TypeScript side. */
function expectedLayers(numLayers: number, pipeline: NativePipelineOptions): number[][] {
  const found: number[][] = Array.from({ length: pipeline.stages }, () => []);
  let layer = 0;
  for (const [part, count] of layersByPart(numLayers, pipeline).entries())
    for (let i = 0; i < count; i++) found[part % pipeline.stages]?.push(layer++);
  return found;
}

test.each([
  { stages: 1, chunks: 1 },
  { stages: 2, chunks: 1 },
  { stages: 2, chunks: 2 },
  { stages: 3, chunks: 1 },
  { stages: 4, chunks: 2 },
])('layers of the parts of a pipeline, and what cannot be cut: %p', async (shape) => {
  const splits: Partial<NativePipelineOptions>[] = [
    {},
    ...(shape.stages === 1
      ? []
      : [
          { firstLayers: 2 },
          { lastLayers: 1 },
          { firstLayers: 1, lastLayers: 3 },
          { countEmbedding: true },
          { countHead: true },
          { countEmbedding: true, countHead: true },
        ]),
  ];
  let cut = 0;
  for (let numLayers = 1; numLayers <= 11; numLayers++) {
    const model = tinyModel({ numLayers, slidingWindows: Array(numLayers).fill(0) });
    for (const split of splits) {
      const pipeline = { ...ONE_STAGE, ...shape, ...split };
      const layers = layersOfStages(tinyEngine({ model, pipeline }));
      if (pipelineProblem(numLayers, pipeline) !== null) {
        await expect(layers).rejects.toThrow(/\[pipeline\] \d+ layers do not make/);
        continue;
      }
      expect([numLayers, split, await layers]).toEqual([
        numLayers,
        split,
        expectedLayers(numLayers, pipeline),
      ]);
      cut++;
    }
  }
  expect(cut).toBeGreaterThan(10);
});
