import { dump } from 'js-yaml';
import { checkTree, loadConfig } from '../../../ts/config/config';
import { getPath, mergePath, setPath, type Tree } from '../../../ts/config/reading/tree';
import { isLeaf, type Leaf, type Section } from '../../../ts/config/schema/field';
import { ppoSchema } from '../../../ts/config/schema/ppo_schema';
import table from '../../../ts/config/verl/defaults_table.json';
import { importVerl, type VerlImport } from '../../../ts/config/verl/import';
import { readVerlSource } from '../../../ts/config/verl/source';
import { VERL_VERSIONS } from '../../../ts/config/verl/versions';
import { optimOptions } from '../../../ts/roles/optim_options';
import { OPTIONS, ppo, KEYS as VERL_KEYS, why, write } from './verl_command';

// Keys of verl's composed PPO configuration, v0.6 to main. `a.{b,c}` stands for a.b and a.c.
const KEYS = `
data.{train_files,val_files,train_max_samples,val_max_samples,prompt_key,reward_fn_key,max_prompt_length,max_response_length}
data.{train_batch_size,val_batch_size,gen_batch_size,shuffle,seed,dataloader_num_workers,validation_shuffle,tokenizer,use_shm}
data.{filter_overlong_prompts,filter_overlong_prompts_workers,truncation,image_key,video_key,image_patch_size,trust_remote_code}
data.{apply_chat_template_kwargs,return_raw_input_ids,return_raw_chat,return_full_prompt,return_multi_modal_inputs}
data.{tool_config_path,custom_cls.path,custom_cls.name,sampler.class_path,sampler.class_name,datagen.path,datagen.name,mcp}
actor_rollout_ref.{hybrid_engine,nccl_timeout}
actor_rollout_ref.model.{path,hf_config_path,tokenizer_path,use_shm,trust_remote_code,custom_chat_template,external_lib}
actor_rollout_ref.model.{override_config,enable_gradient_checkpointing,enable_activation_offload,use_remove_padding}
actor_rollout_ref.model.{lora_rank,lora_alpha,target_modules,target_parameters,exclude_modules,lora_adapter_path,lora}
actor_rollout_ref.model.{use_liger,use_fused_kernels,fused_kernel_options.impl_backend,tiled_mlp}
actor_rollout_ref.model.mtp.{enable,enable_train,enable_rollout,detach_encoder,mtp_loss_scaling_factor,method}
actor_rollout_ref.model.mtp.{speculative_algorithm,speculative_num_steps,speculative_eagle_topk,speculative_num_draft_tokens,num_speculative_tokens}
actor_rollout_ref.actor.{strategy,ppo_mini_batch_size,ppo_micro_batch_size,ppo_micro_batch_size_per_gpu,use_dynamic_bsz}
actor_rollout_ref.actor.{ppo_max_token_len_per_gpu,clip_ratio,clip_ratio_low,clip_ratio_high,clip_ratio_c,tau_pos,tau_neg}
actor_rollout_ref.actor.policy_loss.{loss_mode,clip_cov_ratio,clip_cov_lb,clip_cov_ub,kl_cov_ratio,ppo_kl_coef,dro_beta}
actor_rollout_ref.actor.{loss_agg_mode,loss_scale_factor,entropy_coeff,calculate_entropy,use_kl_loss,kl_loss_coef,kl_loss_type}
actor_rollout_ref.actor.{ppo_epochs,shuffle,data_loader_seed,grad_clip,ulysses_sequence_parallel_size,freeze_vision_tower,qat}
actor_rollout_ref.actor.{entropy_from_logits_with_chunking,entropy_checkpointing,use_torch_compile,use_fused_kernels}
actor_rollout_ref.actor.{use_remove_padding,use_prefix_grouper,calculate_sum_pi_squared,router_replay,profiler,rollout_n,engine}
actor_rollout_ref.actor.{load_weight,megatron,veomni,sum_pi_squared_checkpointing}
actor_rollout_ref.actor.checkpoint.{save_contents,load_contents,async_save,mbridge_config}
actor_rollout_ref.actor.optim.{optimizer,optimizer_impl,lr,lr_warmup_steps,lr_warmup_steps_ratio,total_training_steps}
actor_rollout_ref.actor.optim.{weight_decay,betas,clip_grad,min_lr_ratio,num_cycles,lr_scheduler_type,warmup_style}
actor_rollout_ref.actor.optim.{override_optimizer_config,zero_indexed_step}
actor_rollout_ref.actor.fsdp_config.{param_offload,optimizer_offload,offload_policy,reshard_after_forward,fsdp_size}
actor_rollout_ref.actor.fsdp_config.{forward_prefetch,model_dtype,dtype,use_orig_params,seed,full_determinism,wrap_policy}
actor_rollout_ref.actor.fsdp_config.{ulysses_sequence_parallel_size,use_torch_compile,forward_only,strategy,qat}
actor_rollout_ref.actor.fsdp_config.mixed_precision.{param_dtype,reduce_dtype,buffer_dtype}
actor_rollout_ref.actor.fsdp_config.{entropy_from_logits_with_chunking,entropy_checkpointing,grad_offload}
actor_rollout_ref.ref.{strategy,fsdp_config,use_torch_compile,log_prob_micro_batch_size,log_prob_micro_batch_size_per_gpu}
actor_rollout_ref.ref.{log_prob_use_dynamic_bsz,log_prob_max_token_len_per_gpu,ulysses_sequence_parallel_size,profiler}
actor_rollout_ref.ref.{entropy_from_logits_with_chunking,entropy_checkpointing,router_replay,rollout_n,model,megatron,load_weight}
actor_rollout_ref.rollout.{name,mode,temperature,top_k,top_p,n,do_sample,prompt_length,response_length,dtype}
actor_rollout_ref.rollout.{gpu_memory_utilization,ignore_eos,enforce_eager,cudagraph_capture_sizes,free_cache_engine}
actor_rollout_ref.rollout.{tensor_model_parallel_size,data_parallel_size,expert_parallel_size,pipeline_model_parallel_size}
actor_rollout_ref.rollout.{max_num_batched_tokens,max_num_seqs,max_model_len,enable_chunked_prefill,enable_prefix_caching}
actor_rollout_ref.rollout.{load_format,calculate_log_probs,logprobs_mode,scheduling_policy,over_sample_rate}
actor_rollout_ref.rollout.{multi_stage_wake_up,engine_kwargs,disable_log_stats,limit_images,repetition_penalty,seed}
actor_rollout_ref.rollout.{log_prob_micro_batch_size,log_prob_micro_batch_size_per_gpu,log_prob_use_dynamic_bsz}
actor_rollout_ref.rollout.{log_prob_max_token_len_per_gpu,layer_name_map,layered_summon,update_weights_bucket_megabytes}
actor_rollout_ref.rollout.val_kwargs.{top_k,top_p,temperature,n,do_sample}
actor_rollout_ref.rollout.multi_turn.{enable,max_assistant_turns,max_user_turns,tool_config_path,interaction_config_path}
actor_rollout_ref.rollout.multi_turn.{max_parallel_calls,max_tool_response_length,tool_response_truncate_side,format}
actor_rollout_ref.rollout.multi_turn.{tokenization_sanity_check_mode,use_inference_chat_template,num_repeat_rollouts}
actor_rollout_ref.rollout.agent.{num_workers,default_agent_loop,agent_loop_config_path,custom_async_server,agent_loop_manager_class}
actor_rollout_ref.rollout.checkpoint_engine.{backend,update_weights_bucket_megabytes,engine_kwargs}
actor_rollout_ref.rollout.{trace,prometheus,skip_rollout,skip_dump_dir,skip_tokenizer_init,quantization,quantization_config_file}
actor_rollout_ref.rollout.{mtp,enable_rollout_routing_replay,profiler,enable_sleep_mode,disaggregation}
critic.{enable,strategy,rollout_n,ppo_mini_batch_size,ppo_micro_batch_size,ppo_micro_batch_size_per_gpu,use_dynamic_bsz}
critic.{ppo_max_token_len_per_gpu,forward_max_token_len_per_gpu,forward_micro_batch_size,forward_micro_batch_size_per_gpu}
critic.{ppo_epochs,shuffle,data_loader_seed,cliprange_value,loss_agg_mode,grad_clip,ulysses_sequence_parallel_size,load_weight}
critic.{profiler,checkpoint.save_contents,checkpoint.load_contents,checkpoint.async_save,megatron,nccl_timeout,engine}
critic.optim.{optimizer,optimizer_impl,lr,lr_warmup_steps,lr_warmup_steps_ratio,total_training_steps,weight_decay,betas}
critic.optim.{clip_grad,min_lr_ratio,num_cycles,lr_scheduler_type,override_optimizer_config}
critic.model.{path,tokenizer_path,override_config,external_lib,trust_remote_code,use_shm,enable_gradient_checkpointing}
critic.model.{enable_activation_offload,use_remove_padding,lora_rank,lora_alpha,target_modules,tiled_mlp}
critic.model.fsdp_config.{param_offload,optimizer_offload,offload_policy,reshard_after_forward,wrap_policy,fsdp_size,forward_prefetch}
reward.{num_workers,custom_reward_function.path,custom_reward_function.name,reward_manager.source,reward_manager.name}
reward.{reward_manager.module,reward_model.enable,reward_model.enable_resource_pool}
reward.{reward_model.n_gpus_per_node,reward_model.nnodes}
reward.{reward_model.model_path,reward_model.rollout,sandbox_fusion.url,sandbox_fusion.max_concurrent,sandbox_fusion.memory_limit_mb}
custom_reward_function.{path,name}
sandbox_fusion.{url,max_concurrent,memory_limit_mb}
reward_model.{enable,enable_resource_pool,strategy,model,micro_batch_size,micro_batch_size_per_gpu}
reward_model.{max_length,reward_manager,n_gpus_per_node,nnodes}
reward_model.{launch_reward_fn_async,use_reward_loop,num_workers,sandbox_fusion,reward_loop_source,rollout}
algorithm.{adv_estimator,gamma,lam,norm_adv_by_std_in_grpo,use_kl_in_reward,kl_penalty,use_pf_ppo,gdpo_reward_keys,gdpo_reward_weights}
algorithm.kl_ctrl.{type,kl_coef,target_kl,horizon}
algorithm.pf_ppo.{reweight_method,weight_pow}
algorithm.rollout_correction.{rollout_is,rollout_is_threshold,rollout_rs,rollout_rs_threshold,bypass_mode,loss_type}
algorithm.rollout_correction.rollout_is_batch_normalize
algorithm.filter_groups.{enable,metric,max_num_gen_batches}
trainer.{balance_batch,total_epochs,total_training_steps,project_name,experiment_name,logger,log_val_generations,nnodes}
trainer.{n_gpus_per_node,save_freq,test_freq,val_before_train,val_only,critic_warmup,resume_mode,resume_from_path}
trainer.{default_local_dir,default_hdfs_dir,del_local_ckpt_after_load,max_actor_ckpt_to_keep,max_critic_ckpt_to_keep}
trainer.{esi_redundant_time,device,use_legacy_worker_impl,rollout_data_dir,validation_data_dir,ray_wait_register_center_timeout}
trainer.{use_v1,v1.trainer_mode,v1.sampler.max_off_policy_threshold,profile_steps}
{global_profiler,transfer_queue.enable,ray_kwargs,ray_init,distillation.enabled}
`;

function* expand(pattern: string): Generator<string> {
  const [, before, inside, after] = /^([^{]*)\{([^}]*)\}(.*)$/.exec(pattern) ?? [];
  if (inside === undefined) yield pattern;
  else for (const part of inside.split(',')) yield* expand(`${before}${part}${after}`);
}

/** The leaf that covers a key: its own, or one of a section that is taken or ignored as a whole. */
function leafOf(path: string): Leaf | null {
  let node: Leaf | Section = ppoSchema;
  for (const key of path.split('.')) {
    if (isLeaf(node)) return node;
    const next: Leaf | Section | undefined = Object.hasOwn(node, key) ? (node as Section)[key] : undefined;
    if (next === undefined) return null;
    node = next;
  }
  return isLeaf(node) ? node : null;
}

const isSection = (path: string): boolean => {
  const found = path
    .split('.')
    .reduce<unknown>((node, key) => (node as Record<string, unknown> | undefined)?.[key], ppoSchema);
  return found !== undefined;
};

it("every key of verl's tree is a field, has a reason, or has moved", () => {
  const keys = KEYS.trim()
    .split('\n')
    .flatMap((line) => [...expand(line)]);
  expect(keys.length).toBeGreaterThan(300);
  expect(keys.filter((key) => leafOf(key) === null && !isSection(key))).toEqual([]);
});

describe("verl's optimiser of Megatron", () => {
  const { keys } = table.files['optim/megatron'];
  const config = (section: string, key: string, value: unknown): Tree => {
    const tree = { data: { train_files: 'a' }, actor_rollout_ref: { model: { path: 'm' } } };
    setPath(tree, `${section}.optim.${key}`, value);
    return tree;
  };

  it.each(
    Object.entries(keys).flatMap(([key, defaults]) =>
      [...new Set(Object.values(defaults))].map((value) => [key, value] as const),
    ),
  )('%s is accepted at its default %j', (key, value) => {
    for (const section of ['actor_rollout_ref.actor', 'critic'])
      expect(() => checkTree(config(section, key, value), 'train')).not.toThrow();
  });

  /** What Megatron's roles do by default in older versions and cannot do here. */
  const LACKING: Readonly<Record<string, readonly string[]>> = {
    'v0.3.0.post1': ['actor_rollout_ref.actor.shuffle', 'critic.shuffle'],
  };

  it.each(VERL_VERSIONS)('of %s imports with the whole composed configuration', (version) => {
    const old = /^v0\.[3-7]/.test(version);
    const engine = old ? '--config-name=ppo_megatron_trainer' : 'model_engine=megatron';
    const said = `python3 -m verl.trainer.main_ppo ${engine} ${VERL_KEYS} actor_rollout_ref.rollout.name=vllm`;
    const options = { ...OPTIONS, version, run: false };
    const { tree } = readVerlSource(write(said), [], options);
    const composed = importVerl(readVerlSource(write(dump(tree), 'yaml'), [], options));
    expect(composed.notMapped.map(({ key }) => key)).toEqual(LACKING[version] ?? []);
    expect(getPath(composed.config, 'actor_rollout_ref.actor.strategy')).toBe('megatron');
  });

  const schedule = (...keys: string[]): VerlImport =>
    ppo(`model_engine=megatron ${keys.map((key) => `actor_rollout_ref.actor.optim.${key}`).join(' ')}`);

  it('has schedules, which come over', () => {
    const { notMapped, config: imported } = schedule(
      'lr=1e-5',
      'lr_decay_style=cosine',
      'min_lr=1e-6',
      'lr_decay_steps=5',
      'lr_warmup_steps_ratio=0.4',
    );
    expect(notMapped).toEqual([]);
    const { optim } = loadConfig(write(dump(imported), 'yaml')).actor_rollout_ref.actor;
    expect(optimOptions({ section: optim, key: '', gradClip: 1 }, 10)).toMatchObject({
      schedule: 'cosine',
      lr: 1e-5,
      totalSteps: 5,
      warmupSteps: 2,
      minLrRatio: expect.closeTo(0.1, 12),
    });
  });

  // Where nothing is said, verl's composed configuration has -1.
  it.each([
    { total_training_steps: -1, lr_decay_steps: 100 },
    { lr_decay_steps: 100, total_training_steps: -1 },
    { total_training_steps: 100, lr_decay_steps: -1 },
    { lr_decay_steps: -1, total_training_steps: 100 },
  ])('%j is a schedule of 100 steps', (optim) => {
    const section = 'actor_rollout_ref.actor';
    const tree = config(section, 'lr', 1e-6);
    mergePath(tree, `${section}.optim`, optim);
    const file = write(dump(tree), 'yaml');
    expect(loadConfig(file).actor_rollout_ref.actor.optim.total_training_steps).toBe(100);
    const composed = importVerl(readVerlSource(file, [], OPTIONS));
    expect(composed.notMapped).toEqual([]);
    expect(getPath(composed.config, `${section}.optim.total_training_steps`)).toBe(100);
    mergePath(tree, `${section}.optim`, { total_training_steps: 50, lr_decay_steps: 100 });
    expect(() => checkTree(tree, 'train')).toThrow(/is an older name of .*, and both are given: 100 and 50/);
  });

  it.each([
    ['lr_decay_style=polynomial', /expected one of constant, cosine, linear, inverse_square_root, WSD, got/],
    ['exp_avg_dtype=bf16', /float32/],
    ['use_checkpoint_opt_param_scheduler=True', /resume/],
    ['override_optimizer_config={use_torch_optimizer_for_cpu_offload:true}', /megatron\.optimizer_offload/],
  ])('%s is refused', (said, reason) => {
    const key = said.replace(/=.*/, '');
    expect(why(schedule(said).notMapped, `actor_rollout_ref.actor.optim.${key}`)).toMatch(reason);
  });

  it('has options that ask for nothing', () => {
    const own = 'override_optimizer_config';
    expect(
      schedule(`${own}={use_precision_aware_optimizer:true,optimizer_cpu_offload:false}`).notMapped,
    ).toEqual([]);
  });

  it.each([
    [{ min_lr: 1e-7, min_lr_ratio: 0.1 }, /min_lr_ratio 0\.1 says the same/],
    [{ min_lr: 1 }, /min_lr: expected at most actor_rollout_ref\.actor\.optim\.lr \(0\.000001\), got 1/],
  ])('%j contradicts itself', (optim, reason) => {
    const tree = config('actor_rollout_ref.actor', 'lr', 1e-6);
    mergePath(tree, 'actor_rollout_ref.actor.optim', optim);
    expect(() => checkTree(tree, 'train')).toThrow(reason);
  });
});
