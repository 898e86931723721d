// `troupe plan` of models that read images: what their towers hold for the images that a configuration allows.
import { type Plan, type PlanSpec, planMemory, type RoleSpec } from '../../ts/planner/plan';
import { config, engines, report, sum, troupe } from '../helpers/planned';
import { type VisionName, visionModel } from '../helpers/vision_model';

afterAll(() => engines.close());

const PROMPT = 256;
/** Of the fixtures: a token stands for 8 x 8 pixels, a patch is of 4 x 4 in two frames, and an image has 64 tokens at most. */
const TOKEN_BYTES = 3 * 8 ** 2;
const PATCH_VALUES = 3 * 2 * 4 ** 2;

const of = (name: VisionName, ...overrides: string[]): string[] => [
  `actor_rollout_ref.model.path=${visionModel(name).options.model}`,
  'trainer.device=cpu',
  'trainer.num_threads=1',
  'data.train_batch_size=16',
  'actor_rollout_ref.actor.ppo_mini_batch_size=8',
  `data.max_prompt_length=${PROMPT}`,
  'data.max_response_length=64',
  'actor_rollout_ref.rollout.n=4',
  'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024',
  ...overrides,
];

const phaseOf = (plan: Plan, verb: string, role = 'actor'): Plan['phases'][number] =>
  plan.phases.find((phase) => phase.role === role && phase.verb === verb) as Plan['phases'][number];
const activations = (plan: Plan, verb: string): number => phaseOf(plan, verb).memory.activations;

/** The same without images. */
function textPlan(spec: PlanSpec): Promise<Plan> {
  const roles = spec.roles.map(({ images: _, ...role }): RoleSpec => role);
  return planMemory({ ...spec, roles }, engines);
}

test.each(['qwen2_5_vl', 'qwen3_vl', 'glm4v'] as const)(
  '%s: every pass of a role has its images',
  async (name) => {
    const plan = await report(of(name));
    const text = await textPlan(plan.spec);
    // Patches of a micro-batch of four prompts: as float32, and of the update for its backward pass.
    const patches = 4 * 4 * PROMPT;
    for (const verb of ['compute_log_prob', 'update'])
      expect(activations(plan, verb) - activations(text, verb)).toBeGreaterThan(4 * PATCH_VALUES * patches);
    // Of one prompt at a time.
    expect(activations(plan, 'generate') - activations(text, 'generate')).toBeGreaterThan(
      4 * PATCH_VALUES * 4 * PROMPT,
    );
    expect(phaseOf(plan, 'compute_log_prob', 'reference').memory.activations).toBe(
      activations(plan, 'compute_log_prob'),
    );
    for (const verb of ['load', 'save']) expect(phaseOf(plan, verb).total).toBe(phaseOf(text, verb).total);
  },
);

test('short responses leave room for more prompts, and so for more images, in a micro-batch', async () => {
  // Two prompts with responses of 256, or three with those of one token.
  const long = ['data.max_response_length=256'];
  const plan = await report(of('qwen3_vl', ...long));
  const [role] = plan.spec.roles as [RoleSpec];
  const only = async (load: Partial<NonNullable<RoleSpec['update']>>): Promise<number> => {
    const update = { ...(role.update as NonNullable<RoleSpec['update']>), ...load };
    const found = await planMemory({ ...plan.spec, roles: [{ ...role, update }] }, engines);
    return activations(found, 'update');
  };
  const short = await only({ sequences: 8, longest: PROMPT + 1, response: 1 });
  expect(activations(plan, 'update')).toBe(short);
  // As many prompts as sequences, of which a mini-batch has eight: of one there is room for no more.
  const one = await only({ sequences: 4, samples: 4 });
  expect(one).toBeLessThan(short);
});

test('what is recomputed or frozen is not kept', async () => {
  const update = async (...overrides: string[]) =>
    activations(await report(of('qwen3_vl', ...overrides)), 'update');
  const kept = await update();
  expect(await update('actor_rollout_ref.model.enable_gradient_checkpointing=true')).toBeLessThan(kept);
  const frozen = await update('actor_rollout_ref.actor.freeze_vision_tower=true');
  expect(frozen).toBeLessThan(kept);
  const lora = await report(of('qwen3_vl', 'actor_rollout_ref.model.lora_rank=4'));
  expect(activations(lora, 'update')).toBeLessThan(kept);
});

test('the first stage of a pipeline has the tower, and the ranks of data parallelism have parts of a batch', async () => {
  const stages = [
    'actor_rollout_ref.actor.strategy=megatron',
    'actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2',
    'actor_rollout_ref.actor.use_kl_loss=false',
  ];
  const plan = await report(of('qwen2_5_vl', ...stages), { gpus: 2 });
  expect(plan.rank).toBe(0);
  const text = await textPlan(plan.spec);
  const [first, last] = plan.ranks.map(({ peak }) => peak.total) as [number, number];
  const [, lastOfText] = text.ranks.map(({ peak }) => peak.total) as [number, number];
  expect(first).toBeGreaterThan(last);
  // Pixels come to every rank of a pipeline.
  expect(last - lastOfText).toBeLessThan(2 * 16 * PROMPT * TOKEN_BYTES);
  const batch = async (gpus: number) =>
    phaseOf(await report(of('qwen2_5_vl'), { gpus }), 'update').memory.batch;
  expect([await batch(1), await batch(2)]).toEqual([16, 8].map((prompts) => prompts * PROMPT * TOKEN_BYTES));
});

test('pixels lie in the process of a rank, of a GPU on its host; a call has all mini-batches', async () => {
  const cpu = await report(of('qwen3_vl'));
  const bytes = (verb: string): number => phaseOf(cpu, verb).memory.batch;
  const whole = 16 * PROMPT * TOKEN_BYTES;
  expect(['compute_log_prob', 'update', 'generate', 'load'].map(bytes)).toEqual([whole, whole, whole, 0]);
  for (const { memory, total } of cpu.phases) expect(sum(Object.values(memory))).toBe(total);
  const gpu = await report(of('qwen3_vl', 'trainer.device=cuda'));
  expect(gpu.phases.map(({ memory }) => memory.batch)).toEqual(gpu.phases.map(() => 0));
});

test('what was assumed is said, and the size of images is that of the model or of the configuration', () => {
  const said = (...overrides: string[]) => {
    const { code, stdout, stderr } = troupe(config, ...of('qwen3_vl', ...overrides));
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return stdout;
  };
  const plain = said();
  expect(plain).toMatch(
    /^note: images: no data are looked at; counted are prompts whose 256 tokens are all of images, as far as these come out: 4 of at most 8 x 8 tokens, 256 in all\./m,
  );
  expect(plain).toMatch(/^phase .* KV cache +batch +with all held$/m);
  const larger = said('data.mm_processor_kwargs.max_pixels=16384', 'trainer.device=cuda');
  expect(larger).toContain('1 of at most 16 x 16 tokens, 256 in all');
  expect(larger).toMatch(/^note: images: their pixels take up to 768\.00 KiB of the host for each rank$/m);
  expect(troupe(config, 'trainer.device=cpu').stdout).not.toMatch(/images|batch +with/);
});
