// `troupe plan` as people run it, on model directories that hold config.json alone.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { type Advice, advise } from '../../ts/planner/advice';
import { EngineMemory } from '../../ts/planner/engine_memory';
import { configuredPlan } from '../../ts/planner/from_config';
import { type Plan, type PlanSpec, planMemory } from '../../ts/planner/plan';

const ROOT = resolve(__dirname, '../..');
const MIB = 2 ** 20;
const directory = mkdtempSync(join(tmpdir(), 'plan-'));
/** As a 7B model, with fewer layers: what is simulated takes time by layers. */
const LAYERS = 4;
const llama = {
  model_type: 'llama',
  hidden_size: 4096,
  intermediate_size: 11008,
  num_hidden_layers: LAYERS,
  num_attention_heads: 32,
  num_key_value_heads: 32,
  vocab_size: 32000,
  max_position_embeddings: 4096,
  rms_norm_eps: 1e-5,
  tie_word_embeddings: false,
};

function file(name: string, text: string): string {
  const path = join(directory, name);
  mkdirSync(resolve(path, '..'), { recursive: true });
  writeFileSync(path, text);
  return path;
}

const config = file(
  'run.yaml',
  `
data: { train_files: train.jsonl, train_batch_size: 256, max_prompt_length: 512, max_response_length: 512 }
actor_rollout_ref:
  model: { path: model, enable_gradient_checkpointing: false }
  actor: { ppo_mini_batch_size: 64, use_kl_loss: true }
  rollout: { n: 4 }
algorithm: { adv_estimator: grpo }
`,
);
file('model/config.json', JSON.stringify(llama));
mkdirSync(join(directory, 'empty'));

function troupe(...args: string[]) {
  return troupeIn(process.env, ...args);
}

function troupeIn(env: NodeJS.ProcessEnv, ...args: string[]) {
  const run = spawnSync(process.execPath, [join(ROOT, 'dist', 'cli.js'), 'plan', ...args], {
    encoding: 'utf8',
    cwd: directory,
    env,
  });
  return { code: run.status, stdout: run.stdout, stderr: run.stderr };
}

type PoolReport = Plan & { spec: PlanSpec; advice: Advice };

const engines = new EngineMemory();
afterAll(() => engines.close());

/** The same in this process: of the policy's pool, and of the others. */
async function report(
  overrides: readonly string[] = [],
  o: { gpus?: number; memory?: number; file?: string; advise?: boolean } = {},
): Promise<PoolReport & { others: PoolReport[] }> {
  const cwd = process.cwd();
  process.chdir(directory);
  try {
    const request = { file: o.file ?? config, overrides, gpus: o.gpus ?? null, memory: o.memory ?? null };
    const pools: PoolReport[] = [];
    for (const spec of (await configuredPlan(request, engines)).pools) {
      const plan = await planMemory(spec, engines);
      const advice = o.advise ? await advise(spec, plan, engines) : { knobs: [], together: null };
      pools.push({ ...plan, spec, advice });
    }
    const [policy, ...others] = pools;
    return { ...(policy as PoolReport), others };
  } finally {
    process.chdir(cwd);
  }
}

test('a configuration that fits: exit code 0, every role and phase', async () => {
  const { code, stdout, stderr } = troupe(config, '--gpus', '8', '--gpu-memory', '80GiB');
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toMatch(
    /^note: trainer\.device is not given: planned for cuda\n8 ranks on cuda, 80\.00 GiB each/,
  );
  expect(stdout).toMatch(/\nactor +1\.07 B +bfloat16 +full_shard/);
  expect(stdout).toMatch(/\nreference +1\.07 B/);
  for (const phase of ['generate', 'compute_log_prob', 'update'])
    expect(stdout).toContain(`actor: ${phase} `);
  expect(stdout).toMatch(/\npeak: .* % of 80\.00 GiB: fits/);
});

test('LoRA: gradients and moments of adapters alone, and no reference of its own', async () => {
  const lora = await report(['actor_rollout_ref.model.lora_rank=16', 'trainer.device=cpu']);
  const dense = await report(['trainer.device=cpu']);
  const [actor] = lora.roles;
  expect(lora.roles.map(({ role }) => role)).toEqual(['actor']);
  expect(dense.roles.map(({ role }) => role)).toEqual(['actor', 'reference']);
  // 16 (in + out) for q, k, v, o (4096 + 4096) and gate, up, down (4096 + 11008) in each layer
  const adapters = LAYERS * 16 * (4 * 8192 + 3 * 15104);
  expect(actor).toMatchObject({ gradients: 4 * adapters, optimizer: 8 * adapters });
  expect(actor?.count).toBe((dense.roles[0]?.count as number) + adapters);
});

test('one that does not: exit code 2, one message, and the bytes that every knob saves', async () => {
  const { code, stdout, stderr } = troupe(config, '--gpus', '4', '--gpu-memory', '10GiB');
  expect(code).toBe(2);
  expect(stderr.trim().split('\n')).toHaveLength(1);
  expect(stderr).toMatch(
    /^troupe: error \(INVALID_CONFIG\): .*run\.yaml does not fit: update of the actor takes .* GiB per rank, which has 10\.00 GiB; .* would save .* GiB/,
  );
  expect(stdout).toMatch(/actor_rollout_ref\.model\.enable_gradient_checkpointing=true +saves [\d.]+ MiB +/);
  expect(stdout).toMatch(/actor_rollout_ref\.actor\.ppo_max_token_len_per_gpu=\d+ +saves [\d.]+ MiB +/);
  expect(stdout).toMatch(/--gpus \d+ +saves [\d.]+ GiB +/);
  expect(stdout).toMatch(/actor_rollout_ref\.actor\.fsdp_config\.optimizer_offload=true +saves 2\.01 GiB +/);
  expect(stdout).toMatch(/all of these but the reference +saves [\d.]+ GiB +fits/);
});

test('a knob does what it says', async () => {
  const target = { gpus: 4, memory: 15 * 2 ** 30 };
  const before = await report([], { ...target, advise: true });
  expect(before.fits).toBe(false);
  const { knobs } = before.advice;
  const keys = knobs.filter(({ change }) => /^\S+=\S+$/.test(change));
  expect(keys.map(({ change }) => change.split('=')[0])).toEqual(
    expect.arrayContaining([
      'actor_rollout_ref.model.enable_gradient_checkpointing',
      'actor_rollout_ref.actor.ppo_max_token_len_per_gpu',
      'actor_rollout_ref.actor.fsdp_config.optimizer_offload',
      'actor_rollout_ref.actor.fsdp_config.grad_offload',
      'actor_rollout_ref.actor.fsdp_config.param_offload',
      'actor_rollout_ref.ref.fsdp_config.param_offload',
    ]),
  );
  for (const { change, saves, fits } of keys) {
    const after = await report([change], target);
    expect(before.peak.total - after.peak.total).toBe(saves);
    expect(after.fits).toBe(fits);
  }
  const moments = knobs.find(({ change }) => change.includes('optimizer_offload'));
  expect(moments?.saves).toBe(2 * blocksOf(4, 4));
  const more = knobs.find(({ change }) => change.startsWith('--gpus')) as (typeof knobs)[number];
  expect(more.fits).toBe(true);
  const enough = await report([], { ...target, gpus: Number(more.change.split(' ')[1]) });
  expect(enough.fits).toBe(true);
});

/** Parameters of a block of layers. */
const BLOCK = 4 * 4096 ** 2 + 3 * 4096 * 11008 + 2 * 4096;
/** Of embeddings, blocks and head. */
const GROUPS = [32000 * 4096, ...Array.from({ length: LAYERS }, () => BLOCK), 32000 * 4096 + 4096];

/** So much of a GPU's memory: LibTorch has blocks of whole 2 MiB from 10 MiB on. */
const block = (bytes: number): number => Math.ceil(bytes / (2 * MIB)) * 2 * MIB;
/** So many bytes of each parameter, on one of `ranks`. */
const blocksOf = (bytes: number, ranks: number): number =>
  GROUPS.reduce((sum, count) => sum + block((bytes * count) / ranks), 0);

const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

const nothing = { parameters: 0, gradients: 0, optimizer: 0 };
const FSDP = 'actor_rollout_ref.actor.fsdp_config';

test('what is offloaded lies on the host, and one group of it at a time on a GPU; a CPU has no other memory', async () => {
  const target = { gpus: 4 };
  const state = (plan: Plan) => {
    const { parameters, gradients, optimizer } = plan.roles[0] as Plan['roles'][number];
    return { parameters, gradients, optimizer };
  };
  const phase = (plan: Plan, verb: string) =>
    plan.phases.find((p) => p.role === 'actor' && p.verb === verb) as Plan['phases'][number];
  const before = await report([], target);
  for (const [key, part] of [
    ['param_offload', 'parameters'],
    ['grad_offload', 'gradients'],
    ['optimizer_offload', 'optimizer'],
  ] as const) {
    const after = await report([`${FSDP}.${key}=true`], target);
    expect(state(after)).toEqual({ ...state(before), [part]: 0 });
    expect(after.roles[0]?.host).toEqual({ ...nothing, [part]: state(before)[part] });
    // What lies there is less than what is fetched.
    expect(after.peak.total).toBeLessThan(before.peak.total);
  }
  const all = await report([`${FSDP}.offload_policy=true`], target);
  expect(all.roles[0]?.host).toEqual(state(before));
  const { parameters, gradients, optimizer } = state(before);
  const perParameter = (bytes: Record<string, number>) =>
    Object.fromEntries(Object.entries(bytes).map(([part, each]) => [part, (each * sum(GROUPS)) / 4]));
  expect({ parameters, gradients, optimizer }).toEqual(
    perParameter({ parameters: 6, gradients: 4, optimizer: 8 }),
  );
  // Masters, their bfloat16 copy, gradients and two moments; a group that is gathered goes back at once.
  const saves = phase(before, 'compute_log_prob').total - phase(all, 'compute_log_prob').total;
  expect(saves).toBe(4 * blocksOf(4, 4) + blocksOf(2, 4));

  const cpu = ['trainer.device=cpu', `${FSDP}.dtype=bfloat16`];
  const saved = await report([...cpu, `${FSDP}.offload_policy=true`], target);
  const total = (plan: Plan): number => phase(plan, 'update').total;
  expect(total(saved)).toBeGreaterThanOrEqual(total(await report(cpu, target)));
});

test('gathering ahead takes one more block; gradients that are kept whole take all of them', async () => {
  const target = { gpus: 4 };
  const checkpointing = 'actor_rollout_ref.model.enable_gradient_checkpointing=true';
  const update = async (...overrides: string[]) => {
    const plan = await report([checkpointing, ...overrides], target);
    return plan.phases.find((p) => p.verb === 'update') as Plan['phases'][number];
  };
  const before = await update();
  const ahead = await update(`${FSDP}.forward_prefetch=true`);
  expect(ahead.instant).toBe(before.instant);
  expect(ahead.memory.gathered - before.memory.gathered).toBe(block(2 * BLOCK));
  const once = await update(`${FSDP}.gradient_reduction=mini_batch`);
  const words = 32000 * 4096;
  expect(once.memory.gathered - before.memory.gathered).toBe(
    (LAYERS - 1) * block(4 * BLOCK) + block(4 * words) + block(4 * (words + 4096)),
  );
});

test('gradient_reduction auto: mini_batch where it fits, micro_batch where it does not or the memory is not known', async () => {
  const auto = `${FSDP}.gradient_reduction=auto`;
  const chosen = async (memory?: number, ...overrides: string[]) => {
    const target = { gpus: 4, ...(memory === undefined ? {} : { memory }) };
    return (await report([auto, ...overrides], target)).spec.roles[0]?.placement.reduction;
  };
  const { peak } = await report([`${FSDP}.gradient_reduction=mini_batch`], { gpus: 4 });
  expect(await chosen()).toBe('micro_batch');
  expect(await chosen(peak.total)).toBe('mini_batch');
  expect(await chosen(peak.total - 1)).toBe('micro_batch');
  expect(await chosen(undefined, 'trainer.memory_per_rank=2TiB')).toBe('mini_batch');
  expect(await chosen(undefined, 'trainer.memory_per_rank=1GiB')).toBe('micro_batch');
});

test('numbers: a model in one process on a CPU is 16 bytes per parameter', async () => {
  const { roles, peak, fits, spec } = await report(['trainer.device=cpu']);
  expect({ device: spec.device, worldSize: spec.worldSize, fits }).toEqual({
    device: 'cpu',
    worldSize: 1,
    fits: null,
  });
  const [actor, reference] = roles as [Plan['roles'][number], Plan['roles'][number]];
  const count = LAYERS * BLOCK + 2 * 32000 * 4096 + 4096;
  expect(actor).toEqual({
    role: 'actor',
    count,
    parameters: 4 * count,
    gradients: 4 * count,
    optimizer: 8 * count,
    host: nothing,
  });
  expect(reference).toEqual({
    role: 'reference',
    count,
    parameters: 4 * count,
    gradients: 0,
    optimizer: 0,
    host: nothing,
  });
  expect(peak.memory.parameters).toBe(8 * count);
});

test('what follows from the configuration: critic, capacity, mini-batch, ranks', async () => {
  const roles = async (...overrides: string[]) => (await report(overrides)).roles.map(({ role }) => role);
  expect(await roles('algorithm.adv_estimator=gae')).toEqual(['actor', 'reference', 'critic']);
  expect(await roles('actor_rollout_ref.actor.use_kl_loss=false')).toEqual(['actor']);
  const reward = ['reward.reward_model.enable=true', 'reward.reward_model.model_path=model'];
  expect(await roles(...reward)).toEqual(['actor', 'reference', 'reward model']);
  const ranks = ['trainer.n_gpus_per_node=8', 'trainer.nnodes=2'];
  expect((await report(ranks)).spec.worldSize).toBe(16);
  expect((await report(ranks, { gpus: 4 })).spec.worldSize).toBe(4);
  const sharding = async (key: string) =>
    (await report([`actor_rollout_ref.actor.fsdp_config.${key}`], { gpus: 4 })).spec.roles[0]?.strategy;
  expect(await sharding('fsdp_size=-1')).toBe('full_shard');
  expect(await sharding('fsdp_size=1')).toBe('no_shard');
  expect(await sharding('reshard_after_forward=false')).toBe('shard_grad_op');
  // A mini-batch of one sequence cannot fill a micro-batch.
  const small = ['data.train_batch_size=1', 'actor_rollout_ref.actor.ppo_mini_batch_size=1'];
  const cpu = 'trainer.device=cpu';
  const one = await report([...small, 'actor_rollout_ref.rollout.n=1', cpu]);
  const update = (plan: Plan) => plan.phases.find(({ verb }) => verb === 'update')?.memory.activations ?? 0;
  expect(update(one)).toBeLessThan(update(await report([cpu])) / 10);
});

test('sequence parallelism: a part of as many times more sequences, and heads that divide', async () => {
  const key = 'actor_rollout_ref.actor.ulysses_sequence_parallel_size';
  const of = (...overrides: string[]) => report(overrides, { gpus: 8 });
  const [alone, shared] = [await of(), await of(`${key}=4`)];
  expect(shared.spec.roles.map(({ ulysses }) => ulysses)).toEqual([4, 4]); // the reference follows the actor
  expect(shared.spec.roles[0]?.update?.sequences).toBe(
    4 * (alone.spec.roles[0]?.update?.sequences as number),
  );
  const update = (plan: Plan) => plan.phases.find(({ verb }) => verb === 'update')?.memory.activations ?? 0;
  // The same number of rows per rank; the output of attention twice.
  expect(update(shared) / update(alone)).toBeGreaterThan(1);
  expect(update(shared) / update(alone)).toBeLessThan(1.2);
  await expect(report([`${key}=3`], { gpus: 9 })).rejects.toThrow(
    `${key}: expected a divisor of the 32 attention heads of the model, got 3`,
  );
});

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
    expect(fits.stdout.match(/^peak: /gm)).toHaveLength(2);
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

describe('ranks that share the model', () => {
  const actor = 'actor_rollout_ref.actor';
  const megatron = (o: Record<string, number | boolean>, ...more: string[]) => [
    `${actor}.strategy=megatron`,
    'actor_rollout_ref.ref.strategy=megatron',
    ...Object.entries(o).map(([key, value]) => `${actor}.megatron.${key}=${value}`),
    ...more,
  ];
  const [tp, pp, ep] = ['tensor', 'pipeline', 'expert'].map((kind) => `${kind}_model_parallel_size`) as [
    string,
    string,
    string,
  ];

  test('tp 2 x pp 2: the stage that holds most is shown, with what it has', async () => {
    const plan = await report(megatron({ [tp]: 2, [pp]: 2 }, 'trainer.device=cpu'), { gpus: 4 });
    expect(plan.ranks.map(({ rank, stages }) => [rank, stages])).toEqual([
      [0, [0, 0]],
      [2, [1, 1]],
    ]);
    // The first stage has a micro-batch more in flight. Half of two layers, norms whole; half of the embeddings.
    const own = (LAYERS / 2) * ((BLOCK - 2 * 4096) / 2 + 2 * 4096) + (32000 * 4096) / 2;
    expect(plan).toMatchObject({ rank: 0, stages: [0, 0] });
    expect(plan.roles[0]).toMatchObject({ parameters: 4 * own, gradients: 4 * own, optimizer: 8 * own });
    expect(plan.roles[0]?.count).toBe(sum(GROUPS));
    const generate = plan.spec.roles[0]?.rollouts[0];
    expect([generate?.prompts, plan.spec.roles[0]?.update?.sequences]).toEqual([256, 256]);
    const { code, stdout } = troupe(config, '--gpus', '4', ...megatron({ [tp]: 2, [pp]: 2 }));
    expect(code).toBe(0);
    expect(stdout).toMatch(/4 ranks on cuda; bytes of rank \d \(stage \d of 2\)\n/);
    expect(stdout).toMatch(/\nactor +1\.07 B +bfloat16 +shard_grad_op, tp 2 sequence parallel, pp 2 /);
    expect(stdout).toMatch(/\npeak: .*\n {2}rank \d \(stage \d of 2\): [\d.]+ GiB in \S+ of the actor\n$/);
  });

  test('ep 2: half of the experts, of whose ranks each has its own share of the data', async () => {
    const experts = {
      num_local_experts: 4,
      num_experts_per_tok: 2,
      intermediate_size: 512,
      hidden_size: 256,
    };
    const heads = { num_attention_heads: 4, num_key_value_heads: 4, vocab_size: 1000 };
    file('moe/config.json', JSON.stringify({ ...llama, ...experts, ...heads, model_type: 'mixtral' }));
    const overrides = megatron({ [ep]: 2 }, 'trainer.device=cpu', 'actor_rollout_ref.model.path=moe');
    const plan = await report(overrides, { gpus: 4 });
    const dense = LAYERS * (4 * 256 ** 2 + 4 * 256 + 2 * 256) + 2 * 1000 * 256 + 256;
    const own = dense / 4 + (LAYERS * 2 * 3 * 256 * 512) / 2; // 2 of 4 experts, on 2 ranks
    const { gradients = 0 } = plan.roles[0] ?? {};
    expect(gradients).toBeGreaterThanOrEqual(4 * own);
    expect(gradients).toBeLessThan(4.04 * own); // padded
    const [role] = plan.spec.roles;
    expect([role?.update?.sequences, role?.rollouts[0]?.prompts]).toEqual([64, 128]);
  });

  test('what does not divide is refused, with the numbers', async () => {
    await expect(report(megatron({ [tp]: 3 }), { gpus: 3 })).rejects.toThrow(/tp 3.*32 attention heads/);
    await expect(report(megatron({ [pp]: 8 }), { gpus: 8 })).rejects.toThrow(/4 layers do not make 8 parts/);
    await expect(report(megatron({ [tp]: 2 }), { gpus: 3 })).rejects.toThrow(
      /divisor of the number of workers \(3,.*got 2/,
    );
  });
});

test('positions of override_config in place of those of config.json', async () => {
  const longer = 'actor_rollout_ref.model.override_config.max_position_embeddings';
  const positions = async (...overrides: string[]) =>
    (await report(overrides)).spec.roles.map(({ model }) => model.maxPositions);
  expect(await positions()).toEqual([4096, 4096]);
  expect(await positions(`${longer}=8192`)).toEqual([8192, 8192]);
  // As long as the configuration says, and not as the model was.
  const short = 'data.max_prompt_length=64';
  const kept = async (...overrides: string[]) =>
    (
      await report(
        [
          short,
          'data.max_response_length=8000',
          ...overrides,
          'actor_rollout_ref.rollout.n=1',
          'data.train_batch_size=64',
        ],
        { gpus: 64 },
      )
    ).phases.find(({ verb }) => verb === 'generate')?.memory.kvCache;
  const cached = await kept(`${longer}=8192`);
  expect(cached).toBeGreaterThan(1.9 * ((await kept()) as number));
});

test('--json: the same numbers', async () => {
  const { code, stdout } = troupe(config, '--gpus', '2', '--json');
  expect(code).toBe(0);
  const { roles, phases, peak } = await report([], { gpus: 2 });
  expect(JSON.parse(stdout)).toMatchObject({ worldSize: 2, device: 'cuda', fits: null, roles, phases, peak });
});

test('--pipeline: the schedule of an update over so many stages, or why not', async () => {
  const { code, stdout } = troupe(config, '--gpus', '8', '--pipeline', '2x2');
  expect(code).toBe(0);
  expect(stdout).toMatch(/pipeline of the actor: 2 stages of 2 ranges of layers, 1f1b, \d+ micro-batches/);
  expect(stdout.match(/^ {2}stage \d /gm)).toHaveLength(2);
  expect(stdout).toMatch(/idle: [\d.]+ % of the work of a stage; \(p - 1\) \/ \(v m\) = [\d.]+ %/);
  expect(stdout).toContain('layers of each range: 1, 1, 1, 1');
  const refusal = (pipeline: string) => {
    const { code: failed, stderr } = troupe(config, '--gpus', '8', '--pipeline', pipeline);
    return `${failed} ${stderr}`;
  };
  expect(refusal('3')).toMatch(/^2 .*expected a number of stages that divides the 8 workers, got 3/);
  expect(refusal('2x5')).toMatch(
    /^2 .*actor: parallel\.pp 2 x parallel\.vpp 5: 4 layers do not make 10 parts/,
  );
  expect(refusal('two')).toMatch(/^2 .*--pipeline: expected stages such as 4, or 4x2, got two/);
});

test('supervised fine-tuning', async () => {
  const sft = file(
    'sft.yaml',
    'data: { train_files: a.jsonl, train_batch_size: 64 }\nmodel: { path: model }\n',
  );
  const { roles, phases } = await report([], { file: sft, gpus: 2 });
  expect(roles.map(({ role }) => role)).toEqual(['actor']);
  expect(phases.map(({ verb }) => verb)).toEqual(['load', 'update', 'save']);
});

const refused: [args: string[], message: RegExp][] = [
  [[], /Expected a configuration file/],
  [[config, '--gpu', '8'], /Unknown argument: gpu/],
  [[config, '--gpus', '0'], /--gpus: expected an integer from 1 to 65536, got 0/],
  [[config, '--gpus', 'many'], /--gpus: expected an integer/],
  [[config, '--gpu-memory', '80'], /--gpu-memory: expected a size such as 80GiB, got 80/],
  [['missing.yaml'], /cannot read the configuration missing\.yaml/],
  [[config, 'trainer.sedd=3'], /unknown key trainer\.sedd/],
  [
    [config, 'actor_rollout_ref.model.path=empty'],
    /actor_rollout_ref\.model\.path: expected a Hugging Face model directory with config\.json, got empty/,
  ],
];

test.each(refused)('%j: exit code 2 and one message', (args, message) => {
  const { code, stdout, stderr } = troupe(...args);
  expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
  expect(stderr).toMatch(message);
  expect(stderr.trim().split('\n')).toHaveLength(1);
});

test('without an engine there is no plan, and the message says what is missing', () => {
  const { code, stdout, stderr } = troupeIn({ ...process.env, TROUPE_LIBTORCH: '/nonexistent' }, config);
  expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
  expect(stderr).toMatch(
    /NATIVE_UNAVAILABLE.*TROUPE_LIBTORCH is \/nonexistent, .* Expected a LibTorch directory/,
  );
});

test('a config.json that no engine would load: exit code 1, naming the key', async () => {
  file('bad/config.json', JSON.stringify({ ...llama, model_type: 'mamba' }));
  const { code, stderr } = troupe(config, 'actor_rollout_ref.model.path=bad');
  expect(code).toBe(1);
  expect(stderr).toMatch(/INVALID_MODEL.*bad\/config\.json: model_type "mamba" is not supported/);
});
