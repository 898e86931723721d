import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { readModelShape } from '../../ts/checkpoint/model_shape';
import { tensorMapping } from '../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../ts/native/bridge';
import { ON_DEVICE, type Placement, type ShardingStrategy } from '../../ts/planner/placement';
import { ONE_MODEL } from '../../ts/planner/places';
import type { PlanSpec, RoleLayout, RoleSpec } from '../../ts/planner/plan';
import { collectiveTotals } from '../../ts/planner/render_simulation';
import { type RoleSimulation, simulateRoles } from '../../ts/planner/simulate';
import { trafficFormulas } from '../../ts/planner/traffic';
import { CONFORMANCE } from '../helpers/conformance';
import { NO_KEYS } from '../helpers/role_keys';

// What the engine makes of shapes without memory, and what real workers hold and send.
const EXAMPLES = path.resolve(__dirname, '../../examples/plan');
const model = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');

function specOf(
  shape: NativeModelConfig,
  worldSize: number,
  o: {
    strategy?: ShardingStrategy;
    shardSize?: number;
    ulysses?: number;
    dtype?: 'float32' | 'bfloat16';
    microBatches?: number;
    placement?: Placement;
    layout?: RoleLayout;
    checkpointing?: boolean;
    frozen?: boolean;
  } = {},
): PlanSpec {
  const load = { sequences: o.microBatches ?? 1, longest: 8, response: 4 };
  const role: RoleSpec = {
    name: 'actor',
    model: shape,
    dtype: o.dtype ?? 'float32',
    masterDtype: 'float32',
    strategy: o.strategy ?? 'full_shard',
    shardSize: o.shardSize ?? null,
    ulysses: o.ulysses ?? 1,
    layout: o.layout ?? ONE_MODEL,
    placement: o.placement ?? ON_DEVICE,
    capacity: 8,
    gradientCheckpointing: o.checkpointing ?? false,
    activationOffload: false,
    inference: o.frozen ? load : null,
    update: o.frozen ? null : load,
    rollouts: [],
    keys: NO_KEYS,
  };
  return { device: 'cpu', worldSize, threads: 1, memory: null, roles: [role] };
}

const countOf = (shape: NativeModelConfig): number =>
  tensorMapping(shape).reduce((sum, tensor) => sum + tensor.shape.reduce((n, extent) => n * extent, 1), 0);

const simulate = async (spec: PlanSpec): Promise<RoleSimulation> =>
  (await simulateRoles(spec))[0] as RoleSimulation;

const layoutOf = (
  { tp = 1, cp = 1, sequenceParallel = false, ep = 1 }: Partial<RoleLayout['parallel']>,
  stages = 1,
  chunks = 1,
): RoleLayout => ({
  parallel: { tp, cp, sequenceParallel, ep },
  pipeline: { ...ONE_MODEL.pipeline, stages, chunks },
});

/** What the formula of an axis is about, of what is counted. */
const counted = (simulated: RoleSimulation, axis: string): number =>
  collectiveTotals(simulated)
    .filter(
      (total) => total.axis === axis && ['blocks', 'attention', 'micro-batches'].includes(total.subject),
    )
    .reduce((sum, { bytes }) => sum + bytes, 0);

const MOE = path.join(CONFORMANCE, 'models', 'qwen3_moe', 'actor');
/** With a layer that has no MLP. */
const NEMOTRON = path.join(CONFORMANCE, 'models', 'nemotron_h', 'actor');
/** With experts beside the MLP, and with layers that share keys; heads of both have two shapes. */
const [BESIDE, SHARED] = ['gemma4_moe', 'gemma4_shared'].map((name) =>
  path.join(CONFORMANCE, 'models', name, 'actor'),
) as [string, string];

test.each([
  ['tp 2', model, 2, layoutOf({ tp: 2 }), false],
  ['tp 2, sequence parallel, recomputed', model, 2, layoutOf({ tp: 2, sequenceParallel: true }), true],
  ['pp 2', model, 2, layoutOf({}, 2), false],
  ['tp 2 x pp 2 x dp 2', model, 8, layoutOf({ tp: 2, sequenceParallel: true }, 2), true],
  ['ep 2, recomputed', MOE, 2, layoutOf({ ep: 2 }), true],
  ['a layer without an MLP, tp 2', NEMOTRON, 2, layoutOf({ tp: 2 }), false],
  ['the same, recomputed', NEMOTRON, 2, layoutOf({ tp: 2 }), true],
  [
    'the same, sequence parallel, ep 2',
    NEMOTRON,
    4,
    layoutOf({ tp: 2, ep: 2, sequenceParallel: true }),
    true,
  ],
  ['experts beside an MLP, tp 2', BESIDE, 2, layoutOf({ tp: 2 }), false],
  ['the same, recomputed', BESIDE, 2, layoutOf({ tp: 2 }), true],
  ['the same, sequence parallel, ep 2', BESIDE, 4, layoutOf({ tp: 2, ep: 2, sequenceParallel: true }), true],
  ['heads of two shapes, cp 2', BESIDE, 2, layoutOf({ cp: 2 }), true],
  ['shared keys, tp 2 x cp 2', SHARED, 4, layoutOf({ tp: 2, cp: 2 }), true],
  ['cp 2', model, 2, layoutOf({ cp: 2 }), false],
  ['cp 2, layers of linear attention', NEMOTRON, 2, layoutOf({ cp: 2 }), false],
  ['the same, recomputed', NEMOTRON, 2, layoutOf({ cp: 2 }), true],
  ['cp 2 x tp 2 x pp 2, recomputed', model, 8, layoutOf({ tp: 2, cp: 2, sequenceParallel: true }, 2), true],
])(
  '%s: bytes by the formulas are those of the engine',
  async (_name, directory, ranks, layout, checkpointing) => {
    const { config: shape } = readModelShape(directory, 'lm', 'model');
    const { tp, cp, ep } = layout.parallel;
    const expected = { tp, cp, pp: layout.pipeline.stages, ep };
    for (const reduceDtype of ['float32', 'bfloat16'] as const) {
      const load = { checkpointing, microBatches: 11, placement: { ...ON_DEVICE, reduceDtype } };
      const spec = specOf(shape, ranks, { layout, strategy: 'shard_grad_op', ...load });
      const [role] = spec.roles as [RoleSpec];
      for (const simulated of await simulateRoles(spec)) {
        const formulas = trafficFormulas(role, simulated, spec);
        for (const [axis, size] of Object.entries(expected))
          expect(formulas.some((formula) => formula.axis === axis)).toBe(size > 1);
        for (const { axis, bytes } of formulas)
          expect([axis, bytes]).toEqual([axis, counted(simulated, axis)]);
      }
    }
  },
);

test('tp 2 x pp 2: 4 workers hold and send what is simulated of their stage', async () => {
  const { config: shape } = readModelShape(model, 'lm', 'model');
  const layout = layoutOf({ tp: 2 }, 2);
  const stages = await simulateRoles(specOf(shape, 4, { layout, strategy: 'shard_grad_op' }));
  const actor = await Actor.create({
    model,
    worldSize: 4,
    numThreads: 1,
    maxTokensPerMicroBatch: 8,
    parallel: { tp: 2, pp: 2, sharding: 'shard_grad_op' },
  });
  try {
    const { group, name } = actor.engine;
    const each = [0, 0, 1, 1].map((stage) => (stages[stage] as RoleSimulation).simulation);
    expect(await group.callAll(name, 'stateBytes', () => [])).toEqual(each.map(({ state }) => state));
    const before = await group.callAll(name, 'bytesSent', () => []);
    const batch = Batch.fromSequences([[1, 2, 3, 4]], [[5, 6, 7, 8]]);
    const column = new Float32Array(batch.numResponseTokens).fill(-5);
    await actor.updatePolicy(batch.with({ oldLogProbs: column, advantages: column }));
    const after = await group.callAll(name, 'bytesSent', () => []);
    const sent = ({ collectives }: RoleSimulation['simulation']) =>
      collectives.reduce((sum, { bytes }) => sum + bytes, 0);
    expect(after.map((bytes, rank) => bytes - (before[rank] as number))).toEqual(each.map(sent));
  } finally {
    await actor.close();
  }
}, 60_000);

test('neighbours share a copy: 4 workers in twos hold and send what is simulated', async () => {
  const { config: shape } = readModelShape(model, 'lm', 'model');
  const { simulation } = await simulate(specOf(shape, 4, { shardSize: 2 }));
  const actor = await Actor.create({ model, worldSize: 4, numThreads: 1, parallel: { fsdpSize: 2 } });
  try {
    const { group, name } = actor.engine;
    expect(await group.callAll(name, 'stateBytes', () => [])).toEqual(new Array(4).fill(simulation.state));
    const before = await group.callAll(name, 'bytesSent', () => []);
    const indices = Array.from({ length: 4 }, (_, i) => i);
    const batch = Batch.fromSequences(
      indices.map((i) => [i + 1, 2]),
      indices.map((i) => [3, i + 4, 5]),
    );
    const column = new Float32Array(batch.numResponseTokens).fill(-5);
    await actor.updatePolicy(batch.with({ oldLogProbs: column, advantages: column }));
    const after = await group.callAll(name, 'bytesSent', () => []);
    const simulated = simulation.collectives.reduce((sum, { bytes }) => sum + bytes, 0);
    expect(after.map((bytes, rank) => bytes - (before[rank] as number))).toEqual(
      new Array(4).fill(simulated),
    );
  } finally {
    await actor.close();
  }
}, 60_000);

test.each([1, 2, 3, 4])(
  '%d workers hold what is simulated: masters, as much of gradients, twice as much of moments',
  async (worldSize) => {
    const { config: shape } = readModelShape(model, 'lm', 'model');
    for (const strategy of ['full_shard', 'shard_grad_op', 'no_shard'] as const) {
      const { state } = (await simulate(specOf(shape, worldSize, { strategy }))).simulation;
      const { parameters } = state;
      const whole = 4 * countOf(shape);
      const least = strategy === 'no_shard' ? whole : whole / worldSize;
      expect(parameters).toBeGreaterThanOrEqual(least);
      expect(parameters).toBeLessThan(1.02 * least); // padded
      const host = { parameters: 0, gradients: 0, moments: 0 };
      expect(state).toEqual({ parameters, gradients: parameters, moments: 2 * parameters, host });
      const actor = await Actor.create({
        model,
        worldSize,
        numThreads: 1,
        maxTokensPerMicroBatch: 64,
        ...(worldSize === 1 ? {} : { parallel: { sharding: strategy } }),
      });
      try {
        const held = await actor.engine.group.callAll(actor.engine.name, 'stateBytes', () => []);
        expect(held).toEqual(new Array(worldSize).fill(state));
      } finally {
        await actor.close();
      }
    }
  },
  120_000,
);

test.each([1, 2])(
  '%d workers hold what is never trained in the dtype that it is computed in',
  async (worldSize) => {
    const { config: shape } = readModelShape(model, 'lm', 'model');
    const spec = (frozen: boolean) => specOf(shape, worldSize, { dtype: 'bfloat16', frozen });
    const { state } = (await simulate(spec(true))).simulation;
    const trained = (await simulate(spec(false))).simulation.state.parameters;
    const host = { parameters: 0, gradients: 0, moments: 0 };
    expect(state).toEqual({ parameters: trained / 3, gradients: 0, moments: 0, host });
    expect(state.parameters).toBeGreaterThanOrEqual((2 * countOf(shape)) / worldSize);
    const reference = await Actor.create({ model, worldSize, numThreads: 1, dtype: 'bfloat16', optim: null });
    try {
      const held = await reference.engine.group.callAll(reference.engine.name, 'stateBytes', () => []);
      expect(held).toEqual(new Array(worldSize).fill(state));
    } finally {
      await reference.close();
    }
  },
  60_000,
);

test('offloaded state is simulated and held on the host; one reduction per mini-batch is simulated', async () => {
  const { config: shape } = readModelShape(model, 'lm', 'model');
  const placement: Placement = {
    offload: { parameters: true, gradients: false, moments: true },
    prefetch: true,
    reduction: 'mini_batch',
    reduceDtype: 'bfloat16',
  };
  const spec = specOf(shape, 2, { placement, dtype: 'bfloat16', microBatches: 3 });
  const { simulation } = await simulate(spec);
  const expected = simulation.state;
  const { gradients } = expected;
  expect(gradients).toBeGreaterThanOrEqual((4 * countOf(shape)) / 2);
  expect(expected).toEqual({
    parameters: 0,
    gradients,
    moments: 0,
    host: { parameters: 1.5 * gradients, gradients: 0, moments: 2 * gradients },
  });
  const count = (phase: string, name: string): number =>
    simulation.collectives
      .filter((c) => c.phase === phase && c.name === name)
      .reduce((sum, c) => sum + c.count, 0);
  expect(count('backward', 'reduce_scatter')).toBe(simulation.groups.length);
  expect(count('backward', 'all_gather')).toBe(3 * (shape.numLayers - 1));
  const actor = await Actor.create({
    model,
    worldSize: 2,
    numThreads: 1,
    dtype: 'bfloat16',
    offload: { params: true, optimizer: true },
  });
  try {
    const held = await actor.engine.group.callAll(actor.engine.name, 'stateBytes', () => []);
    expect(held).toEqual([expected, expected]);
  } finally {
    await actor.close();
  }
}, 60_000);

test('collectives of one step of full_shard: a block is gathered for its forward and for its backward', async () => {
  const { config: shape } = readModelShape(model, 'lm', 'model');
  const layers = shape.numLayers;
  const [micro, ranks] = [3, 4];
  const simulated = await simulate(specOf(shape, ranks, { microBatches: micro, dtype: 'bfloat16' }));
  expect(simulated.microBatches).toBe(micro);
  const { groups } = simulated.simulation;
  const own = (name: string): number => (groups.find((g) => g.name === name) as (typeof groups)[number]).own;
  const totals = collectiveTotals(simulated);
  const of = (phase: string, name: string, subject: string) =>
    totals.find((t) => t.phase === phase && t.name === name && t.subject === subject);
  const others = ranks - 1;
  // The last block stays whole between its forward and its backward.
  expect(of('forward', 'all_gather', 'blocks')).toMatchObject({
    count: micro * layers,
    bytes: micro * layers * own('layers.0') * 2 * others,
  });
  expect(of('backward', 'all_gather', 'blocks')?.count ?? 0).toBe(micro * (layers - 1));
  expect(of('backward', 'reduce_scatter', 'blocks')).toMatchObject({
    count: micro * layers,
    bytes: micro * layers * own('layers.0') * 4 * others,
  });
  for (const root of ['embed', 'head']) {
    expect(of('forward', 'all_gather', root)).toMatchObject({
      count: micro,
      bytes: micro * own(root) * 2 * others,
    });
    expect(of('backward', 'reduce_scatter', root)).toMatchObject({ count: micro });
  }
  expect(of('optimizer', 'all_reduce', 'gradient norm')).toMatchObject({ count: 1 });
}, 60_000);

test('ranks that share micro-batches: the exchange around attention, of 8 key heads for 16 ranks', async () => {
  const { config: shape } = readModelShape(path.join(EXAMPLES, 'llama-70b'), 'lm', 'model');
  const { numLayers: layers, numHeads, numKvHeads, headDim } = shape;
  expect([numHeads, numKvHeads]).toEqual([64, 8]);
  const ulysses = 16;
  const spec = specOf(shape, 64, { dtype: 'bfloat16', ulysses, microBatches: 2 });
  const [role] = spec.roles as [RoleSpec];
  const longest = 128 * ulysses * 3 + 1;
  const load = { sequences: 2, longest, response: 1000 };
  const simulated = await simulate({
    ...spec,
    roles: [{ ...role, capacity: 128 * 3 + 1, gradientCheckpointing: true, update: load }],
  });
  expect(simulated.microBatches).toBe(2);
  const of = (phase: string, name: string, subject: string) =>
    collectiveTotals(simulated).find((t) => t.phase === phase && t.name === name && t.subject === subject);
  const rows = 128 * 3; // of a rank
  const pass = (layers * 2 * rows * (numHeads + ulysses) * headDim * 2 * (ulysses - 1)) / ulysses;
  expect(of('forward', 'all_to_all', 'attention')).toMatchObject({ count: 2 * layers * 2, bytes: 2 * pass });
  // Recomputed, and back.
  expect(of('backward', 'all_to_all', 'attention')).toMatchObject({ count: 2 * layers * 4, bytes: 4 * pass });
  for (const what of ['log-probs', 'entropy'])
    expect(of('forward', 'all_reduce', what)).toMatchObject({ count: 1, bytes: 4 * 2000 * (ulysses - 1) });
}, 60_000);

test.each(['llama-7b', 'llama-70b', 'llama-405b'])(
  '%s over up to 1024 ranks',
  async (name) => {
    const { config: shape } = readModelShape(path.join(EXAMPLES, name), 'lm', 'model');
    for (const worldSize of [8, 100, 1024]) {
      const { simulation } = await simulate(specOf(shape, worldSize, { dtype: 'bfloat16' }));
      const { groups, state } = simulation;
      expect(groups.map(({ name }) => name)).toEqual([
        'embed',
        ...Array.from({ length: shape.numLayers }, (_, layer) => `layers.${layer}`),
        'head',
      ]);
      expect(groups.every(({ whole, own }) => own * worldSize === whole)).toBe(true);
      const whole = groups.reduce((sum, group) => sum + group.whole, 0);
      const count = countOf(shape);
      expect(whole).toBeGreaterThanOrEqual(count);
      expect(whole - count).toBeLessThan(groups.length * 16 * (worldSize + 12)); // padding
      // Masters and their bfloat16 copy, gradients, both moments.
      const own = whole / worldSize;
      expect(state).toMatchObject({ parameters: 6 * own, gradients: 4 * own, moments: 8 * own });
    }
  },
  120_000,
);

test('the command prints shards and collectives of every role', () => {
  const root = path.resolve(__dirname, '../..');
  const args = ['plan', 'examples/plan/grpo.yaml', '--simulate', '--gpus', '16'];
  const run = (...more: string[]) =>
    spawnSync(process.execPath, ['dist/cli.js', ...args, ...more], { cwd: root, encoding: 'utf8' });
  const text = run();
  expect({ code: text.status, stderr: text.stderr }).toEqual({ code: 0, stderr: '' });
  expect(text.stdout).toMatch(
    /^actor: full_shard over 16 ranks in bfloat16; an optimiser step of \d+ micro-/,
  );
  expect(text.stdout).toMatch(/\nbackward: reduce_scatter +dp +blocks +\d+ +[\d.]+ MiB +[\d.]+ [GT]iB\n/);
  expect(text.stdout).toMatch(/\nreference: full_shard over 16 ranks/);
  const { worldSize, roles } = JSON.parse(run('--json').stdout) as {
    worldSize: number;
    roles: (RoleSimulation & { totals: unknown[] })[];
  };
  expect(worldSize).toBe(16);
  expect(roles.map(({ role }) => role)).toEqual(['actor', 'reference']);
  expect(roles.every(({ totals }) => totals.length > 0)).toBe(true);
}, 60_000);

test('a reward model with a pool of its own is simulated on its ranks', () => {
  const root = path.resolve(__dirname, '../..');
  const model = 'examples/plan/llama-7b';
  const reward = ['enable=true', 'enable_resource_pool=true', 'nnodes=1', 'n_gpus_per_node=4'];
  const args = ['plan', 'examples/plan/grpo.yaml', '--simulate', '--gpus', '20'];
  const keys = [...reward, `model_path=${model}`].map((key) => `reward.reward_model.${key}`);
  const run = spawnSync(process.execPath, ['dist/cli.js', ...args, ...keys], { cwd: root, encoding: 'utf8' });
  expect({ code: run.status, stderr: run.stderr }).toEqual({ code: 0, stderr: '' });
  expect(run.stdout).toMatch(
    /^20 ranks: 16 in pool policy, 4 in pool reward\n\nactor: full_shard over 16 ranks/,
  );
  expect(run.stdout).toMatch(
    /\n\nreward model: full_shard over 4 ranks in bfloat16; a pass of \d+ micro-batches/,
  );
}, 60_000);
