// Creation, agreement of the ranks of a call, rows of micro-batches, and refusals.
#include "engine/rank_engine.h"

#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simulated.h"
#include "megatron/schedule.h"
#include "model/stage_layout.h"

namespace troupe {

namespace {

const EngineOptions& checked(const EngineOptions& options) {
  validate(options.model);
  require(options.max_tokens > 0, ErrorCode::kInvalidArgument,
          "[engine] expected a micro-batch capacity (maxTokensPerMicroBatch) > 0, got ", options.max_tokens);
  require(options.ulysses >= 1, ErrorCode::kInvalidArgument,
          "[engine] expected a number of ranks per sequence (ulysses) >= 1, got ", options.ulysses);
  const ParallelDims& dims = options.parallel;
  require(options.master_dtype == at::kFloat || options.master_dtype == options.dtype,
          ErrorCode::kInvalidArgument,
          "[engine] masters in bfloat16 are computed with as they are: expected "
          "the dtype bfloat16, too, got float32");
  // Copies of a weight on ranks that share matrices lie at places of their own, and would be rounded apart.
  require(
      options.master_dtype == at::kFloat || (dims.tp == 1 && dims.ep == 1 && options.pipeline.stages == 1),
      ErrorCode::kInvalidArgument,
      "[engine] masters in bfloat16 are for data parallelism: expected tp, ep and stages of a pipeline to be "
      "1, got ",
      dims.tp, ", ", dims.ep, " and ", options.pipeline.stages);
  require(dims.pp == 1, ErrorCode::kInvalidArgument,
          "[parallel] expected pp as the stages of the pipeline, got pp ", dims.pp);
  require(dims.ep == 1 || options.shard_size == 0, ErrorCode::kInvalidArgument,
          "[parallel] expected one copy of the state (shard_size 0) beside ep ", dims.ep, ", got shard_size ",
          options.shard_size);
  require(dims.tp == 1 || options.ulysses == 1, ErrorCode::kInvalidArgument,
          "[parallel] expected either tp or ulysses, both of which share heads, to be 1, got tp ", dims.tp,
          " and ulysses ", options.ulysses);
  require(dims.cp == 1 || options.ulysses == 1, ErrorCode::kInvalidArgument,
          "[parallel] expected either cp or ulysses, both of which share the rows of micro-batches, to be 1, "
          "got cp ",
          dims.cp, " and ulysses ", options.ulysses);
  const int64_t sharing = dims.tp * dims.cp * options.ulysses;
  require(!options.model.linear || sharing == dims.tp || options.model.linear->key_heads % sharing == 0,
          ErrorCode::kInvalidArgument, "[parallel] expected tp x cp x ulysses to divide the ",
          options.model.linear ? options.model.linear->key_heads : 0,
          " key heads of the linear attention (of Mamba 2 its groups), which ranks that share rows share, "
          "too, got ",
          dims.tp, " x ", dims.cp, " x ", options.ulysses);
  require(
      options.pipeline.stages * options.pipeline.chunks == 1 ||
          (options.model.shared_kv_layers == 0 && options.model.per_layer_size == 0),
      ErrorCode::kInvalidArgument,
      "[pipeline] layers of this model take keys of earlier ones (shared_kv_layers), or numbers of a row's "
      "token (per_layer_size): expected all layers on one rank (pp 1), got ",
      options.pipeline.stages, " stages of ", options.pipeline.chunks, " parts");
  if (options.model.vision) {
    // The tower is in the first part, and what it adds goes no further.
    const int64_t first = pipeline_parts(options.model.num_layers, options.pipeline).front().layers();
    const auto deep = static_cast<int64_t>(options.model.vision->deepstack_layers.size());
    require(first >= deep, ErrorCode::kInvalidArgument,
            "[pipeline] features of images are added behind the first ", deep,
            " layers: expected all of these in the first part of the pipeline, got ", first);
  }
  if (options.model.prediction) {
    require(
        !options.model.prediction->trained || (dims.cp == 1 && options.ulysses == 1),
        ErrorCode::kInvalidArgument,
        "[parallel] layers that predict further tokens read the rows of whole sequences: expected neither "
        "cp nor ulysses, whose ranks share the rows of micro-batches, got cp ",
        dims.cp, " and ulysses ", options.ulysses, ": share heads by tp");
    require(!options.lora, ErrorCode::kInvalidArgument,
            "[engine] layers that predict further tokens are there with the whole model alone: expected no "
            "adapters beside them");
  }
  require(options.gradient_checkpointing || !options.activation_offload, ErrorCode::kInvalidArgument,
          "[engine] offloaded activations (activationOffload) are the inputs of blocks that are recomputed: "
          "expected gradientCheckpointing beside them");
  if (options.optim) validate(options.optim->schedule);
  if (options.optim && options.optim->muon) {
    validate(*options.optim->muon);
    require(options.lora || options.master_dtype == at::kFloat, ErrorCode::kInvalidArgument,
            "[optim] Muon's steps are of float32: expected masters in float32, got bfloat16");
  }
  set_num_threads(options.num_threads);
  return options;
}

}  // namespace

at::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  fail(ErrorCode::kInvalidArgument, "[engine] expected dtype float32 or bfloat16, got ", name);
}

at::Device parse_device(const std::string& name) {
  require(name == "cpu" || name == "cuda", ErrorCode::kInvalidArgument,
          "[engine] expected device cpu or cuda, got ", name);
  require(name == "cpu" || at::hasCUDA(), ErrorCode::kInvalidArgument,
          "[engine] device cuda was asked for, but this LibTorch sees no GPU; `troupe doctor` says why");
  return at::Device(name);
}

ShardingOptions sharding_options(const EngineOptions& options, int64_t size) {
  return {.strategy = options.sharding,
          .shard_count = shard_count(options.sharding, options.shard_size, size),
          .prefetch = options.prefetch,
          .reduction = options.reduction,
          .reduce_dtype = options.reduce_dtype,
          .overlap_reduction = options.overlap_reduction.value_or(!on_cpu_threads(options.device)),
          .expert_shard_count = shard_count(options.sharding, 0, size / options.parallel.ep)};
}

ParallelDims parallel_dims(const EngineOptions& options) {
  ParallelDims dims = options.parallel;
  dims.pp = options.pipeline.stages;
  return dims;
}

DecoderPart decoder_part(const EngineOptions& options, const ParallelDims& dims, int64_t rank) {
  return {dims.tp, dims.rank_on(Axis::kTp, rank), dims.tp > 1 && options.sequence_parallel, dims.ep,
          dims.rank_on(Axis::kEp, rank)};
}

ParameterStore make_store(const EngineOptions& options, at::Device device, const ParallelDims& dims,
                          int64_t rank) {
  const ShardingOptions sharding = sharding_options(options, dims.size(Axis::kDpCp));
  const int64_t count = sharding.shard_count, experts = sharding.expert_shard_count;
  const PipelineOptions& pipeline = options.pipeline;
  return ParameterStore(
      layout_at_stage(decoder_layout(options.model, options.lora, decoder_part(options, dims, rank)),
                      pipeline_parts(options.model.num_layers, pipeline), pipeline.stages,
                      dims.rank_on(Axis::kPp, rank)),
      device, options.dtype, options.optim.has_value(), options.seed,
      {dims.rank_on(Axis::kDpCp, rank) % count, count}, options.offload,
      {dims.rank_on(Axis::kExpertDp, rank) % experts, experts},
      options.lora ? at::kFloat : options.master_dtype, options.optim && options.optim->muon);
}

std::unique_ptr<Engine> create_engine(const EngineOptions& options, std::shared_ptr<Communicator> comm) {
  if (!comm) comm = make_local_communicator();
  return std::make_unique<RankEngine>(options, std::move(comm));
}

RankEngine::RankEngine(const EngineOptions& options, std::shared_ptr<Communicator> comm)
    : options_(checked(options)),
      device_(options.device),
      mesh_(comm, parallel_dims(options)),
      parts_(pipeline_parts(options.model.num_layers, options.pipeline)),
      store_(make_store(options, device_, mesh_.dims(), mesh_.rank())),
      sharding_(store_, mesh_, sharding_options(options, mesh_.dp_cp()->size())),
      sequence_(options.ulysses > 1
                    ? std::make_unique<SequenceGroup>(*mesh_.dp(), options.ulysses, options.model.num_heads)
                    : nullptr),
      context_(mesh_.cp()->size() > 1 ? std::optional<ContextGroup>(*mesh_.cp()) : std::nullopt),
      ep_(mesh_.ep()->size() > 1 ? mesh_.ep().get() : nullptr),
      exchange_(mesh_.tp()->size() > 1 ? std::optional<Exchange>({*mesh_.tp(), options.sequence_parallel})
                                       : std::nullopt),
      transformer_(options.model, store_, device_, options.dtype, &sharding_, sequence_.get(),
                   PipelinePlace{parts_, mesh_.pp().get()}, exchange_ ? &*exchange_ : nullptr, ep_,
                   context_ ? &*context_ : nullptr) {
  if (options.activation_offload) activation_offload_.emplace(device_);
  if (exchange_ && options.model.head == HeadKind::kLm)
    vocabulary_.emplace(*mesh_.tp(), vocabulary_offsets(options.model.vocab_size, exchange_->size()));
  const int64_t last = mesh_.pp()->size() - 1, stage = mesh_.pp()->rank();
  if (last == 0 || (store_.find("head.weight") != nullptr && !options.model.prediction)) return;
  if (stage == 0) embedding_peer_ = last;
  if (stage == last) embedding_peer_ = 0;
}

std::vector<ParameterInfo> RankEngine::parameters() const {
  std::vector<ParameterInfo> infos;
  for (const Parameter& parameter : store_.all()) {
    infos.push_back({parameter.info.name, parameter.placement.shape, !parameter.matrices.empty()});
  }
  return infos;
}

StateBytes RankEngine::state_bytes() const {
  return store_.bytes();
}

std::vector<int64_t> RankEngine::agree(const std::vector<int64_t>& counts) {
  kept_.reset();
  stop_decoding();
  ++agreements_;
  return sharding_.agree(*mesh_.world(), counts);
}

RankEngine::Beginning::Beginning(RankEngine& engine, size_t entries)
    : engine_(engine), entries_(entries), agreements_(engine.agreements_) {}

RankEngine::Beginning::~Beginning() {
  if (engine_.agreements_ != agreements_) return;
  try {
    // As the others do in their agree(): ranks that decode together go on together or not at all.
    engine_.stop_decoding();
    engine_.sharding_.agree(*engine_.mesh_.world(), std::vector<int64_t>(entries_, 0), /*refuses=*/true);
  } catch (const std::exception&) {
    // The other ranks cannot be reached either. The exception that is already on its way says why.
  }
}

void RankEngine::offload(const StateKinds& kinds) {
  check_abort();
  agree({});  // what was fetched by a verb that failed goes back first
  store_.keep(kinds, /*on_host=*/true);
}

void RankEngine::onload(const StateKinds& kinds) {
  check_abort();
  agree({});
  store_.keep(kinds, /*on_host=*/false);
}

BatchLayout RankEngine::checked_layout(const TokenBatch& batch) const {
  const std::optional<VisionConfig>& vision = options_.model.vision;
  const ImageTokens images = vision ? image_tokens(*vision) : ImageTokens{};
  const BatchLayout layout = check_layout(batch, options_.model.vocab_size, options_.model.max_positions,
                                          vision ? &images : nullptr);
  check_routed_experts(batch, layout, routing_shape(options_.model));
  return layout;
}

at::Tensor RankEngine::no_choices(const TokenBatch& batch) const {
  if (!batch.routed_experts.defined()) return {};
  const RoutingShape shape = routing_shape(options_.model);
  return at::empty({0, shape.width()}, at::TensorOptions().dtype(shape.dtype()).device(device_));
}

HeadContext RankEngine::head_context() {
  return {transformer_.stages().back(),
          options_.model,
          device_,
          sharing(),
          vocabulary_ ? &*vocabulary_ : nullptr,
          [this](const at::Tensor& own, const char* what) { return combined(own, what); }};
}

int64_t RankEngine::row_parts() const {
  const int64_t scattered = exchange_ && exchange_->scattered() ? exchange_->size() : 1;
  return scattered * mesh_.cp()->size() * options_.ulysses;
}

RowPadding RankEngine::row_padding() const {
  // The bits of a product on a GPU depend on its number of rows, so micro-batches get the same number there.
  // A CPU computes in tiles of a fixed size and needs no padding.
  return {kRowTile * row_parts(), options_.max_tokens, !on_cpu_threads(device_)};
}

MicroRows RankEngine::gather_rows(const TokenBatch& batch, const BatchLayout& layout,
                                  const MicroBatch& micro) const {
  const PackedTokens whole = gather(batch, layout, micro, padded_rows(micro, row_padding()));
  if (sequence_) return {whole, consecutive_rows(whole, sequence_->rank(), sequence_->size())};
  if (context_) return {whole, balanced_rows(whole, context_->rank(), context_->size())};
  return {whole, whole};
}

at::Tensor RankEngine::combined(const at::Tensor& own, const char* what) const {
  if (!own.defined()) return own;
  Communicator* const ranks = sharing();
  const at::Tensor whole = ranks != nullptr ? combine_parts(*ranks, own, {"forward", what}) : own;
  const std::shared_ptr<Communicator>& pp = mesh_.pp();
  if (pp->size() > 1) pp->broadcast(whole, pp->size() - 1, {"forward", what});
  return whole;
}

void RankEngine::run_micro_batches(const TokenBatch& batch, const BatchLayout& layout,
                                   const std::vector<MicroBatch>& micros, int64_t rounds,
                                   const HeadWork& head) {
  const bool training = static_cast<bool>(head.gradient);
  const PipelineShape shape{options_.pipeline.stages, rounds, options_.pipeline.chunks,
                            options_.gradient_checkpointing ? 3 : 2};
  StageWork work(
      transformer_, static_cast<int64_t>(micros.size()), options_.gradient_checkpointing,
      activation_offload_ ? &*activation_offload_ : nullptr, head,
      [&](int64_t micro) { return gather_rows(batch, layout, micros[static_cast<size_t>(micro)]); },
      [this] { check_abort(); });
  run_pipeline(pipeline_schedule(training ? options_.pipeline_order : PipelineOrder::kForward, shape,
                                 mesh_.pp()->rank()),
               mesh_.pp().get(), work);
}

void RankEngine::set_steps(int64_t optimizer_steps, int64_t schedule_steps) {
  optimizer_steps_ = optimizer_steps;
  schedule_steps_ = schedule_steps;
}

double RankEngine::learning_rate() const {
  require(options_.optim.has_value(), ErrorCode::kInvalidArgument,
          "[engine] an inference-only engine (optim: null) has no learning rate");
  return troupe::learning_rate(options_.optim->schedule, options_.optim->lr, schedule_steps_);
}

void RankEngine::abort(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(abort_mutex_);
  if (!aborted_) abort_reason_ = reason;
  aborted_ = true;
  mesh_.abort(reason);
  sharding_.abort(reason);
  if (sequence_) sequence_->abort(reason);
  if (copy_) copy_->comm().abort(reason);
}

void RankEngine::check_abort() const {
  if (!aborted_) return;
  const std::lock_guard<std::mutex> lock(abort_mutex_);
  fail(ErrorCode::kAborted, "[engine] aborted: ", abort_reason_);
}

void RankEngine::require_head(HeadKind head, const char* verb) const {
  const char* expected = head == HeadKind::kLm ? "a causal LM" : "a value model";
  const char* actual = head == HeadKind::kLm ? "a value model" : "a causal LM";
  require(options_.model.head == head, ErrorCode::kInvalidArgument, "[engine] ", verb, " needs ", expected,
          ", and this engine holds ", actual);
}

void RankEngine::check_temperature(double temperature) {
  require(temperature > 0 && std::isfinite(temperature), ErrorCode::kInvalidArgument,
          "[engine] expected a finite temperature > 0, got ", temperature);
}

void RankEngine::prepare(bool replaces_weights) {
  const bool weights = half_changed(TensorKind::kParam);
  const bool state = std::count(half_changed_.begin(), half_changed_.end(), true) > (weights ? 1 : 0);
  // Not kAborted, which ranks throw whose peer has refused: this is the cause that it says to look for.
  require(!state && (!weights || replaces_weights), ErrorCode::kInvalidModel,
          "[engine] an optimiser step or a load has failed, as its error said, when a part of the weights or "
          "of the optimiser's state was changed and a part was not: ",
          state ? "" : "replace all of the weights (importWeights), ",
          "load a checkpoint (loadCheckpoint), or create the engine again");
  if (prepared_) return;
  store_.initialize_missing();
  prepared_ = true;
}

void RankEngine::begin_together(const std::function<void()>& begin) {
  std::exception_ptr own;
  try {
    begin();
  } catch (...) {
    own = std::current_exception();
  }
  bool any = true;
  try {
    any = any_rank(own != nullptr, {"start", "weights"});
  } catch (...) {
    if (!own) throw;
  }
  if (own) std::rethrow_exception(own);
  require(!any, ErrorCode::kAborted, kRefusedElsewhere);
}

}  // namespace troupe
