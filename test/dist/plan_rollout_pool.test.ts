import { type Plan, planMemory } from '../../ts/planner/plan';
import { config, engines, MIB, type PoolReport, report, troupe } from '../helpers/planned';

afterAll(() => engines.close());

const ROLLOUT = 'actor_rollout_ref.rollout';
const own = (ranks: number, ...more: string[]) => [
  `${ROLLOUT}.nnodes=1`,
  `${ROLLOUT}.n_gpus_per_node=${ranks}`,
  ...more,
];
const rolesOf = ({ roles }: Plan): string[] => roles.map(({ role }) => role);
const verbsOf = ({ phases }: Plan): string[] => phases.map(({ role, verb }) => `${role}: ${verb}`);

describe('generation in workers of its own', () => {
  test('is counted on these, and nothing of it on those of the policy', async () => {
    const policy = ['trainer.n_gpus_per_node=4', 'data.val_files=val.jsonl'];
    const shared = await report(policy);
    const separate = await report([...policy, ...own(2)]);
    expect(verbsOf(shared)).toEqual(expect.arrayContaining(['actor: generate', 'actor: validate']));
    expect(rolesOf(separate)).toEqual(['actor', 'reference']);
    expect(separate.spec.worldSize).toBe(4);
    expect(separate.phases).toEqual(shared.phases.filter(({ verb }) => !/generate|validate/.test(verb)));

    const [pool] = separate.others as [PoolReport];
    expect(pool.spec).toMatchObject({ worldSize: 2, pool: { name: 'rollout', otherRanks: 4 } });
    expect(rolesOf(pool)).toEqual(['rollout']);
    expect(verbsOf(pool)).toEqual(['rollout: load', 'rollout: generate', 'rollout: validate']);
    const [state] = pool.roles as [Plan['roles'][number]];
    const actor = shared.roles[0] as Plan['roles'][number];
    expect([state.gradients, state.optimizer]).toEqual([0, 0]);
    // Half of it on each rank, where a quarter was, in bfloat16 without masters (2 of 6 bytes), and twice as many prompts.
    expect(state.parameters / actor.parameters).toBeCloseTo(2 / 3, 3);
    const prompts = ({ spec }: PoolReport) => spec.roles[0]?.rollouts[0]?.prompts;
    expect([prompts(shared), prompts(pool)]).toEqual([64, 128]);
    // Neither the state of training nor of the reference is beside it.
    const peak = ({ phases }: Plan): number => phases.find(({ verb }) => verb === 'generate')?.total ?? 0;
    expect(peak(pool)).toBeLessThan(peak(shared));
    expect(pool.peak.total).toBe((await planMemory(pool.spec, engines)).peak.total);
  });

  test('what decodes together holds a part of every matrix, also where training is laid out by Megatron', async () => {
    const megatron = [
      'trainer.n_gpus_per_node=2',
      'actor_rollout_ref.actor.strategy=megatron',
      'actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2',
    ];
    const pool = async (ranks: number, t: number): Promise<PoolReport> =>
      (await report([...megatron, ...own(ranks, `${ROLLOUT}.tensor_model_parallel_size=${t}`)]))
        .others[0] as PoolReport;
    const gathered = ({ phases }: Plan): number =>
      phases.find(({ verb }) => verb === 'generate')?.memory.gathered ?? 0;
    const [whole, halves] = [await pool(4, 1), await pool(4, 2)];
    expect(whole.spec.roles[0]?.layout.parallel.tp).toBe(1);
    expect(gathered(halves) / gathered(whole)).toBeCloseTo(0.5, 1);
    expect(gathered(whole)).toBeGreaterThan(1000 * MIB);
    await expect(pool(9, 3)).rejects.toThrow(
      /tensor_model_parallel_size: expected a divisor of the 32 attention heads of the model, got 3/,
    );
  });

  test('adapters are there beside the model', async () => {
    const lora = ['actor_rollout_ref.model.lora_rank=8'];
    const parameters = (pool: PoolReport): number => pool.roles[0]?.count ?? 0;
    const [plain] = (await report(own(1))).others as [PoolReport];
    const [adapted] = (await report([...own(1), ...lora])).others as [PoolReport];
    expect(parameters(adapted)).toBeGreaterThan(parameters(plain));
  });

  test('--gpus counts all pools', async () => {
    const sizes = ({ spec, others }: Awaited<ReturnType<typeof report>>): (string | number)[] => [
      spec.worldSize,
      ...others.flatMap((other) => [other.spec.pool?.name ?? '', other.spec.worldSize]),
    ];
    const reward = [
      'reward.reward_model.enable=true',
      'reward.reward_model.model_path=model',
      'reward.reward_model.enable_resource_pool=true',
      'reward.reward_model.nnodes=1',
      'reward.reward_model.n_gpus_per_node=1',
    ];
    expect(sizes(await report([...own(2), ...reward], { gpus: 8 }))).toEqual([5, 'rollout', 2, 'reward', 1]);
    const machines = ['trainer.nnodes=3', 'trainer.n_gpus_per_node=4', `${ROLLOUT}.nnodes=2`];
    expect(sizes(await report(machines))).toEqual([12, 'rollout', 8]);
    await expect(report([...own(2), ...reward], { gpus: 3 })).rejects.toThrow(
      /^--gpus 3: expected more than the 2 that the rollout's own pool takes \(actor_rollout_ref\.rollout\.n_gpus_per_node x nnodes\) and the 1 that the reward model's own pool takes/,
    );
  });

  test('its own knobs, which do what they say', async () => {
    const target = { gpus: 10, memory: 4.5 * 2 ** 30 };
    const wide = own(2, 'actor_rollout_ref.actor.fsdp_config.dtype=float32');
    const before = (await report(wide, { ...target, advise: true })).others[0] as PoolReport;
    expect(before.fits).toBe(false);
    const { knobs } = before.advice;
    expect(knobs.map(({ change }) => change.replace(/\d+/g, 'N'))).toEqual(
      expect.arrayContaining([
        'actor_rollout_ref.actor.fsdp_config.dtype=bfloatN',
        `--gpus N ${ROLLOUT}.n_gpus_per_node=N`,
      ]),
    );
    expect(knobs.filter(({ change }) => /offload|micro_batch|max_token_len/.test(change))).toEqual([]);
    for (const { change, saves } of knobs) {
      const [, gpus, ranks] = /^--gpus (\d+) \S+=(\d+)$/.exec(change) ?? [];
      const changed =
        gpus === undefined
          ? await report([...wide, change], target)
          : await report(own(Number(ranks), wide.at(-1) as string), { ...target, gpus: Number(gpus) });
      expect(before.peak.total - (changed.others[0] as PoolReport).peak.total).toBe(saves);
    }
  });

  test('the command: a table for it, and JSON below rolloutPool', () => {
    const text = troupe(config, '--gpus', '10', '--gpu-memory', '80GiB', ...own(2));
    expect({ code: text.code, stderr: text.stderr }).toEqual({ code: 0, stderr: '' });
    expect(text.stdout).toMatch(
      /\n10 ranks: 8 in pool policy, 2 in pool rollout\n\npool policy: 8 ranks on cuda/,
    );
    expect(text.stdout).toMatch(/\n\npool rollout: 2 ranks on cuda, [\s\S]*\nrollout: generate /);
    const { rolloutPool, rewardPool } = JSON.parse(troupe(config, '--json', ...own(3)).stdout);
    expect([rolloutPool.worldSize, rolloutPool.peak.verb, rewardPool]).toEqual([3, 'generate', undefined]);
    const simulated = troupe(config, '--simulate', '--json', ...own(2));
    expect({ code: simulated.code, stderr: simulated.stderr }).toEqual({ code: 0, stderr: '' });
    expect(JSON.parse(simulated.stdout).rolloutPool.roles[0].role).toBe('rollout');
  });
});
