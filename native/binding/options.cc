// Options of engines, losses and sampling, read from JavaScript.
#include "binding/options.h"

#include <array>

#include "binding/tensors.h"

namespace troupe::binding {

namespace {

constexpr std::array kNorms = {NormKind::kRms, NormKind::kLayer};

VisionConfig read_vision(const Field& dto) {
  constexpr std::array kActivations = {Activation::kSilu,      Activation::kGelu, Activation::kGeluTanh,
                                       Activation::kQuickGelu, Activation::kRelu, Activation::kSquaredRelu};
  VisionConfig vision;
  vision.num_layers = dto["numLayers"].integer();
  vision.hidden_size = dto["hiddenSize"].integer();
  vision.num_heads = dto["numHeads"].integer();
  vision.intermediate_size = dto["intermediateSize"].integer();
  vision.activation =
      kActivations[dto["activation"].word({"silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"})];
  vision.gated_mlp = dto["gatedMlp"].boolean();
  vision.norm = kNorms[dto["norm"].word({"rms", "layer"})];
  vision.norm_eps = dto["normEps"].number();
  vision.patch_bias = dto["patchBias"].boolean();
  vision.patch_norm = dto["patchNorm"].boolean();
  vision.qkv_bias = dto["qkvBias"].boolean();
  vision.layer_bias = dto["layerBias"].boolean();
  vision.window_side = dto["windowSide"].integer();
  vision.whole_layers = dto["wholeLayers"].integers();
  vision.patch_size = dto["patchSize"].integer();
  vision.temporal_patch_size = dto["temporalPatchSize"].integer();
  vision.merge_size = dto["mergeSize"].integer();
  vision.position_side = dto["positionSide"].integer();
  vision.cubic_positions = dto["cubicPositions"].boolean();
  vision.gated_merger_size = dto["gatedMergerSize"].integer();
  vision.rope_inv_freq = read_float64s(dto["ropeInvFreq"]);
  vision.deepstack_layers = dto["deepstackLayers"].integers();
  vision.pixel_mean = dto["pixelMean"].numbers();
  vision.pixel_std = dto["pixelStd"].numbers();
  vision.image_token = dto["imageToken"].integer();
  vision.rope_axes = dto["ropeAxes"].integers();
  vision.trained = dto["trained"].boolean();
  return vision;
}

ModelConfig read_model(const Field& dto) {
  constexpr std::array kHeads = {HeadKind::kLm, HeadKind::kValue};
  constexpr std::array kActivations = {
      Activation::kSilu, Activation::kGelu,        Activation::kGeluTanh,      Activation::kQuickGelu,
      Activation::kRelu, Activation::kSquaredRelu, Activation::kClampedSwiglu, Activation::kXielu};
  constexpr std::array kPositions = {PositionKind::kRope, PositionKind::kLearned, PositionKind::kNone};
  constexpr std::array kRules = {LinearRule::kGatedDelta, LinearRule::kMamba2, LinearRule::kShortConv};
  constexpr std::array kMatrices = {DeltaMatrices::kJoined, DeltaMatrices::kByKeyHead, DeltaMatrices::kApart};
  ModelConfig model;
  model.family = dto["family"].string();
  model.head = kHeads[dto["head"].word({"lm", "value"})];
  model.vocab_size = dto["vocabSize"].integer();
  model.hidden_size = dto["hiddenSize"].integer();
  model.num_layers = dto["numLayers"].integer();
  model.num_heads = dto["numHeads"].integer();
  model.num_kv_heads = dto["numKvHeads"].integer();
  model.head_dim = dto["headDim"].integer();
  model.intermediate_size = dto["intermediateSize"].integer();
  model.max_positions = dto["maxPositions"].integer();
  model.norm = kNorms[dto["norm"].word({"rms", "layer"})];
  model.norm_eps = dto["normEps"].number();
  model.norm_unit_offset = dto["normUnitOffset"].boolean();
  model.input_norms = dto["inputNorms"].boolean();
  model.post_norms = dto["postNorms"].boolean();
  model.qk_norm = dto["qkNorm"].boolean();
  model.whole_qk_norm = dto["wholeQkNorm"].boolean();
  model.value_norm = dto["valueNorm"].boolean();
  model.layer_scale = dto["layerScale"].boolean();
  model.attention_scale = dto["attentionScale"].number();
  model.attention_softcap = dto["attentionSoftcap"].number();
  model.final_softcap = dto["finalSoftcap"].number();
  model.logits_scaling = dto["logitsScaling"].number();
  model.residual_scale = dto["residualScale"].number();
  model.attention_gate = dto["attentionGate"].boolean();
  model.gates_apart = dto["gatesApart"].boolean();
  model.attention_sinks = dto["attentionSinks"].boolean();
  model.sliding_windows = dto["slidingWindows"].integers();
  model.qkv_bias = dto["qkvBias"].boolean();
  model.output_bias = dto["outputBias"].boolean();
  model.mlp_bias = dto["mlpBias"].boolean();
  model.gated_mlp = dto["gatedMlp"].boolean();
  model.activation = kActivations[dto["activation"].word(
      {"silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "clamped_swiglu", "xielu"})];
  model.positions = kPositions[dto["positions"].word({"rope", "learned", "none"})];
  model.rope_inv_freq = read_float64s(dto["ropeInvFreq"]);
  model.rope_attention_factor = dto["ropeAttentionFactor"].number();
  model.rope_pairs = dto["ropePairs"].boolean();
  model.second_rope_layers = dto["secondRopeLayers"].booleans();
  model.second_rope_inv_freq = read_float64s(dto["secondRopeInvFreq"]);
  model.second_rope_attention_factor = dto["secondRopeAttentionFactor"].number();
  if (const Field heads = dto["secondHeads"]; !heads.is_null())
    model.second_heads = HeadShape{heads["numKvHeads"].integer(), heads["headDim"].integer()};
  model.values_from_keys = dto["valuesFromKeys"].boolean();
  model.shared_kv_layers = dto["sharedKvLayers"].integer();
  model.shared_mlp_size = dto["sharedMlpSize"].integer();
  model.per_layer_size = dto["perLayerSize"].integer();
  model.embedding_scale = dto["embeddingScale"].number();
  model.tied_embeddings = dto["tiedEmbeddings"].boolean();
  model.value_bias = dto["valueBias"].boolean();
  if (const Field latent = dto["latent"]; !latent.is_null()) {
    model.latent = LatentConfig{latent["queryRank"].integer(), latent["keyRank"].integer(),
                                latent["stillDim"].integer(),  latent["rotaryDim"].integer(),
                                latent["valueDim"].integer(),  latent["interleaved"].boolean(),
                                latent["normEps"].number()};
  }
  if (const Field moe = dto["moe"]; !moe.is_null()) {
    model.moe = MoeConfig{
        moe["numExperts"].integer(),
        moe["topK"].integer(),
        moe["intermediateSize"].integer(),
        moe["normalizeTopK"].boolean(),
        moe["sharedIntermediateSize"].integer(),
        moe["sharedGate"].boolean(),
        moe["score"].word({"softmax", "sigmoid"}) == 0 ? RouterScore::kSoftmax : RouterScore::kSigmoid,
        moe["correctionBias"].boolean(),
        moe["groups"].integer(),
        moe["topGroups"].integer(),
        moe["routedScale"].number(),
        moe["biases"].boolean(),
        moe["groupBest"].integer(),
        moe["wideLogits"].boolean(),
        moe["latentSize"].integer(),
        moe["normalizerEps"].number(),
        moe["besideMlp"].boolean()};
  }
  model.moe_layers = dto["moeLayers"].booleans();
  if (const Field linear = dto["linear"]; !linear.is_null()) {
    model.linear =
        LinearAttentionConfig{kRules[linear["rule"].word({"gated_delta", "mamba2", "short_conv"})],
                              linear["keyHeads"].integer(),
                              linear["valueHeads"].integer(),
                              linear["keyDim"].integer(),
                              linear["valueDim"].integer(),
                              kMatrices[linear["matrices"].word({"joined", "by_key_head", "apart"})],
                              linear["convBias"].boolean(),
                              linear["leastStep"].number(),
                              linear["betaScale"].number(),
                              linear["normEps"].number(),
                              linear["convWidth"].integer()};
  }
  model.linear_layers = dto["linearLayers"].booleans();
  model.bare_layers = dto["bareLayers"].booleans();
  if (const Field vision = dto["vision"]; !vision.is_null()) model.vision = read_vision(vision);
  if (const Field prediction = dto["prediction"]; !prediction.is_null())
    model.prediction = PredictionConfig{prediction["layers"].count(), prediction["hiddenFirst"].boolean(),
                                        prediction["trained"].boolean()};
  return model;
}

MuonOptions read_muon(const Field& dto) {
  MuonOptions muon;
  muon.momentum = dto["momentum"].number();
  muon.nesterov = dto["nesterov"].boolean();
  muon.scale = parse_muon_scale(dto["scaleMode"].string());
  muon.extra_scale = dto["extraScaleFactor"].number();
  muon.coefficients = parse_newton_schulz(dto["coefficientType"].string());
  muon.iterations = dto["numNsSteps"].integer();
  muon.bfloat16 = parse_dtype(dto["dtype"].string()) == at::kBFloat16;
  return muon;
}

Schedule read_schedule(const Field& dto) {
  Schedule schedule;
  schedule.kind = parse_schedule(dto["kind"].string());
  schedule.warmup_steps = dto["warmupSteps"].integer();
  schedule.total_steps = dto["totalSteps"].integer();
  schedule.min_lr_ratio = dto["minLrRatio"].number();
  schedule.init_lr_ratio = dto["initLrRatio"].number();
  schedule.num_cycles = dto["numCycles"].number();
  schedule.first_step = dto["firstStep"].integer();
  schedule.wsd_decay_steps = dto["wsdDecaySteps"].integer();
  schedule.wsd_decay = parse_wsd_decay(dto["wsdDecay"].string());
  return schedule;
}

OptimizerOptions read_optim(const Field& dto) {
  OptimizerOptions optim;
  optim.lr = dto["lr"].number();
  optim.beta1 = dto["beta1"].number();
  optim.beta2 = dto["beta2"].number();
  optim.eps = dto["eps"].number();
  optim.weight_decay = dto["weightDecay"].number();
  optim.grad_clip = dto["gradClip"].number();
  optim.schedule = read_schedule(dto["schedule"]);
  if (const Field muon = dto["muon"]; !muon.is_null()) optim.muon = read_muon(muon);
  return optim;
}

LoraOptions read_lora(const Field& dto) {
  LoraOptions lora;
  lora.rank = dto["rank"].integer();
  lora.scale = dto["scale"].number();
  for (const Field& site : dto["sites"].elements()) {
    lora.sites.push_back(
        {site["name"].string(), site["param"].string(), site["row"].integer(), site["rows"].integer()});
  }
  return lora;
}

}  // namespace

StateKinds read_state_kinds(const Field& dto) {
  return {dto["parameters"].boolean(), dto["gradients"].boolean(), dto["moments"].boolean()};
}

EngineOptions read_engine_options(const Field& dto) {
  EngineOptions options;
  options.model = read_model(dto["model"]);
  options.device = parse_device(dto["device"].string());
  options.dtype = parse_dtype(dto["dtype"].string());
  options.master_dtype = parse_dtype(dto["masterDtype"].string());
  options.max_tokens = dto["maxTokens"].integer();
  options.gradient_checkpointing = dto["gradientCheckpointing"].boolean();
  options.activation_offload = dto["activationOffload"].boolean();
  if (const Field optim = dto["optim"]; !optim.is_null()) options.optim = read_optim(optim);
  if (const Field lora = dto["lora"]; !lora.is_null()) options.lora = read_lora(lora);
  if (const Field prediction = dto["prediction"]; !prediction.is_null())
    options.prediction = {prediction["coef"].number(), prediction["detach"].boolean()};
  options.seed = static_cast<uint64_t>(dto["seed"].count());
  options.num_threads = dto["numThreads"].count();
  options.shard_size = dto["shardSize"].count();
  options.ulysses = dto["ulysses"].count();
  const Field parallel = dto["parallel"];
  options.parallel.tp = parallel["tp"].count();
  options.parallel.cp = parallel["cp"].count();
  options.parallel.ep = parallel["ep"].count();
  options.sequence_parallel = parallel["sequenceParallel"].boolean();
  const Field pipeline = dto["pipeline"];
  options.pipeline = {pipeline["stages"].count(),           pipeline["chunks"].count(),
                      pipeline["firstLayers"].count(),      pipeline["lastLayers"].count(),
                      pipeline["countEmbedding"].boolean(), pipeline["countHead"].boolean()};
  options.pipeline_order = parse_pipeline_order(pipeline["order"].string());
  if (const Field sharding = dto["sharding"]; !sharding.is_null())
    options.sharding = parse_sharding_strategy(sharding.string());
  options.prefetch = dto["prefetch"].boolean();
  options.reduction = parse_reduction(dto["reduction"].string());
  options.reduce_dtype = parse_dtype(dto["reduceDtype"].string());
  options.offload = read_state_kinds(dto["offload"]);
  return options;
}

DistillationOptions read_distillation(const Field& dto) {
  DistillationOptions options;
  options.top_k = dto["topK"].count();
  if (options.top_k == 0) options.estimator = parse_kl_penalty(dto["lossMode"].string()).value;
  options.coef = dto["coef"].number();
  if (!dto["maxLoss"].is_null()) options.max_loss = dto["maxLoss"].number();
  if (!dto["minLogProb"].is_null()) options.min_log_prob = dto["minLogProb"].number();
  options.task_rewards = dto["taskRewards"].boolean();
  options.policy_gradient = dto["policyGradient"].boolean();
  options.clip_ratio_low = dto["clipRatioLow"].number();
  options.clip_ratio_high = dto["clipRatioHigh"].number();
  return options;
}

PolicyLossOptions read_policy_loss_options(const Field& dto) {
  PolicyLossOptions options;
  options.mode = parse_policy_mode(dto["mode"].string());
  options.clip_ratio_low = dto["clipRatioLow"].number();
  options.clip_ratio_high = dto["clipRatioHigh"].number();
  options.clip_ratio_c = dto["clipRatioC"].number();
  options.aggregation = parse_aggregation(dto["aggregation"].string());
  options.scale_factor = dto["scaleFactor"].number();
  options.entropy_coeff = dto["entropyCoeff"].number();
  options.use_kl_loss = dto["useKlLoss"].boolean();
  options.kl_loss_coef = dto["klLossCoef"].number();
  options.kl_loss_type = parse_kl_penalty(dto["klLossType"].string());
  options.router_aux_loss_coef = dto["routerAuxLossCoef"].number();
  options.router_z_loss_coef = dto["routerZLossCoef"].number();
  for (const auto& [name, field] : dto["extra"].entries()) options.extra[name] = field.number();
  if (!dto["distillation"].is_null()) options.distillation = read_distillation(dto["distillation"]);
  return options;
}

ValueLossOptions read_value_loss_options(const Field& dto) {
  ValueLossOptions options;
  options.clip_range = dto["clipRange"].number();
  options.aggregation = parse_aggregation(dto["aggregation"].string());
  options.scale_factor = dto["scaleFactor"].number();
  options.router_z_loss_coef = dto["routerZLossCoef"].number();
  return options;
}

SftLossOptions read_sft_loss_options(const Field& dto) {
  return {dto["routerZLossCoef"].number()};
}

ops::Quantization read_quantization(const Field& dto) {
  const std::string name = dto.string();
  if (name == "int8") return ops::Quantization::kInt8;
  if (name == "fp8") return ops::Quantization::kFp8;
  if (name != "none") dto.mismatch("none, int8 or fp8");
  return ops::Quantization::kNone;
}

}  // namespace troupe::binding
