import path from 'node:path';
import { BLOCK, config, engines, file, GROUPS, LAYERS, llama, report, sum, troupe } from '../helpers/planned';
import { readSafetensors } from '../helpers/safetensors';
import { visionModel } from '../helpers/vision_model';

afterAll(() => engines.close());

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
  const cp = 'context_parallel_size';

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
    expect(stdout).toMatch(
      /\npeak: .*\n {2}rank \d \(stage \d of 2\): [\d.]+ GiB in \S+ of the actor\n\nthe trainer's process, /,
    );
  });

  test('tp 2 x pp 2: every rank of the first stage has the whole tower for images, and those behind it nothing of it', async () => {
    const state = async (reads: boolean) => {
      const { ranks } = await report(
        megatron(
          { [tp]: 2, [pp]: 2 },
          'trainer.device=cpu',
          `actor_rollout_ref.model.path=${visionModel('qwen3_5').options.model}`,
          `actor_rollout_ref.model.read_images=${reads}`,
          `${actor}.use_kl_loss=false`,
          'data.train_batch_size=64', // prompts of more tokens than the one of images
          `${actor}.ppo_mini_batch_size=64`,
          'data.max_prompt_length=40',
          'data.max_response_length=20',
        ),
        { gpus: 4 },
      );
      return ranks.map(({ peak: { memory } }) => [memory.parameters, memory.gradients, memory.optimizer]);
    };
    const [alone, whole] = [await state(false), await state(true)];
    const tower = Object.entries(
      readSafetensors(path.join(visionModel('qwen3_5').options.model, 'model.safetensors')),
    )
      .filter(([name]) => name.includes('.visual.'))
      .reduce((count, [, { data }]) => count + data.length, 0);
    for (const [i, bytes] of [4 * tower, 4 * tower, 8 * tower].entries()) {
      const more = (whole[0]?.[i] as number) - (alone[0]?.[i] as number);
      expect(more).toBeGreaterThanOrEqual(bytes);
      expect(more).toBeLessThan(1.01 * bytes); // groups are padded
    }
    expect(whole.slice(1)).toEqual(alone.slice(1));
    expect(whole).toHaveLength(2);
  });

  test.each([
    ['cp 2', megatron({}), megatron({ [cp]: 2 })],
    ['ulysses 2', [], [`${actor}.ulysses_sequence_parallel_size=2`]],
  ])('%s: a tower is sharded over both ranks, as by data', async (_, data, rows) => {
    const roles = async (layout: string[]) => {
      const plan = await report(
        [
          ...layout,
          'trainer.device=cpu',
          `actor_rollout_ref.model.path=${visionModel('qwen3_vl').options.model}`,
          'data.train_batch_size=64', // prompts of more tokens than the one of images
          `${actor}.ppo_mini_batch_size=64`,
          'data.max_prompt_length=40',
          'data.max_response_length=20',
        ],
        { gpus: 2 },
      );
      return plan.roles;
    };
    expect(await roles(rows)).toEqual(await roles(data));
  });

  test('cp 2: micro-batches of two ranks, each with its part, and prompts of its own in generation', async () => {
    const key = `${actor}.ppo_max_token_len_per_gpu`;
    const capacity = (tokens: number) => [`${key}=${tokens}`, 'trainer.device=cpu'];
    const alone = await report(megatron({}, ...capacity(1024)), { gpus: 2 }); // one after the other: each changes the directory
    const shared = await report(megatron({ [cp]: 2 }, ...capacity(1024)), { gpus: 2 });
    const [role] = shared.spec.roles;
    expect([role?.update?.sequences, role?.inference?.sequences, role?.rollouts[0]?.prompts]).toEqual([
      256, 1024, 128,
    ]);
    expect(shared.roles[0]).toEqual(alone.roles[0]); // sharded over both, as by data
    const [update, other] = [shared, alone].map(({ phases }) => phases.find(({ verb }) => verb === 'update'));
    // As many rows on each, and for a time the keys and values of all.
    const activations = other?.memory.activations as number;
    expect(update?.memory.activations).toBeGreaterThanOrEqual(activations);
    expect(update?.memory.activations).toBeLessThan(1.15 * activations);
    const { code, stdout } = troupe(config, '--gpus', '4', ...megatron({ [cp]: 2, [tp]: 2 }), '--simulate');
    expect(code).toBe(0);
    expect(stdout).toMatch(/tp 2 sequence parallel, cp 2 over 4 ranks/);
    expect(stdout).toMatch(/\n {2}cp, of the layers: .* x 16 key heads x 128 x 2 B x 1 = /);
    await expect(report(megatron({ [cp]: 3 }), { gpus: 2 })).rejects.toThrow(/context_parallel_size.*got 3/);
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

  test('supervised fine-tuning, too', async () => {
    const sft = file(
      'sft_layouts.yaml',
      `data: { train_files: a.jsonl, train_batch_size: 64 }
model: { path: model }
engine: { strategy: megatron, ${tp}: 2, ${pp}: 2 }
trainer: { device: cpu }`,
    );
    const plan = await report([], { file: sft, gpus: 8 });
    const [role] = plan.spec.roles;
    expect(role).toMatchObject({ strategy: 'shard_grad_op', update: { sequences: 32 } });
    expect(role?.layout).toMatchObject({ parallel: { tp: 2, cp: 1 }, pipeline: { stages: 2 } });
    // Two groups of four share the moments of what a rank of the last stage has: half of its matrices and of the head, norms whole.
    const own = (LAYERS / 2) * ((BLOCK - 2 * 4096) / 2 + 2 * 4096) + 4096 + (32000 * 4096) / 2;
    expect(plan.stages).toEqual([1]);
    expect(plan.roles[0]).toMatchObject({ optimizer: (8 * own) / 2 });
    await expect(report([`engine.${tp}=3`], { file: sft, gpus: 6 })).rejects.toThrow(
      /^\[engine\] parallel\.tp 3: .*32 attention heads/,
    );
  });

  test('what does not divide is refused, with the numbers', async () => {
    await expect(report(megatron({ [tp]: 3 }), { gpus: 3 })).rejects.toThrow(/tp 3.*32 attention heads/);
    await expect(report(megatron({ [pp]: 8 }), { gpus: 8 })).rejects.toThrow(/4 layers do not make 8 parts/);
    await expect(report(megatron({ [tp]: 2 }), { gpus: 3 })).rejects.toThrow(
      /divisor of the number of workers \(3,.*got 2/,
    );
  });
});
