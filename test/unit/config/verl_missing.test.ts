import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { dump } from 'js-yaml';
import { importVerlCommand } from '../../../ts/cli/import_verl';
import { validate } from '../../../ts/cli/validate';
import { loadConfig } from '../../../ts/config/config';
import type { VerlImport } from '../../../ts/config/verl/import';
import { FAMILIES, type Family } from '../../../ts/model/hf_schema';
import { visionModel } from '../../helpers/vision_model';
import { directory, fresh, KEYS, ppo, read, why, write } from './verl_command';

describe('what is missing is named', () => {
  it.each([
    ['trainer.device=npu', 'trainer.device', /got "npu": needs an engine for NPUs/],
    [
      '+actor_rollout_ref.model.override_config.rope_theta=1',
      'actor_rollout_ref.model.override_config.rope_theta',
      /edit config\.json/,
    ],
    ['data.video_key=videos', 'data.video_key', /needs videos/],
    ['model_engine=veomni', 'model_engine=veomni', /needs another engine than FSDP or Megatron/],
    [
      'actor_rollout_ref.rollout.agent.agent_loop_config_path=loops.yaml',
      'actor_rollout_ref.rollout.agent.agent_loop_config_path',
      /agents are JavaScript modules/,
    ],
    ['+actor_rollout_ref.actor.state_masking=False', 'actor_rollout_ref.actor.state_masking', /observations/],
    [
      'trainer.v1.separate_async.hybrid_rollout.enable_switch=True',
      'trainer.v1.separate_async.hybrid_rollout',
      /lending the trainer’s GPUs/,
    ],
    [
      'actor_rollout_ref.ref.router_replay.mode=R2',
      'actor_rollout_ref.ref.router_replay',
      /router replay of the reference/,
    ],
    [
      'actor_rollout_ref.rollout.response_length=9',
      'actor_rollout_ref.rollout.response_length',
      /max_response_length is 512/,
    ],
    [
      'actor_rollout_ref.ref.model.path=/m',
      'actor_rollout_ref.ref.model',
      /a reference with a model of its own/,
    ],
    [
      '+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32',
      'actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype',
      /another mixed precision/,
    ],
    [
      'skip.async_rollout.enable=True',
      'skip.async_rollout',
      /a recording of responses that are worked on ahead/,
    ],
    ['trainer.profile_steps=[1]', 'trainer.profile_steps', /give global_profiler\.steps/],
    [
      'actor_rollout_ref.rollout.quantization_config_file=q.json',
      'actor_rollout_ref.rollout.quantization_config_file',
      /quantised/,
    ],
    ['data.sampler.class_path=x.py', 'data.sampler.class_path', /a sampler in Python/],
  ])('%s', (keys, key, reason) => {
    const { notMapped } = ppo(keys);
    expect(why(notMapped, key)).toMatch(reason);
  });

  it('takes a data set class, with what else its section has', () => {
    const found = ppo(
      'data.custom_cls.path=recipe/a.py data.custom_cls.name=A data.return_raw_chat=False +data.topic=sums data.max_prompt_length=9',
    );
    expect(found.notMapped).toEqual([]);
    expect(found.config['data']).toMatchObject({
      max_prompt_length: 9,
      custom_cls: { path: 'recipe/a.py', name: 'A', config: { topic: 'sums', return_raw_chat: false } },
    });
    expect(why(found.changed, 'data.topic')).toBe(
      'is for the class of data.custom_cls: is now data.custom_cls.config.topic',
    );
    const none = ppo('data.return_raw_chat=False +data.topic=sums');
    expect(why(none.notMapped, 'data.topic')).toMatch(/is not known here/);
    expect(why(none.withoutEffect, 'data.return_raw_chat')).toMatch(/token ids/);
  });

  it('takes a rollout in workers of its own', () => {
    const rollout = 'actor_rollout_ref.rollout';
    const sizes = `${rollout}.nnodes=1 ${rollout}.n_gpus_per_node=4 trainer.n_gpus_per_node=4`;
    const { config, notMapped } = ppo(`trainer.v1.trainer_mode=separate_async ${sizes}`);
    expect(notMapped).toEqual([]);
    expect(config).toMatchObject({
      actor_rollout_ref: { rollout: { nnodes: 1, n_gpus_per_node: 4 } },
      trainer: { n_gpus_per_node: 4, v1: { trainer_mode: 'separate_async' } },
    });
  });

  it('takes router replay', () => {
    const rollout = 'actor_rollout_ref.rollout.enable_rollout_routing_replay';
    const megatron = 'actor_rollout_ref.actor.megatron.router_replay.mode';
    expect(ppo(`model_engine=megatron ${megatron}=R3 ${rollout}=True`)).toMatchObject({
      notMapped: [],
      config: {
        actor_rollout_ref: {
          actor: { megatron: { router_replay: { mode: 'R3' } } },
          rollout: { enable_rollout_routing_replay: true },
        },
      },
    });
    expect(ppo(`actor_rollout_ref.actor.router_replay.mode=R2 ${rollout}=False`).notMapped).toEqual([]);
  });

  it.each(['model_engine=megatron', '--config-name=ppo_megatron_trainer'])('takes Megatron: %s', (choice) => {
    const keys = `actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=null +actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=6 actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=2 actor_rollout_ref.ref.megatron.param_offload=True`;
    const { config, notMapped } = ppo(`${choice} ${keys} critic.megatron.tensor_model_parallel_size=2`);
    expect(notMapped).toEqual([]);
    expect(config).toMatchObject({
      actor_rollout_ref: {
        actor: {
          strategy: 'megatron',
          megatron: { tensor_model_parallel_size: 4, pipeline_model_parallel_size: 2 },
        },
      },
      critic: { strategy: 'megatron', megatron: { tensor_model_parallel_size: 2 } },
    });
    const context = ppo(
      `${choice} actor_rollout_ref.actor.megatron.context_parallel_size=2 critic.megatron.context_parallel_size=4`,
    );
    expect(context.notMapped).toEqual([]);
    expect(context.config).toMatchObject({
      actor_rollout_ref: { actor: { megatron: { context_parallel_size: 2 } } },
      critic: { megatron: { context_parallel_size: 4 } },
    });
  });

  it('takes the Megatron keys of every role', () => {
    const sizes = {
      pipeline_model_parallel_size: 2,
      virtual_pipeline_model_parallel_size: 2,
      context_parallel_size: 2,
      tensor_model_parallel_size: 2,
      expert_model_parallel_size: 4,
      expert_tensor_parallel_size: 1,
      param_offload: true,
      use_mbridge: false,
      use_dist_checkpointing: false,
      dist_checkpointing_path: '/disk/converted',
    };
    const roles = ['reward_model', 'critic', 'actor_rollout_ref.ref', 'actor_rollout_ref.actor'];
    const keys = roles.flatMap((role) =>
      Object.entries(sizes).map(([key, value]) => `${role}.megatron.${key}=${value}`),
    );
    const estimator = 'algorithm.adv_estimator=gae actor_rollout_ref.actor.use_kl_loss=True';
    const model = 'reward_model.enable=True reward_model.strategy=megatron reward_model.model.path=./rm';
    const own = 'actor_rollout_ref.ref.megatron.tensor_model_parallel_size=1';
    const { config, notMapped } = ppo(
      `--config-name=ppo_megatron_trainer ${estimator} ${model} ${keys.join(' ')} ${own}`,
      'v0.6.1',
    );
    expect(notMapped).toEqual([]);
    const { dist_checkpointing_path, use_mbridge, use_dist_checkpointing, ...read } = sizes;
    expect(config).toMatchObject({
      actor_rollout_ref: {
        actor: { megatron: read },
        ref: { megatron: { ...read, tensor_model_parallel_size: 1 } },
      },
      critic: { megatron: read },
      reward: { reward_model: { strategy: 'megatron', megatron: read } },
    });
  });

  it("takes Megatron's choice of kernels, and nothing that computes something else", () => {
    const below = (keys: Record<string, unknown>): string =>
      Object.entries(keys)
        .map(
          ([key, value]) => `+actor_rollout_ref.actor.megatron.override_transformer_config.${key}=${value}`,
        )
        .join(' ');
    const kernels = {
      apply_rope_fusion: true,
      masked_softmax_fusion: true,
      use_flash_attn: true,
      moe_z_loss_coeff: 0.001,
      fp8: false,
    };
    expect(ppo(`model_engine=megatron ${below({ ...kernels, attention_dropout: 0.0 })}`).notMapped).toEqual(
      [],
    );
    for (const other of [
      { attention_dropout: 0.1 },
      { fp8: 'hybrid' },
      { moe_expert_capacity_factor: 1.2 },
    ]) {
      const [key] = Object.keys(other);
      const { notMapped } = ppo(`model_engine=megatron ${below(other)}`);
      expect(notMapped.map((note) => note.key)).toEqual([
        `actor_rollout_ref.actor.megatron.override_transformer_config.${key}`,
      ]);
    }
  });

  it.each([
    `verl.trainer.main_ppo ${KEYS}`,
    'verl.trainer.sft_trainer data.train_files=a.parquet model.path=./m',
  ])('has no Hydra to be told anything: %s', (command) => {
    const { notMapped, withoutEffect } = read(
      `python3 -m ${command} hydra.run.dir=out hydra.searchpath=[file://configs]`,
    );
    expect(notMapped).toEqual([]);
    expect(why(withoutEffect, 'hydra')).toBe('there is no Hydra');
  });

  it('takes LoRA by the names of Megatron, and says what it lacks', () => {
    const lora = (keys: string): VerlImport =>
      ppo(
        `model_engine=megatron actor_rollout_ref.model.lora.rank=16 ${keys.replace(/(?=\b[a-zA-Z_]+=)/g, 'actor_rollout_ref.model.lora.')}`,
      );
    const { notMapped, config } = lora(
      'alpha=64 merge=True lora_A_init_method=kaiming target_modules=[linear_proj]',
    );
    expect(notMapped).toEqual([]);
    expect(loadConfig(write(dump(config), 'yaml')).actor_rollout_ref.model).toMatchObject({
      lora_rank: 16,
      lora_alpha: 64,
      target_modules: ['o_proj'],
    });
    for (const key of ['type=dora', 'dropout=0.1', 'exclude_modules=[linear_fc1]', 'target_modules=[router]'])
      expect(lora(key).notMapped.map((note) => note.key)).toEqual([
        `actor_rollout_ref.model.lora.${key.replace(/=.*/, '')}`,
      ]);
  });

  it("takes all that Search-R1's scripts say", () => {
    const script =
      'data.max_start_length=2048 data.max_obs_length=500 actor_rollout_ref.rollout.n_agent=5 actor_rollout_ref.actor.state_masking=true ' +
      'algorithm.no_think_rl=false max_turns=4 retriever.url=http://127.0.0.1:8000/retrieve retriever.topk=3 do_search=true ' +
      'reward_model.structure_format_score=0.2 reward_model.final_format_score=0.1 reward_model.retrieval_score=0';
    const { notMapped, config } = ppo(script.replaceAll(' ', ' +').replace(/^/, '+'));
    expect(notMapped).toEqual([]);
    expect(config).toMatchObject({
      data: { max_start_length: 2048, max_obs_length: 500 },
      actor_rollout_ref: { rollout: { n: 5 } },
      max_turns: 4,
      do_search: true,
      retriever: { url: 'http://127.0.0.1:8000/retrieve', topk: 3 },
      reward: { qa_em: { structure_format_score: 0.2, final_format_score: 0.1, retrieval_score: 0 } },
    });
  });

  it.each([
    'actor_rollout_ref.rollout.agent.num_workers=4',
    'actor_rollout_ref.actor.profiler.ranks=[0]',
    'trainer.use_v1=True',
    'data.max_response_length=9 actor_rollout_ref.rollout.response_length=9',
    '+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16',
    '+actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=bf16',
    'actor_rollout_ref.actor.fsdp_config.mixed_precision=null',
    'actor_rollout_ref.actor.router_replay.mode=disabled',
    '+actor_rollout_ref.model.override_config.attention_dropout=0. +actor_rollout_ref.model.override_config.attn_implementation=sdpa',
    '+actor_rollout_ref.model.override_config.max_position_embeddings=32768',
    'actor_rollout_ref.model.lora_rank=0 actor_rollout_ref.model.lora_alpha=0',
    'actor_rollout_ref.model.lora.rank=0 actor_rollout_ref.model.lora.dropout=0.1',
    '+actor_rollout_ref.actor.policy_loss.tau_pos=1.0',
  ])('%s asks for nothing', (keys) => {
    expect(ppo(keys).notMapped).toEqual([]);
  });

  it.each([
    ['recipe.sppo.main_sppo', /needs the program recipe\.sppo\.main_sppo, a trainer of its own/],
    ['recipe.async_flow.main_grpo', /needs the program recipe\.async_flow\.main_grpo, a trainer of its own/],
    ['verl.trainer.main_generation_server', /generates or evaluates and does not train/],
  ])('the program %s', (program, reason) => {
    expect(why(read(`python3 -m ${program} ${KEYS}`).notMapped, 'the program')).toMatch(reason);
  });
});

describe('troupe import-verl', () => {
  const command = (keys: string, allowMissing: boolean): { code: number; said: string; out: string } => {
    const out = join(directory, `out${fresh()}.yaml`);
    let said = '';
    const script = write(`python3 -m verl.trainer.main_ppo ${KEYS} algorithm.adv_estimator=grpo ${keys}`);
    const say = (text: string): void => {
      said += text;
    };
    const code = importVerlCommand(script, [], { out, allowMissing, version: 'main', write: say });
    return { code, said, out };
  };

  it('writes what means the same', () => {
    const { code, said, out } = command('trainer.n_gpus_per_node=2', false);
    expect(code).toBe(0);
    expect(said).toMatch(
      /was run in a sandbox, where it would have started: verl\.trainer\.main_ppo \(5 arguments\)/,
    );
    expect(loadConfig(out).trainer).toMatchObject({ device: 'cuda', n_gpus_per_node: 2 });
  });

  it('takes over a run on several machines', () => {
    const { code, out } = command('trainer.nnodes=2', false);
    expect(code).toBe(0);
    expect(loadConfig(out).trainer).toMatchObject({ nnodes: 2, launcher: { type: null } });
  });

  it.each(['no.such=1', 'trainer.logger=swanlab', 'actor_rollout_ref.model.path=zai-org/GLM-5'])(
    '%s: exit code 2 and nothing written, unless --allow-missing',
    (keys) => {
      const refused = command(keys, false);
      expect(refused.code).toBe(2);
      expect(refused.said).toMatch(/Nothing was written: 1 thing that changes the run/);
      expect(existsSync(refused.out)).toBe(false);
      const allowed = command(keys, true);
      expect(allowed.code).toBe(0);
      expect(readFileSync(allowed.out, 'utf8')).toContain('algorithm:');
    },
  );
});

describe('troupe validate', () => {
  /** That small models have positions for. */
  const SHORT = ['data.max_prompt_length=64', 'data.max_response_length=64'];
  const check = async (keys: string): Promise<unknown> =>
    validate(
      write(`data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: ${keys} } }\n`, 'yaml'),
      SHORT,
    );
  const model = (type: string): string => {
    const dir = join(directory, `model${fresh()}`);
    mkdirSync(dir);
    writeFileSync(join(dir, 'config.json'), JSON.stringify({ model_type: type }));
    return dir;
  };

  it.each([
    ['Qwen/Qwen2-VL-7B-Instruct', /needs images \(a vision-language model\)/],
    ['/data/MiniMax-M2', /needs the model family MiniMax, which is not there \(judged by the name/],
    ['Qwen/Qwen3.6-27B', /needs the model family Qwen3.6 and later/],
    ['google/gemma-3n-E2B', /needs the model family Gemma 3n and later/],
    ['XiaomiMiMo/MiMo-V2-Flash', /needs the model family MiMo-V2/],
    ['XiaomiMiMo/MiMo-VL-7B-RL', /needs images/],
    ['zai-org/GLM-4.5V', /needs images/],
    ['deepseek-ai/DeepSeek-V2-Lite-Chat', /needs the model family DeepSeek-V2, V3.2 and later/],
    ['deepseek-ai/DeepSeek-V3.2-Exp', /needs the model family DeepSeek-V2, V3.2 and later/],
    ['moonshotai/Kimi-Linear-48B-A3B', /needs the model family Kimi Linear and K2.5/],
    ['moonshotai/Kimi-VL-A3B-Instruct', /needs images/],
    ['zai-org/GLM-5', /needs the model family GLM other than/],
    ['THUDM/GLM-4.1V-9B-Thinking', /needs images/],
    ['zai-org/glm-4-9b-chat-hf', /needs the model family GLM other than/],
    ['allenai/OLMoE-1B-7B-0924', /needs the model family of this name/],
    ['allenai/OLMo-7B-hf', /needs the model family of this name/],
    ['ibm-granite/granite-4.0-h-tiny', /needs the model family of this name/],
    ['ibm-granite/granite-vision-3.2-2b', /needs images/],
  ])('a model that is not there: %s', async (name, message) => {
    await expect(check(name)).rejects.toThrow(message);
  });

  it('images that are asked for, of a model whose language model alone is read', async () => {
    const asked = (policy: string, image = 'image_key: images, '): Promise<unknown> =>
      validate(
        write(
          `data: { ${image}train_files: a.parquet }\nactor_rollout_ref: { model: { path: ${policy} } }\n`,
          'yaml',
        ),
        ['algorithm.adv_estimator=grpo', ...SHORT],
      );
    const gemma = join(directory, `model${fresh()}`);
    mkdirSync(gemma);
    writeFileSync(join(gemma, 'config.json'), JSON.stringify({ model_type: 'gemma3', vision_config: {} }));
    const refused =
      /data\.image_key: needs images of this model, which are not there: of .* the language model alone is read/;
    await expect(asked('google/gemma-3-12b-it')).rejects.toThrow(refused);
    await expect(asked(gemma)).rejects.toThrow(refused);
    for (const kept of [
      asked('google/gemma-3-12b-it', ''),
      asked('Qwen/Qwen3.5-27B'),
      asked('Qwen/Qwen3-VL-8B-Instruct'),
      asked(visionModel('qwen2_5_vl').options.model),
      asked('Qwen/Qwen3-VL-30B-A3B-Instruct'),
      asked(visionModel('qwen3_vl').options.model),
      asked(visionModel('qwen3_vl_moe').options.model),
      asked(visionModel('qwen3_5').options.model),
      asked(visionModel('qwen3_5_moe').options.model),
    ])
      await expect(kept).resolves.not.toThrow();
  });

  /** One of each family. */
  const NAMES: Record<Family, string> = {
    llama: 'meta-llama/Llama-3.1-8B-Instruct',
    mistral: 'mistralai/Mistral-7B-Instruct-v0.3',
    qwen2: 'Qwen/Qwen2.5-7B-Instruct',
    qwen3: 'Qwen/Qwen3-8B',
    mimo: 'XiaomiMiMo/MiMo-7B-Base',
    smollm3: 'HuggingFaceTB/SmolLM3-3B',
    seed_oss: 'ByteDance-Seed/Seed-OSS-36B-Instruct',
    gemma: 'google/gemma-7b-it',
    gemma2: 'google/gemma-2-9b-it',
    gemma3_text: 'google/gemma-3-270m-it',
    granite: 'ibm-granite/granite-3.3-2b-instruct',
    glm4: 'THUDM/GLM-4-9B-0414',
    olmo2: 'allenai/OLMo-2-1124-7B',
    olmo3: 'allenai/Olmo-3-7B-Think',
    phi3: 'microsoft/Phi-3.5-mini-instruct',
    mixtral: 'mistralai/Mixtral-8x7B-Instruct-v0.1',
    granitemoe: 'ibm-granite/granite-3.1-3b-a800m-instruct',
    qwen2_moe: 'Qwen/Qwen1.5-MoE-A2.7B',
    qwen3_moe: 'Qwen/Qwen3-30B-A3B',
    glm4_moe: 'zai-org/GLM-4.6',
    dots1: 'rednote-hilab/dots.llm1.inst',
    qwen3_next: 'Qwen/Qwen3-Next-80B-A3B-Instruct',
    qwen3_5_text: 'Qwen/Qwen3.5-9B',
    qwen3_5_moe_text: 'Qwen/Qwen3.5-122B-A10B',
    deepseek_v3: 'deepseek-ai/DeepSeek-V3.1',
    kimi_k2: 'moonshotai/Kimi-K2-Base',
    gpt_oss: 'openai/gpt-oss-120b',
    qwen2_5_vl: 'Qwen/Qwen2.5-VL-3B-Instruct',
    qwen3_vl: 'Qwen/Qwen3-VL-4B-Instruct',
    qwen3_vl_moe: 'Qwen/Qwen3-VL-30B-A3B-Instruct',
    qwen3_5: 'Qwen/Qwen3.5-27B',
    qwen3_5_moe: 'Qwen/Qwen3.5-397B-A17B',
    gpt2: 'openai-community/gpt2',
  };

  it.each([
    ...FAMILIES.map((family) => NAMES[family]),
    'THUDM/GLM-4-32B-Base-0414',
    'THUDM/GLM-Z1-32B-0414',
    'allenai/Olmo-3.1-32B-Think',
    'ibm-granite/granite-3.0-8b-base',
    'Qwen/Qwen2.5-VL-7B-Instruct',
    'Qwen/Qwen3-VL-8B-Instruct',
    '/data/Qwen3-VL-235B-A22B-Thinking',
    'google/gemma-1.1-7b-it',
    'google/gemma-3-1b-it',
    'microsoft/Phi-4-mini-instruct',
    'ByteDance-Seed/Seed-OSS-36B',
    'XiaomiMiMo/MiMo-7B-RL',
    'a/GLM-4.5-Air-Base',
    'deepseek-ai/DeepSeek-V3-0324',
    'deepseek-ai/DeepSeek-R1',
    'moonshotai/Moonlight-16B-A3B',
    'moonshotai/Kimi-K2-Instruct',
    'lmsys/gpt-oss-20b-bf16',
    '/data/Qwen3-Next-80B-A3B-Instruct',
    'Qwen/Qwen3.5-4B',
    'Qwen/Qwen3.5-35B-A3B',
  ])('a model that is there, by its name: %s', async (name) => {
    await expect(check(name)).resolves.toBeDefined();
  });

  it('asks config.json first', async () => {
    await expect(check(model('mamba2'))).rejects.toThrow(/needs the model family mamba2, which is not there/);
    await expect(check(visionModel('qwen3_5').options.model)).resolves.toBeDefined();
  });

  it.each([
    [
      'reward: { reward_manager: { source: importlib, module: { path: r.py } } }',
      /path: needs reward managers in Python, which are not there: /,
    ],
    [
      'custom_reward_function: { path: ./r.py }\nreward_model: { enable: true }',
      /path: needs rewards that ask a generative reward model, which are not there: .*\.\/r\.py/,
    ],
  ])('of rewards in Python: %s', async (reward, message) => {
    const file = write(
      `data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: ./m } }\n${reward}\n`,
      'yaml',
    );
    await expect(validate(file, [])).rejects.toThrow(message);
  });

  it('reports what is missing and what is wrong at once', async () => {
    const file = write(
      'data: { train_files: a.parquet, train_batch_size: 100 }\nactor_rollout_ref: { model: { path: MiniMaxAI/MiniMax-M2 } }\n' +
        'trainer: { nnodes: 2, launcher: { type: local }, logger: [swanlab] }\n',
      'yaml',
    );
    const error: unknown = await validate(file, []).catch((caught: unknown) => caught);
    const lines = (error as Error).message.split('\n').map((line) => line.slice(0, line.indexOf(':')));
    expect(lines).toEqual([
      'trainer.logger',
      'trainer.nnodes',
      'actor_rollout_ref.actor.ppo_mini_batch_size',
      'critic.ppo_mini_batch_size',
      'actor_rollout_ref.model.path',
    ]);
  });
});
