// What the planner advises is what the configuration takes: every change loads, and saves what it is said to save.
import { engines, file, llama, report } from '../../helpers/planned';

afterAll(async () => await engines.close());

const tiny = { ...llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 4, vocab_size: 32 };
file(
  'tiny/config.json',
  JSON.stringify({ ...tiny, num_attention_heads: 4, num_key_value_heads: 4, max_position_embeddings: 256 }),
);
const train = file(
  'advised.yaml',
  `
data: { train_files: train.jsonl, train_batch_size: 8, max_prompt_length: 64, max_response_length: 64 }
actor_rollout_ref:
  model: { path: tiny, enable_gradient_checkpointing: false }
  actor: { ppo_mini_batch_size: 4, use_kl_loss: true, ppo_max_token_len_per_gpu: 1024 }
  ref: { log_prob_max_token_len_per_gpu: 2048 }
critic: { model: { path: tiny, enable_gradient_checkpointing: false }, ppo_max_token_len_per_gpu: 512 }
reward: { reward_model: { enable: true, model_path: tiny } }
algorithm: { adv_estimator: gae }
`,
);
const sft = file(
  'advised_sft.yaml',
  `
data: { train_files: train.jsonl, train_batch_size: 8, max_length: 128, max_token_len_per_gpu: 1024 }
model: { path: tiny, enable_gradient_checkpointing: false }
`,
);

const ACTOR = 'actor_rollout_ref.actor';
const REF = 'actor_rollout_ref.ref';
const inFloat32 = (...sections: string[]): string[] => sections.map((section) => `${section}.dtype=float32`);

const megatron = (section: string): string[] => [
  `${section}.strategy=megatron`,
  `${section}.megatron.tensor_model_parallel_size=2`,
  `${section}.megatron.use_distributed_optimizer=false`,
];
const unsharded = (section: string): string[] =>
  ['fsdp_size=1', 'gradient_reduction=mini_batch'].map((setting) => `${section}.fsdp_config.${setting}`);
const gathered = (section: string): string[] =>
  ['reshard_after_forward=false', 'forward_prefetch=true'].map((s) => `${section}.fsdp_config.${s}`);

const settings: [string, string, string[]][] = [
  ['all by FSDP, whole on every rank', train, [...unsharded(ACTOR), ...unsharded('critic.model')]],
  [
    'all by FSDP, gathered once',
    train,
    [ACTOR, REF, 'critic.model', 'reward.reward_model.model'].flatMap(gathered),
  ],
  [
    'actor and reference by Megatron',
    train,
    [...megatron(ACTOR), `${REF}.megatron.tensor_model_parallel_size=2`, ...inFloat32(`${ACTOR}.megatron`)],
  ],
  ['critic by Megatron', train, [...megatron('critic'), ...inFloat32('critic.megatron')]],
  ['reward model by Megatron', train, megatron('reward.reward_model')],
  [
    'all by Megatron, sharded',
    train,
    [ACTOR, 'critic', 'reward.reward_model'].flatMap((section) => megatron(section).slice(0, 2)),
  ],
  [
    'actor by Megatron, gradients kept whole',
    train,
    [
      `${ACTOR}.strategy=megatron`,
      `${ACTOR}.fsdp_config.gradient_reduction=mini_batch`,
      `${ACTOR}.ppo_max_token_len_per_gpu=128`,
      `${ACTOR}.use_kl_loss=false`,
      'actor_rollout_ref.model.enable_gradient_checkpointing=true',
      'algorithm.adv_estimator=grpo',
      'reward.reward_model.enable=false',
      'data.train_batch_size=4',
    ],
  ],
  [
    'a supervised run by Megatron, gradients kept whole',
    sft,
    [
      'engine.strategy=megatron',
      'model.fsdp_config.gradient_reduction=mini_batch',
      'model.enable_gradient_checkpointing=true',
      'data.max_token_len_per_gpu=128',
      'data.train_batch_size=64',
    ],
  ],
  ['a supervised run by FSDP', sft, ['model.fsdp_config.fsdp_size=1', ...inFloat32('model')]],
  [
    'a supervised run by Megatron',
    sft,
    ['strategy=megatron', 'tensor_model_parallel_size=2', 'use_distributed_optimizer=false'].map(
      (setting) => `engine.${setting}`,
    ),
  ],
];

/** Arguments of the program, as a user types them. */
function typed(change: string): { overrides: string[]; gpus: number } {
  const words = change.replace(/ \(.*\)$/, '').split(' ');
  const at = words.indexOf('--gpus');
  return at < 0
    ? { overrides: words, gpus: 4 }
    : { overrides: words.filter((_, i) => i !== at && i !== at + 1), gpus: Number(words[at + 1]) };
}

test.each(settings)(
  '%s: every change that is advised loads, and saves what it says',
  async (name, file, overrides) => {
    const { advice, peak } = await report(overrides, { gpus: 4, memory: 2 ** 20, file, advise: true });
    expect(advice.knobs.length).toBeGreaterThan(3);
    const reduces = advice.knobs.some(({ change }) => change.includes('gradient_reduction'));
    expect(reduces).toBe(name.includes('kept whole'));
    for (const { change, saves } of advice.knobs) {
      const { overrides: more, gpus } = typed(change);
      const after = await report([...overrides, ...more], { gpus, memory: 2 ** 20, file });
      expect([change, peak.total - after.peak.total]).toEqual([change, saves]);
    }
  },
);

describe('of a run whose generation takes most', () => {
  const KEY = 'actor_rollout_ref.rollout.tensor_model_parallel_size';
  // Four heads, so that at most four ranks decode together.
  const model = {
    ...llama,
    hidden_size: 1024,
    intermediate_size: 4096,
    num_hidden_layers: 8,
    vocab_size: 32,
  };
  file('wide/config.json', JSON.stringify({ ...model, num_attention_heads: 4, num_key_value_heads: 4 }));
  const run = file(
    'adapters.yaml',
    `
data: { train_files: train.jsonl, train_batch_size: 16, max_prompt_length: 64, max_response_length: 64 }
actor_rollout_ref:
  model: { path: wide, lora_rank: 4 }
  actor: { ppo_mini_batch_size: 16, ppo_max_token_len_per_gpu: 128 }
algorithm: { adv_estimator: grpo }
`,
  );
  const planned = async (memory: number, overrides: string[] = []) =>
    await report(overrides, { gpus: 8, memory, file: run, advise: true });

  test('the fewest ranks that decode together and fit are advised, else the most that can', async () => {
    // Keys and values may take the more, the more memory there is.
    const enoughFor = async (ranks: number): Promise<number> =>
      (await planned(2 ** 30, [`${KEY}=${ranks}`])).peak.total;
    for (const [memory, ranks, fits] of [
      [await enoughFor(2), 2, true],
      [await enoughFor(4), 4, true],
      [2 ** 20, 4, false],
    ] as const) {
      const { peak, advice } = await planned(memory);
      expect(peak.verb).toBe('generate');
      const saves = peak.total - (await planned(memory, [`${KEY}=${ranks}`])).peak.total;
      expect(advice.knobs.filter(({ change }) => change.startsWith(KEY))).toEqual([
        { change: `${KEY}=${ranks}`, saves, fits },
      ]);
    }
    const { knobs } = (await planned(2 ** 20, [`${KEY}=4`])).advice;
    expect(knobs.filter(({ change }) => change.startsWith(KEY))).toEqual([]);
  });

  test('with every other change, too', async () => {
    const { advice, peak } = await planned(2 ** 20);
    const decoding = advice.knobs.find(({ change }) => change.startsWith(KEY));
    expect(advice.together?.saves).toBeGreaterThanOrEqual(decoding?.saves as number);
    expect(advice.together?.saves).toBeLessThan(peak.total);
  });
});
