// `troupe plan` as people run it, on model directories that hold config.json alone.
import type { Plan } from '../../ts/planner/plan';
import {
  BLOCK,
  config,
  engines,
  file,
  GROUPS,
  LAYERS,
  llama,
  MIB,
  report,
  sum,
  troupe,
  troupeIn,
} from '../helpers/planned';

afterAll(() => engines.close());

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

test('more GPUs are advised as a plan for so many of them counts', async () => {
  const few = ['data.train_batch_size=8', 'actor_rollout_ref.actor.ppo_mini_batch_size=8'];
  // On four ranks a rank has eight sequences, which do not fill a micro-batch.
  const load = ['trainer.device=cpu', 'data.val_files=val.jsonl', ...few];
  const validated = ['data.val_batch_size=512', 'data.val_batch_size=null'];
  for (const validation of validated) {
    const overrides = [...load, validation];
    const two = await report(overrides, { gpus: 2 });
    const four = await report(overrides, { gpus: 4 });
    // So much that two ranks are not enough, and four are.
    const memory = (two.peak.total + four.peak.total) / 2;
    const one = await report(overrides, { gpus: 1, memory, advise: true });
    const enough = await report(overrides, { gpus: 4, memory });
    const more = one.advice.knobs.find(({ change }) => change.startsWith('--gpus'));
    expect(more).toMatchObject({ change: '--gpus 4', fits: true });
    expect(more!.saves).toBe(one.peak.total - enough.peak.total);
  }
});

test('one that does not: exit code 2, one message, and the bytes that every knob saves', async () => {
  const { code, stdout, stderr } = troupe(config, '--gpus', '4', '--gpu-memory', '10GiB');
  expect(code).toBe(2);
  expect(stderr.trim().split('\n')).toHaveLength(1);
  expect(stderr).toMatch(
    /^troupe: error \(INVALID_CONFIG\): .*run\.yaml does not fit: update of the actor takes .* GiB per rank, which has 10\.00 GiB; .* would save .* GiB/,
  );
  expect(stdout).toMatch(/actor_rollout_ref\.model\.enable_gradient_checkpointing=true +saves [\d.]+ GiB +/);
  expect(stdout).toMatch(/actor_rollout_ref\.actor\.ppo_max_token_len_per_gpu=\d+ +saves [\d.]+ GiB +/);
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
      'actor_rollout_ref.actor.fsdp_config.model_dtype',
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

/** So much of a GPU's memory: LibTorch has blocks of whole 2 MiB from 10 MiB on. */
const block = (bytes: number): number => Math.ceil(bytes / (2 * MIB)) * 2 * MIB;
/** So many bytes of each parameter, on one of `ranks`. */
const blocksOf = (bytes: number, ranks: number): number =>
  GROUPS.reduce((sum, count) => sum + block((bytes * count) / ranks), 0);

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

test('activations of a GPU that wait on the host are advised, and save what is said', async () => {
  const checkpointing = 'actor_rollout_ref.model.enable_gradient_checkpointing=true';
  const change = 'actor_rollout_ref.model.enable_activation_offload=true';
  const target = { gpus: 4, memory: 2 ** 30, advise: true };
  const before = await report([checkpointing], target);
  const knob = before.advice.knobs.find((other) => other.change === change);
  const after = await report([checkpointing, change], target);
  expect(knob?.saves).toBe(before.peak.total - after.peak.total);
  expect(knob?.saves).toBeGreaterThan(0);
  expect(after.advice.knobs.map((other) => other.change)).not.toContain(change);
  const kept = await report([], target);
  expect(kept.advice.knobs.map((other) => other.change)).not.toContain(change);
  const cpu = await report([checkpointing, 'trainer.device=cpu'], target);
  expect(cpu.advice.knobs.map((other) => other.change)).not.toContain(change);
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
  // In place of all of them, two of one block that are on their way while another is computed.
  const onTheirWay = 2 * block(4 * BLOCK);
  expect(once.memory.gathered - before.memory.gathered).toBe(
    (LAYERS - 1) * block(4 * BLOCK) + block(4 * words) + block(4 * (words + 4096)) - onTheirWay,
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

test('positions of override_config in place of those of config.json', async () => {
  const longer = 'actor_rollout_ref.model.override_config.max_position_embeddings';
  const positions = async (...overrides: string[]) =>
    (await report(overrides)).spec.roles.map(({ model }) => model.maxPositions);
  expect(await positions()).toEqual([4096, 4096]);
  expect(await positions(`${longer}=8192`)).toEqual([8192, 8192]);
  // As long as the configuration says, and not as the model was.
  const short = 'data.max_prompt_length=64';
  const kept = async (response: number, ...overrides: string[]) =>
    (
      await report(
        [
          short,
          `data.max_response_length=${response}`,
          ...overrides,
          'actor_rollout_ref.rollout.n=1',
          'data.train_batch_size=64',
        ],
        { gpus: 64 },
      )
    ).phases.find(({ verb }) => verb === 'generate')?.memory.kvCache;
  await expect(kept(8128)).rejects.toThrow(/8192 tokens are more than the 4096 positions of the model/);
  const cached = await kept(8128, `${longer}=8192`);
  expect(cached).toBeGreaterThan(1.9 * ((await kept(4032)) as number));
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
  [[config, '--gpus', 'many'], /--gpus: expected a number, got many/],
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

test('the trainer’s process: each phase, the peak, and a warning where its machine has less', () => {
  const plan = (...args: string[]) => troupe(config, '--gpus', '8', ...args);
  const { code, stdout } = plan('--controller-memory', '1TB');
  expect(code).toBe(0);
  // 256 prompts x 4 sequences of 1,024 tokens
  expect(stdout).toMatch(/\nthe trainer's process, per step: 1024 sequences, 1\.05 M tokens\n/);
  for (const phase of ['gen', 'reward', 'old_log_prob', 'ref', 'adv', 'update_actor'])
    expect(stdout).toMatch(new RegExp(`\\n${phase} +[\\d.]+ MiB `));
  expect(stdout).toMatch(/\npeak: [\d.]+ MiB in \w+, 0 % of the [\d.]+ GiB of its machine\n$/);
  const little = plan('--controller-memory', '256MiB');
  expect(little.code).toBe(0);
  expect(little.stdout).toMatch(
    /\nwarning: the trainer's process takes [\d.]+ MiB .*its machine has 256\.00 MiB/,
  );
  const { controller } = JSON.parse(plan('--json').stdout);
  expect(controller.peak.total).toBeGreaterThan(256 * MIB);
  expect(controller.warnings).toEqual([]);
});
