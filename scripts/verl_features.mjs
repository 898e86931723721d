// Which features that Troupe lacks a launch command of verl asks for, judged from the command alone: an opinion that is independent
// of the importer's, to hold it against (scripts/verl_scripts.mjs).

const CASES = {
  'other parts of Megatron': ({ text }) =>
    /pipeline_model_parallel_layout=|multi_latent_attention=True|apply_dsa|megatron\.dtype=float16/.test(
      text,
    ) || /load_balancing_type=["']?(?!none)\w|moe_expert_capacity_factor=|enable_expert_bias=True/.test(text),
  'another engine': ({ text }) =>
    /(model_)?engine=(veomni|torchtitan|automodel)|strategy=(veomni|torchtitan)/.test(text),
  'images, video, sound': ({ text, model }) =>
    /video_key=/.test(text) ||
    (!/qwen-?2(\.?5)?-?vl|qwen-?3-?vl-\d+b|qwen-?3\.[56]|glm-?4\.[156]v/i.test(model) &&
      (/image_key=(?!null)|freeze_vision_tower=True|limit_images=\d/.test(text) ||
        /-VL|vision|omni|kimi-vl|minicpm-?o|glm-?4\.?\dv/i.test(model))),
  'GPUs of the trainer lent to the rollout': ({ text }) =>
    /enable_switch=True|use_dynamic_resource_scheduling=True/.test(text),
  'updates that wait for requests in flight': ({ text }) =>
    /partial_rollout=False/.test(text) && /staleness_threshold=(?!0(\.0*)?(\n|$))/.test(text),
  'a model family': ({ model }) =>
    /qwen-?3\.?[78]|deepseek-?(ai\/deepseek-)?v(2|3\.2|[4-9])|glm(?!-?4\.([56](-air)?(-base)?(\/|$)|[156]v))|mimo-?v\d|kimi-?(linear|k2\.\d)|nemotron|minimax|step-?3|ling-|hunyuan|wan2/i.test(
      model,
    ) && !/distill/i.test(model),
  'a trainer of its own': ({ program }) =>
    !/verl[./]trainer[./](main_ppo|sft_trainer|fsdp_sft_trainer)(_sync|_ray|_format)?(\.py)?$|dapo[./]main_dapo(\.py)?$|^main_ppo\.py$/.test(
      program,
    ) &&
    !/one_step_off_policy[./]main_ppo(\.py)?$|fully_async_policy[./]fully_async_main(\.py)?$/.test(program),
  'agents and interactions in Python': ({ text }) =>
    /(agent_loop_config|interaction_config)_?path=(?!null)|agent_loop_manager_class=(?!null)/.test(text) ||
    /default_agent_loop=(?!single_turn_agent|tool_agent)|multi_turn\.format=(?!hermes|llama3)/.test(text),
  'a reward manager in Python': ({ text }) =>
    /reward_manager\.module|reward_loop_module_path|source=importlib/.test(text),
  NPU: ({ text }) => /trainer\.device=npu/.test(text),
  'fp8, quantisation': ({ text }) =>
    /quantization=(?!null|["']?(fp8|int8)\b)|fp8=|qat\.enable=True|nvfp4|kv_cache_dtype=fp8|fp8_/i.test(text),
  'distillation from a model that is not there': ({ text }) =>
    /distillation\.enabled=True/.test(text) &&
    /teacher_models\.\w+\.model_path=\S*(-VL(?!-\d+B)|qwen-?3\.?[78]|glm(?!-?4\.[56])|kimi-?vl)/i.test(text),
  'another kind of distillation': ({ text }) =>
    /teacher/.test(text) && !/distillation\.enabled=True/.test(text),
  'another profiler': ({ text }) =>
    (/profiler\.enable=True/.test(text) && /profiler\.tool=(?!null|torch\b)/.test(text)) ||
    /profile_steps=\[?['"\d]/.test(text),
  'another precision': ({ text }) => /(param|buffer|model|reduce)_dtype=(?!bf|fp32|float32)\w/.test(text),
  'a veto of single tokens': ({ text }) => /token_veto_threshold=(?!null)/.test(text),
  'a data set class of a supervised run': ({ program, text }) =>
    /sft_trainer/.test(program) && /custom_cls\.path=(?!null)/.test(text),
  'samplers and data generators': ({ text }) =>
    /sampler\.class_path=(?!null)|datagen\.path=(?!null)/.test(text),
  'another logger': ({ text }) => /trainer\.logger=\S*(swanlab|trackio|clearml|vemlp|rl_insight)/.test(text),
  'generative reward model': ({ text }) =>
    /reward_model\.enable=True/.test(text) && /custom_reward_function\.path=/.test(text),
  'a recording of responses that are worked on ahead': ({ text }) =>
    /(^|\n)skip\.async_rollout\.enable=True/.test(text),
  'multi-token prediction': ({ text }) => /mtp\.enable_train=True/.test(text),
  'activation offload': ({ text }) => /enable_activation_offload=True/.test(text),
};

/** @returns names of the features */
export function askedFeatures(program, args) {
  const text = args.join('\n');
  const value = (key) =>
    args
      .findLast((word) => word.replace(/^\+*/, '').startsWith(`${key}=`))
      ?.split('=')
      .slice(1)
      .join('=');
  const model =
    value('actor_rollout_ref.model.path') ?? value('model.path') ?? value('model.partial_pretrain') ?? '';
  return Object.entries(CASES)
    .filter(([, asks]) => asks({ program, text, value, model }))
    .map(([name]) => name);
}
