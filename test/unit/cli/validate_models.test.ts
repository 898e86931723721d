// What `troupe validate` and `troupe plan` find in the models of a run, where these are at hand.
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { validate } from '../../../ts/cli/validate';
import { configuredPlan } from '../../../ts/planner/from_config';
import { SHARDED_MODEL as MODEL } from '../../helpers/sharded';
import { VISION_MODEL, visionModel } from '../../helpers/vision_model';
import { MINIMAL, writeConfig } from '../config/write_config';
import { tokenizerDirectory } from '../data/fake_tokenizer';

const printed = async (keys: string[], text = MINIMAL): Promise<string> => {
  const lines: string[] = [];
  const write = jest
    .spyOn(process.stdout, 'write')
    .mockImplementation((line) => lines.push(String(line)) > 0);
  try {
    await validate(writeConfig(text), keys);
  } finally {
    write.mockRestore();
  }
  return lines.join('');
};

const POLICY = 'actor_rollout_ref.model.path';
const GRPO = 'algorithm.adv_estimator=grpo';
const reads = `${POLICY}=${VISION_MODEL}`;
/** That the small models have positions for. */
const LENGTHS = ['data.max_prompt_length=64', 'data.max_response_length=64'];
const smaller = (of: string, change: object): string => {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-smaller-'));
  const config = JSON.parse(readFileSync(join(of, 'config.json'), 'utf8'));
  writeFileSync(join(directory, 'config.json'), JSON.stringify({ ...config, ...change }));
  return directory;
};
const short = smaller(MODEL, { max_position_embeddings: 127 });

test.each([
  [[], /algorithm\.adv_estimator: the policy in .* reads images: a critic of its family is not there/],
  [
    [GRPO, 'actor_rollout_ref.rollout.name=vllm', 'actor_rollout_ref.rollout.mode=managed'],
    /actor_rollout_ref\.rollout\.mode: .* reads images/,
  ],
  [
    [
      GRPO,
      `${POLICY}=${visionModel('qwen3_5').options.model}`,
      'actor_rollout_ref.model.read_images=true',
      'trainer.n_gpus_per_node=4',
      'actor_rollout_ref.actor.ulysses_sequence_parallel_size=4',
    ],
    /parallel\.ulysses 4: expected a divisor of the 2 key heads of the linear attention of the model/,
  ],
  [
    [GRPO, 'actor_rollout_ref.model.lora_rank=2', 'actor_rollout_ref.model.target_modules=[q_prj]'],
    /actor_rollout_ref\.model.*'q_prj' matches no linear layer/,
  ],
])('a policy that reads images is not validated with %j', async (keys, message) => {
  await expect(printed([reads, ...keys])).rejects.toThrow(message);
});

const MEGATRON = 'actor_rollout_ref.actor.megatron';
test.each([
  [['actor_rollout_ref.model.lora_rank=2']],
  [['trainer.n_gpus_per_node=2', 'actor_rollout_ref.actor.ulysses_sequence_parallel_size=2']],
  [
    [
      'trainer.n_gpus_per_node=4',
      'actor_rollout_ref.actor.strategy=megatron',
      `${MEGATRON}.context_parallel_size=2`,
      `${MEGATRON}.tensor_model_parallel_size=2`,
    ],
  ],
])('what a model that reads images can do is validated, and it was looked at: %j', async (keys) => {
  const text = await printed([reads, GRPO, ...LENGTHS, ...keys]);
  expect(text).toContain('is a valid configuration of troupe train');
  expect(text).not.toContain('no config.json');
});

test('heads that do not divide are found before a run, in fine-tuning as well', async () => {
  const layout = 'ulysses_sequence_parallel_size=3';
  await expect(
    printed([
      `${POLICY}=${MODEL}`,
      GRPO,
      `actor_rollout_ref.actor.${layout}`,
      'trainer.n_gpus_per_node=3',
      'data.train_batch_size=48',
    ]),
  ).rejects.toThrow(/parallel\.ulysses 3: expected a divisor of the \d+ attention heads/);
  const sft = `model: { path: ${MODEL} }\ndata: { train_files: a.jsonl, train_batch_size: 12 }\n`;
  await expect(printed([layout, 'trainer.n_gpus_per_node=3'], sft)).rejects.toThrow(
    /parallel\.ulysses 3: expected a divisor of the \d+ attention heads/,
  );
});

test.each<[string, string[], RegExp]>([
  [
    MODEL,
    ['engine.pipeline_model_parallel_size=4'],
    /^\[engine\] parallel\.pp 4 .* layers do not make 4 parts/,
  ],
  [
    MODEL,
    ['engine.expert_model_parallel_size=2'],
    /^engine\.expert_model_parallel_size: the model in .* has no experts that 2 workers could share: expected 1/,
  ],
  [
    MODEL,
    ['engine.override_transformer_config.moe_z_loss_coeff=0.001'],
    /^model\.router_z_loss_coef: the model in .* has no experts/,
  ],
])('Megatron’s keys of a supervised run are held against its model %s: %j', async (path, keys, message) => {
  const sft = `{ model: { path: ${path} }, data: { train_files: a.jsonl }, engine: { strategy: megatron }, trainer: { n_gpus_per_node: 4 } }`;
  await expect(printed(keys, sft)).rejects.toThrow(message);
  expect(await printed(['engine.tensor_model_parallel_size=2'], sft)).toContain(
    'is a valid configuration of troupe sft',
  );
});

test('a loss of routers is found where the model has none', async () => {
  await expect(
    printed([`${POLICY}=${MODEL}`, GRPO, 'actor_rollout_ref.actor.router_z_loss_coef=0.001']),
  ).rejects.toThrow(/actor\.router_z_loss_coef: the model in .* has no experts: expected 0, got 0\.001/);
});

const TEACHER = 'distillation.teacher_models.teacher_model.model_path';
test.each([
  [
    ['actor_rollout_ref.actor.router_replay.mode=R2'],
    /^actor_rollout_ref\.actor\.router_replay\.mode: the model in .* has no experts: expected disabled, got R2/,
  ],
  [
    ['actor_rollout_ref.actor.megatron.router_replay.mode=R2'],
    /^actor_rollout_ref\.actor\.megatron\.router_replay\.mode: the model in .* has no experts/,
  ],
  [
    [
      'distillation.enabled=true',
      `${TEACHER}=${MODEL}`,
      'distillation.distillation_loss.loss_mode=forward_kl_topk',
      'distillation.distillation_loss.topk=1000',
      'data.max_prompt_length=64',
      'data.max_response_length=64',
    ],
    /^distillation\.distillation_loss\.topk: expected at most \d+, the vocabulary of the teacher in .*, got 1000/,
  ],
  [
    ['distillation.enabled=true', `${TEACHER}=${short}`, ...LENGTHS],
    /model_path: data\.max_prompt_length 64 \+ .* are more than the 127 positions of the teacher/,
  ],
])('what the models have not is neither validated nor planned: %j', async (keys, message) => {
  const overrides = [
    `${POLICY}=${MODEL}`,
    GRPO,
    'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=200000',
    ...keys,
  ];
  await expect(printed(overrides)).rejects.toThrow(message);
  const request = { file: writeConfig(), overrides, gpus: null, memory: null };
  await expect(configuredPlan(request, undefined as never)).rejects.toThrow(message);
});

const CRITIC = 'critic.model.path';
const REWARD = 'reward.reward_model';
/** Of which the tokenizer knows 49 ids. */
const withTokenizer = [
  `${POLICY}=${MODEL}`,
  `actor_rollout_ref.model.tokenizer_path=${tokenizerDirectory()}`,
];

test.each<[string, string[], RegExp]>([
  [
    'the policy',
    [`${POLICY}=${short}`, GRPO],
    /^data\.max_response_length: data\.max_prompt_length 64 \+ data\.max_response_length 64 = 128 tokens are more than the 127 positions of the model in/,
  ],
  [
    'the critic',
    [`${POLICY}=${MODEL}`, `${CRITIC}=${short}`],
    /^critic\.model\.path: .* = 128 tokens are more than the 127 positions of the critic in/,
  ],
  [
    'the reward model',
    [`${POLICY}=${MODEL}`, GRPO, `${REWARD}.enable=true`, `${REWARD}.model_path=${short}`],
    /^reward\.reward_model\.model_path: .* the 127 positions of the reward model in .*reward\.reward_model\.truncation=left/,
  ],
  [
    'what responses may have',
    [`${POLICY}=${short}`, GRPO, 'actor_rollout_ref.rollout.max_model_len=128'],
    /^actor_rollout_ref\.rollout\.max_model_len: expected at most 127, the positions of the policy in .*, got 128/,
  ],
  [
    'the vocabulary of the critic',
    [...withTokenizer, `${CRITIC}=${smaller(MODEL, { vocab_size: 48 })}`],
    /^critic\.model\.path: the critic in .* has a vocabulary of 48 tokens, and the tokenizer of the policy \(.*\) makes ids up to 48/,
  ],
])('sequences that do not fit are neither validated nor planned: %s', async (_, keys, message) => {
  const overrides = [...LENGTHS, ...keys];
  await expect(printed(overrides)).rejects.toThrow(message);
  const request = { file: writeConfig(), overrides, gpus: null, memory: null };
  await expect(configuredPlan(request, undefined as never)).rejects.toThrow(message);
});

test.each<[string, string[]]>([
  ['as long as there are positions', [`${POLICY}=${smaller(MODEL, { max_position_embeddings: 128 })}`, GRPO]],
  [
    'longer, but bounded together',
    [`${POLICY}=${MODEL}`, `${CRITIC}=${short}`, 'actor_rollout_ref.rollout.max_model_len=127'],
  ],
  [
    'positions that the configuration gives',
    [`${POLICY}=${MODEL}`, `${CRITIC}=${short}`, 'critic.model.override_config.max_position_embeddings=128'],
  ],
  [
    'cut for a reward model',
    [
      `${POLICY}=${MODEL}`,
      GRPO,
      `${REWARD}.enable=true`,
      `${REWARD}.model_path=${short}`,
      `${REWARD}.truncation=left`,
    ],
  ],
  ['a vocabulary without padding', [...withTokenizer, `${CRITIC}=${smaller(MODEL, { vocab_size: 49 })}`]],
])('sequences that fit are validated: %s', async (_, keys) => {
  expect(await printed([...LENGTHS, ...keys])).toContain('is a valid configuration of troupe train');
});

test('beside a model that is not there the others are looked at', async () => {
  const layout = ['trainer.n_gpus_per_node=3', 'data.train_batch_size=48'];
  await expect(
    printed([
      `${POLICY}=${MODEL}`,
      'critic.model.path=far/away',
      'actor_rollout_ref.actor.ulysses_sequence_parallel_size=3',
      ...layout,
    ]),
  ).rejects.toThrow(/parallel\.ulysses 3: expected a divisor of the \d+ attention heads/);
});

test('a model that is not there is said to be not looked at', async () => {
  const text = await printed([...LENGTHS, `${POLICY}=${MODEL}`, 'critic.model.path=far/away']);
  expect(text).toMatch(/# not looked at, as these directories have no config\.json:\n# {3}far\/away\n/);
});

test('a plan is not made of what cannot be trained', async () => {
  const request = { file: writeConfig(), overrides: [reads], gpus: null, memory: null };
  await expect(configuredPlan(request, undefined as never)).rejects.toThrow(
    /a critic of its family is not there/,
  );
});
