import { type Plan, planMemory } from '../../ts/planner/plan';
import { config, engines, type PoolReport, report, troupe } from '../helpers/planned';

afterAll(() => engines.close());

describe('a reward model with a pool of its own', () => {
  const model = ['reward.reward_model.enable=true', 'reward.reward_model.model_path=model'];
  const own = (ranks: number, machines = 1) => [
    ...model,
    'reward.reward_model.enable_resource_pool=true',
    `reward.reward_model.nnodes=${machines}`,
    `reward.reward_model.n_gpus_per_node=${ranks}`,
  ];
  const rolesOf = ({ roles }: Plan): string[] => roles.map(({ role }) => role);

  test('is counted on its own ranks, and nothing of it on those of the policy', async () => {
    const policy = ['trainer.n_gpus_per_node=4'];
    const shared = await report([...policy, ...model]);
    const without = await report(policy);
    const separate = await report([...policy, ...own(2)]);
    expect(shared.others).toEqual([]);
    expect(rolesOf(shared)).toEqual(['actor', 'reference', 'reward model']);
    expect(rolesOf(separate)).toEqual(['actor', 'reference']);
    expect(separate.spec.worldSize).toBe(4);
    expect(separate.phases).toEqual(without.phases);
    expect(shared.peak.total).toBeGreaterThan(separate.peak.total);

    const [reward] = separate.others as [PoolReport];
    expect(reward.spec.worldSize).toBe(2);
    expect(rolesOf(reward)).toEqual(['reward model']);
    // Half of it on each rank, where a quarter was; its part of the batch is as much larger.
    const state = (plan: Plan) => plan.roles.find(({ role }) => role === 'reward model');
    expect((state(reward)?.parameters as number) / (state(shared)?.parameters as number)).toBeCloseTo(2, 3);
    const load = ({ spec }: PoolReport) => spec.roles.find(({ name }) => name === 'reward model')?.inference;
    expect([load(shared)?.sequences, load(reward)?.sequences]).toEqual([256, 512]);
    expect(reward.peak.total).toBe((await planMemory(reward.spec, engines)).peak.total);
    expect(new Set(reward.phases.map(({ role }) => role))).toEqual(new Set(['reward model']));
  });

  test('--gpus counts both pools; machines count as well, by the older names, too', async () => {
    const sizes = ({ spec, others }: Awaited<ReturnType<typeof report>>): number[] => [
      spec.worldSize,
      ...others.map((other) => other.spec.worldSize),
    ];
    expect(sizes(await report(own(2), { gpus: 8 }))).toEqual([6, 2]);
    expect(sizes(await report([...own(4, 3), 'trainer.nnodes=2', 'trainer.n_gpus_per_node=8']))).toEqual([
      16, 12,
    ]);
    const older = ['enable_resource_pool=true', 'nnodes=2'].map((key) => `reward_model.${key}`);
    expect(sizes(await report([...model, ...older]))).toEqual([1, 16]);
    await expect(report(own(2), { gpus: 2 })).rejects.toThrow(
      /^--gpus 2: expected more than the 2 that the reward model's own pool takes/,
    );
    await expect(report([...model, 'reward.reward_model.enable_resource_pool=true'])).rejects.toThrow(
      /nnodes: expected 1 because .* got 0/,
    );
    const key = 'reward.reward_model.ulysses_sequence_parallel_size';
    await expect(report([...own(3), `${key}=2`], { gpus: 7 })).rejects.toThrow(
      /divisor of the number of workers \(3,/,
    );
  });

  test('its own knobs, which do what they say', async () => {
    const target = { gpus: 10, memory: 4.2 * 2 ** 30 };
    const before = (await report(own(2), { ...target, advise: true })).others[0] as PoolReport;
    expect(before.fits).toBe(false);
    const { knobs, together } = before.advice;
    expect(together?.change).toMatch(/^all of these(, |$)/);
    const more = knobs.find(({ change }) => change.startsWith('--gpus')) as (typeof knobs)[number];
    const [, gpus, ranks] =
      /^--gpus (\d+) reward\.reward_model\.n_gpus_per_node=(\d+)$/.exec(more.change) ?? [];
    const after = await report(own(Number(ranks)), { ...target, gpus: Number(gpus) });
    expect(after.spec.worldSize).toBe(8);
    expect(before.peak.total - (after.others[0] as PoolReport).peak.total).toBe(more.saves);
    for (const { change, saves } of knobs.filter(({ change }) => /^\S+=\S+$/.test(change))) {
      const changed = (await report([...own(2), change], target)).others[0] as PoolReport;
      expect(before.peak.total - changed.peak.total).toBe(saves);
    }
  });

  test('the command: a table for each, and which of them does not fit', async () => {
    const fits = troupe(config, '--gpus', '10', '--gpu-memory', '80GiB', ...own(2));
    expect({ code: fits.code, stderr: fits.stderr }).toEqual({ code: 0, stderr: '' });
    expect(fits.stdout).toMatch(
      /\n10 ranks: 8 in pool policy, 2 in pool reward\n\npool policy: 8 ranks on cuda, 80\.00 GiB each/,
    );
    expect(fits.stdout).toMatch(/\n\npool reward: 2 ranks on cuda, [\s\S]*\nreward model: score /);
    expect(fits.stdout.match(/^peak: /gm)).toHaveLength(3); // one of each pool, and the trainer's process
    const large = troupe(config, '--gpus', '34', '--gpu-memory', '5GiB', '--json', ...own(2));
    expect(large.code).toBe(2);
    expect(large.stderr).toMatch(/does not fit: .*score of the reward model takes .* which has 5\.00 GiB/);
    const { fits: policy, rewardPool } = JSON.parse(large.stdout);
    expect([policy, rewardPool.fits, rewardPool.worldSize]).toEqual([
      (await report(own(2), { gpus: 34, memory: 5 * 2 ** 30 })).fits,
      false,
      2,
    ]);
  });

  test('memory that the configuration gives is refused in its own number', async () => {
    const { code, stderr } = troupe(config, 'trainer.memory_per_rank=2GiB', ...own(1));
    expect(code).toBe(2);
    expect(stderr).toMatch(
      /of the actor takes .* which has 2\.00 GiB;.*; score of the reward model takes .* which has 2\.00 GiB/,
    );
  });
});
