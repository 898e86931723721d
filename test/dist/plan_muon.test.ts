import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { readModelShape } from '../../ts/checkpoint/model_shape';
import { resolveMuon } from '../../ts/engine/muon_options';
import type { NativeMuonOptions } from '../../ts/native/bridge';
import { ON_DEVICE, type ShardingStrategy } from '../../ts/planner/placement';
import { ONE_MODEL } from '../../ts/planner/places';
import type { PlanSpec, RoleLayout, RoleSpec } from '../../ts/planner/plan';
import { collectiveTotals } from '../../ts/planner/render_simulation';
import { type RoleSimulation, simulateRoles } from '../../ts/planner/simulate';
import { trafficFormulas } from '../../ts/planner/traffic';
import { CONFORMANCE } from '../helpers/conformance';
import { BLOCK, engines, LAYERS, report } from '../helpers/planned';
import { NO_KEYS } from '../helpers/role_keys';

afterAll(() => engines.close());

// What a plan says of Muon: half of the moments of linear layers, and a gather of directions.
const model = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');
const muon = resolveMuon('test', {}, 'float32') as NativeMuonOptions;

function specOf(worldSize: number, strategy: ShardingStrategy, layout: RoleLayout): PlanSpec {
  const role: RoleSpec = {
    name: 'actor',
    model: readModelShape(model, 'lm', 'model').config,
    dtype: 'float32',
    masterDtype: 'float32',
    muon,
    strategy,
    shardSize: null,
    ulysses: 1,
    layout,
    placement: ON_DEVICE,
    capacity: 8,
    gradientCheckpointing: false,
    activationOffload: false,
    inference: null,
    update: { sequences: 1, longest: 8, response: 4 },
    rollouts: [],
    keys: NO_KEYS,
  };
  return { device: 'cpu', worldSize, threads: 1, memory: null, roles: [role] };
}

const layoutOf = (tp: number, stages: number): RoleLayout => ({
  parallel: { ...ONE_MODEL.parallel, tp },
  pipeline: { ...ONE_MODEL.pipeline, stages },
});

test.each<[number, ShardingStrategy, RoleLayout]>([
  [1, 'no_shard', ONE_MODEL],
  [3, 'full_shard', ONE_MODEL],
  [2, 'no_shard', ONE_MODEL],
  [2, 'no_shard', layoutOf(2, 1)],
  [4, 'no_shard', layoutOf(2, 2)],
])('%d workers with %s hold and send what is simulated', async (worldSize, strategy, layout) => {
  const spec = specOf(worldSize, strategy, layout);
  const stages = await simulateRoles(spec);
  const { tp } = layout.parallel;
  const ranks = worldSize / tp / layout.pipeline.stages;
  const actor = await Actor.create({
    model,
    worldSize,
    numThreads: 1,
    maxTokensPerMicroBatch: 8,
    optim: { muon: {} },
    parallel: {
      tp,
      pp: layout.pipeline.stages,
      ...(ranks > 1 && strategy !== null ? { sharding: strategy } : {}),
    },
  });
  try {
    const { group, name } = actor.engine;
    const perStage = worldSize / stages.length;
    const each = Array.from(
      { length: worldSize },
      (_, rank) => (stages[Math.floor(rank / perStage)] as RoleSimulation).simulation,
    );
    for (const [rank, held] of (await group.callAll(name, 'stateBytes', () => [])).entries()) {
      const { moments, ...rest } = (each[rank] as RoleSimulation['simulation']).state;
      expect(held).toMatchObject(rest);
      // What is no matrix lies in some slices more than in others.
      expect(Math.abs(held.moments / moments - 1)).toBeLessThan(ranks > 1 ? 0.01 : 1e-12);
    }
    const before = await group.callAll(name, 'bytesSent', () => []);
    const rows = Array.from({ length: ranks }, () => [1, 2, 3, 4]);
    const batch = Batch.fromSequences(rows, rows);
    const column = new Float32Array(batch.numResponseTokens).fill(-5);
    await actor.updatePolicy(batch.with({ oldLogProbs: column, advantages: column }));
    const after = await group.callAll(name, 'bytesSent', () => []);
    const sent = each.map(({ collectives }) => collectives.reduce((sum, { bytes }) => sum + bytes, 0));
    expect(after.map((bytes, rank) => bytes - (before[rank] as number))).toEqual(sent);
  } finally {
    await actor.close();
  }
});

test.each<ShardingStrategy>(['full_shard', 'shard_grad_op', 'no_shard'])(
  '%s: bytes along dp are those of the formula',
  async (strategy) => {
    const spec = specOf(4, strategy, ONE_MODEL);
    const [simulated] = (await simulateRoles(spec)) as [RoleSimulation];
    const [formula, ...others] = trafficFormulas(spec.roles[0] as RoleSpec, simulated, spec);
    expect(others).toEqual([]);
    expect(formula?.text.includes('+ 4 B of momentum')).toBe(strategy !== 'no_shard');
    const blocks = collectiveTotals(simulated).filter(({ subject }) => subject === 'blocks');
    const counted = blocks.reduce((sum, { bytes }) => sum + bytes, 0);
    // The last block stays whole between its forward and its backward.
    const again = strategy === 'full_shard' ? (simulated.simulation.groups[1]?.own as number) * 4 * 3 : 0;
    expect(formula?.bytes).toBe(counted + again);
  },
);

test('half of the moments of linear layers, and no bfloat16 to advise', async () => {
  const optim = 'actor_rollout_ref.actor.optim.optimizer';
  const asked = { gpus: 2, memory: 40 * 2 ** 30, advise: true };
  const [adamw, halved] = await Promise.all([report([], asked), report([`${optim}=muon`], asked)]);
  const matrices = (LAYERS * (BLOCK - 2 * 4096)) / 2;
  const less = (adamw.roles[0]?.optimizer as number) - (halved.roles[0]?.optimizer as number);
  expect(less / (4 * matrices)).toBeCloseTo(1, 3); // norms lie in some slices more than in others
  expect(halved.peak.total).toBeLessThan(adamw.peak.total);
  const offers = ({ advice }: typeof adamw) => JSON.stringify(advice).includes('model_dtype');
  expect([offers(adamw), offers(halved)]).toEqual([true, false]);
});
