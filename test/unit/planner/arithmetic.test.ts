// Numbers worked out by hand for a decoder of 856 parameters, see test/helpers/tiny_model.ts: hidden 8, intermediate 16,
// vocabulary 16, one layer, 2 query heads and 1 key head of 4.

import { formatBytes, parseByteSize } from '../../../ts/base/byte_size';
import { LayerMemory, type Machine } from '../../../ts/planner/decoder_memory';
import { headBackward, headForward, logitsChunk } from '../../../ts/planner/head_memory';
import { paddedElements, parameterGroups } from '../../../ts/planner/parameter_groups';
import { kvCacheBytes, trainingInstants } from '../../../ts/planner/pass_memory';
import { microBatchShape } from '../../../ts/planner/plan';
import { type ShardingStrategy, ShardMemory } from '../../../ts/planner/shard_memory';
import { tinyModel } from '../../helpers/tiny_model';

const cpu: Machine = { device: 'cpu', elementBytes: 4, threads: 1 };
const half: Machine = { ...cpu, elementBytes: 2 };
const shape = { rows: 128, predictions: 128, longest: 64, ulysses: 1 };

describe('parameters', () => {
  test('groups as the flat buffers: every parameter starts on a multiple of 16 elements', () => {
    // attn_norm 8 -> 16; qkv 16 x 8 -> 144; out 8 x 8 -> 208; mlp_norm 8 -> 224; in 32 x 8 -> 480; out 8 x 16 -> 608
    expect(parameterGroups(tinyModel())).toEqual([
      { name: 'embed', parameters: 128, elements: 128 },
      { name: 'layers.0', parameters: 592, elements: 608 },
      { name: 'head', parameters: 136, elements: 144 },
    ]);
  });

  test('learned positions lie with the embeddings, a value head with its bias in the last group', () => {
    const model = tinyModel({
      family: 'gpt2',
      norm: 'layer',
      positions: 'learned',
      gatedMlp: false,
      numKvHeads: 2,
    });
    const value = {
      ...model,
      qkvBias: true,
      outputBias: true,
      mlpBias: true,
      head: 'value',
      valueBias: true,
    } as const;
    const groups = parameterGroups(value);
    expect(groups.map(({ name }) => name)).toEqual(['embed', 'layers.0', 'head']);
    expect(groups[0]).toEqual({ name: 'embed', parameters: 16 * 8 + 64 * 8, elements: 640 });
    expect(groups[2]).toEqual({ name: 'head', parameters: 8 + 8 + 8 + 1, elements: 16 + 16 + 16 + 16 });
  });

  test.each([
    [1, 608],
    [2, 608],
    [3, 624],
    [4, 640],
  ])('%d shards of a buffer of 608 elements: %d with padding', (ways, elements) => {
    const [, block] = parameterGroups(tinyModel());
    expect(paddedElements(block as NonNullable<typeof block>, ways)).toBe(elements);
  });

  test.each([
    // float32: 4 bytes of master; bfloat16: a copy of 2 more
    [1, 'full_shard', cpu, true, { parameters: 3520, gradients: 3520, optimizer: 7040 }],
    [1, 'full_shard', half, true, { parameters: 5280, gradients: 3520, optimizer: 7040 }],
    [1, 'full_shard', half, false, { parameters: 5280, gradients: 0, optimizer: 0 }],
    // a third of 144 + 624 + 144
    [3, 'full_shard', cpu, true, { parameters: 1216, gradients: 1216, optimizer: 2432 }],
    [3, 'shard_grad_op', cpu, true, { parameters: 1216, gradients: 1216, optimizer: 2432 }],
    [3, 'no_shard', cpu, true, { parameters: 3520, gradients: 3520, optimizer: 7040 }],
  ] as const)('state on one of %d ranks, %s', (worldSize, strategy, machine, training, state) => {
    expect(new ShardMemory(tinyModel(), worldSize, strategy, machine, training).state).toEqual(state);
  });

  test('adapters: groups of their own, and gradients and moments for nothing else', () => {
    // Rank 2 on the output projection (8 x 8): A 2 x 8, B 8 x 2, 16 elements each; and a value head of 8 + 1.
    const matrix = (param: string, shape: number[]) => ({
      hf: param,
      shape,
      param,
      row: 0,
      rows: shape[0] as number,
      transpose: false,
    });
    const adapters = [
      matrix('layers.0.attn.out.o_proj.lora_a', [2, 8]),
      matrix('layers.0.attn.out.o_proj.lora_b', [8, 2]),
      matrix('head.weight', [1, 8]),
      matrix('head.bias', [1]),
    ];
    const model = tinyModel({ head: 'value', valueBias: true });
    const groups = parameterGroups(model, adapters);
    expect(groups.slice(2)).toEqual([
      { name: 'head', parameters: 8, elements: 16 },
      { name: 'value_head', parameters: 9, elements: 32 },
      { name: 'layers.0.lora', parameters: 32, elements: 32 },
    ]);
    const one = new ShardMemory(model, 1, 'full_shard', cpu, true, null, adapters);
    expect(one.state).toEqual({
      parameters: (128 + 608 + 16 + 32 + 32) * 4,
      gradients: 64 * 4,
      optimizer: 128 * 4,
    });
    // Two ranks: whole parameters of roots (128 + 32 + 32) and of the block with its adapters (608 + 32).
    const two = new ShardMemory(model, 2, 'full_shard', cpu, true, null, adapters);
    expect(two.gathered('training backward')).toBe((192 + 640 + 32 + 32) * 4);
    const inference = new ShardMemory(model, 1, 'full_shard', cpu, false, null, adapters);
    expect(inference.state).toMatchObject({ gradients: 0, optimizer: 0 });
  });

  test('what is whole beside the shards: roots 288 elements, the block 624', () => {
    const of = (strategy: ShardingStrategy) => new ShardMemory(tinyModel(), 3, strategy, cpu, true);
    const full = of('full_shard');
    expect(full.gathered('gathering a root')).toBe((288 + 144) * 4); // Gloo's copy
    expect(full.gathered('inference block')).toBe((288 + 624) * 4);
    expect(full.gathered('inference head')).toBe(288 * 4);
    expect(full.gathered('training forward')).toBe((288 + 624 + 288) * 4);
    expect(full.gathered('training backward')).toBe(2 * (288 + 624) * 4);
    // reduce_scatter receives 624 and sums them into 208
    expect(full.gathered('reducing a block')).toBe((2 * (288 + 624) + 624 + 208) * 4);
    expect(full.gathered('reducing a root')).toBe((2 * 288 + 144 + 48) * 4);
    expect(full.gathered('all parameters')).toBe(912 * 4);
    expect(of('shard_grad_op').gathered('inference head')).toBe(912 * 4);
    expect(of('no_shard').gathered('training backward')).toBe(0);
    // all_reduce of 608: what comes in, and a share of a third
    expect(of('no_shard').gathered('optimizer step')).toBe((608 + 203) * 4);
    expect(new ShardMemory(tinyModel(), 1, 'full_shard', cpu, true).gathered('training backward')).toBe(0);
  });

  test('copies of shards: 4 ranks in twos hold halves, and the copies exchange gradients', () => {
    const hybrid = new ShardMemory(tinyModel(), 4, 'full_shard', cpu, true, 2);
    expect(hybrid.state).toEqual({ parameters: 1792, gradients: 1792, optimizer: 3584 }); // (128 + 608 + 160) / 2
    expect(hybrid.gathered('optimizer step')).toBe((304 + 152) * 4);
  });
});

describe('activations', () => {
  test('what a block keeps for its backward pass', () => {
    const layer = new LayerMemory(tinyModel(), 0, shape, cpu);
    expect(layer.input).toBe(128 * 8 * 4);
    // rstd of two norms, qkv 16 and attn 8 wide, lse of 2 heads, mid, inner 32 wide
    expect(layer.saved).toBe(128 * (2 * 4 + (16 + 8) * 4 + 2 * 4 + 8 * 4 + 32 * 4));
  });

  test('bfloat16 halves all but the statistics', () => {
    const layer = new LayerMemory(tinyModel(), 0, shape, half);
    expect(layer.saved).toBe(128 * (2 * 4 + (16 + 8) * 2 + 2 * 4 + 8 * 2 + 32 * 2));
  });

  test('q/k norm keeps qkv before it and its statistics', () => {
    const plain = new LayerMemory(tinyModel(), 0, shape, cpu);
    const normed = new LayerMemory(tinyModel({ qkNorm: true }), 0, shape, cpu);
    expect(normed.saved - plain.saved).toBe(128 * (16 * 4 + 3 * 4));
  });

  test('experts keep routing and the inputs of their activation, one row for each token and choice', () => {
    const moe = { numExperts: 4, topK: 2, intermediateSize: 16, normalizeTopK: true };
    const layer = new LayerMemory(tinyModel({ moe, moeLayers: [true] }), 0, shape, cpu);
    const dense = new LayerMemory(tinyModel(), 0, shape, cpu);
    const routing = 128 * (4 * 4 + 2 * (4 + 4 * 8));
    expect(layer.saved - dense.saved).toBe(routing + 256 * 32 * 4 - 128 * 32 * 4);
  });

  test('checkpointing keeps the inputs alone, and one block at a time', () => {
    const model = tinyModel({ numLayers: 10, slidingWindows: new Array(10).fill(0) });
    const at = (checkpointing: boolean, name: string): number =>
      trainingInstants(model, shape, cpu, checkpointing).find((instant) => instant.name === name)
        ?.activations as number;
    const { saved } = new LayerMemory(model, 0, shape, cpu);
    expect(at(false, 'head') - at(true, 'head')).toBe(10 * saved);
    expect(at(false, 'backward') - at(true, 'backward')).toBeGreaterThanOrEqual(8 * saved);
  });

  test('a micro-batch: never more rows than the load has, in whole tiles of 128', () => {
    const alone = { capacity: 1000, ulysses: 1 };
    expect(microBatchShape({ sequences: 100, longest: 64, response: 48 }, alone)).toEqual({
      rows: 1024,
      predictions: 1024,
      longest: 64,
      ulysses: 1,
    });
    // 3 sequences of 63 rows, 3 x 48 predictions
    expect(microBatchShape({ sequences: 3, longest: 64, response: 48 }, alone)).toEqual({
      rows: 256,
      predictions: 256,
      longest: 64,
      ulysses: 1,
    });
  });

  test('a micro-batch of four ranks: as many times their capacity, cut into parts of whole tiles', () => {
    const four = { capacity: 250, ulysses: 4 };
    const part = { rows: 256, predictions: 256, longest: 64, ulysses: 4 };
    expect(microBatchShape({ sequences: 100, longest: 64, response: 48 }, four)).toEqual(part);
    // 3 sequences of 63 rows, 3 x 48 predictions, which may all lie on one rank
    const few = { rows: 128, predictions: 128 };
    expect(microBatchShape({ sequences: 3, longest: 64, response: 48 }, four)).toEqual({ ...part, ...few });
  });

  test('ranks that share a micro-batch: attention keeps its output twice, and key heads that are repeated', () => {
    const one = new LayerMemory(tinyModel(), 0, shape, cpu);
    const two = new LayerMemory(tinyModel(), 0, { ...shape, ulysses: 2 }, cpu);
    // One key head for two ranks: k and v are 4 wider each; the output is 8 wide.
    expect(two.saved - one.saved).toBe(128 * (2 * 4 + 8) * 4);
    // 64 heads: the output is 256 wide, attention takes 256 + 16. It is there three times over: as attention gave it, as it is
    // received, and put side by side.
    const wide = new LayerMemory(tinyModel({ numHeads: 64 }), 0, { ...shape, ulysses: 2 }, cpu);
    expect(wide.forward(false)).toBe(128 * (272 + 3 * 256) * 4 + 128 * 512 * 4); // and the scratch of a GEMM
  });
});

describe('head', () => {
  test('the backward keeps the logits of as many rows as 64 MiB hold, at least three tiles', () => {
    expect(logitsChunk(16384, 32_000)).toBe(512); // 524 rows of 128 000 bytes
    expect(logitsChunk(16384, 151_936)).toBe(384);
    expect(logitsChunk(256, 32_000)).toBe(256);
  });

  test('statistics per block of 768 columns in the forward, logits in the backward', () => {
    const model = tinyModel({ vocabSize: 1600 });
    const thread = (768 * 8 + 128 * (768 + 512)) * 4;
    expect(headForward(model, 128, cpu, 3)).toBe(128 * 3 * 4 + 128 * (3 * 16 + 4) + thread);
    expect(headBackward(model, 128, cpu)).toBe(
      128 * 3 * 4 + 128 * (1600 + 8 + 8 + 2) * 4 + 128 * (3 * 16 + 4) + thread + 128 * 8,
    );
  });

  test('a value head has no logits', () => {
    expect(headForward(tinyModel({ head: 'value' }), 128, cpu, 1)).toBe(128 * 4 + 128 * 8 * 4);
  });
});

describe('KV cache', () => {
  const page = 1 * 1 * 2 * 4 * 32 * 4; // layers, key heads, K and V, head_dim, positions, bytes

  const limits = { maxSequences: 256, maxStepTokens: 8192, kvCacheBytes: null };

  test('pages of 32 positions: full ones of a prompt once, all else of every sample', () => {
    const rollout = {
      verb: 'generate',
      prompts: 2,
      n: 2,
      promptLength: 33,
      responseLength: 66,
      ...limits,
    } as const;
    // 2 prompts of 1 full page, 4 samples of 98 positions in 4 pages less that one
    expect(kvCacheBytes(tinyModel(), rollout, cpu)).toBe((2 * 1 + 4 * 3) * page);
  });

  test('of as many sequences as run at a time, within what there is', () => {
    const many = {
      verb: 'generate',
      prompts: 10_000,
      n: 1,
      promptLength: 32,
      responseLength: 33,
      ...limits,
    } as const;
    expect(kvCacheBytes(tinyModel(), many, cpu)).toBe(256 * 2 * page);
    expect(kvCacheBytes(tinyModel(), { ...many, kvCacheBytes: 100.5 * page }, cpu)).toBe(100 * page);
  });
});

describe('sizes', () => {
  test.each([
    ['80GiB', 80 * 2 ** 30],
    ['80 GB', 80e9],
    ['1.5TiB', 1.5 * 2 ** 40],
    ['512mib', 512 * 2 ** 20],
    ['1024B', 1024],
  ])('%s', (text, bytes) => {
    expect(parseByteSize(text)).toBe(bytes);
  });

  test.each(['80', '', 'GiB', '-1GiB', '0GiB', '80 gigabytes', '1e3GB'])('%j is refused', (text) => {
    expect(parseByteSize(text)).toBeNull();
  });

  test('formatted in the largest unit', () => {
    expect([0, 1023, 1536, 80 * 2 ** 30, -(2 ** 20)].map(formatBytes)).toEqual([
      '0 B',
      '1023 B',
      '1.50 KiB',
      '80.00 GiB',
      '-1.00 MiB',
    ]);
  });
});
