import { dump } from 'js-yaml';
import { loadConfig } from '../../../ts/config/config';
import type { VerlImport } from '../../../ts/config/verl/import';
import { KEYS, ppo, read, why, write } from './verl_command';

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
