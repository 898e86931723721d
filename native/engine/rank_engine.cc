// Creation, checkpoints, and the verbs that change no weight.
#include "engine/rank_engine.h"

#include "checkpoint/tensor_file.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/upload.h"
#include "kernels/linear_log_prob.h"
#include "model/value_head.h"
#include "rollout/generator.h"

namespace troupe {

namespace {

// The base model alone, for the life of this object.
class AdaptersOff {
 public:
  AdaptersOff(Transformer& transformer, bool off) : transformer_(off ? &transformer : nullptr) {
    if (transformer_ != nullptr) transformer_->enable_adapters(false);
  }
  ~AdaptersOff() {
    if (transformer_ != nullptr) transformer_->enable_adapters(true);
  }
  AdaptersOff(const AdaptersOff&) = delete;
  AdaptersOff& operator=(const AdaptersOff&) = delete;

 private:
  Transformer* transformer_;
};

const EngineOptions& checked(const EngineOptions& options) {
  validate(options.model);
  require(options.max_tokens > 0, ErrorCode::kInvalidArgument,
          "[engine] expected a micro-batch capacity (maxTokensPerMicroBatch) > 0, got ", options.max_tokens);
  require(options.ulysses >= 1, ErrorCode::kInvalidArgument,
          "[engine] expected a number of ranks per sequence (ulysses) >= 1, got ", options.ulysses);
  if (options.optim) validate(options.optim->schedule);
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
  return {options.sharding, shard_count(options.sharding, options.shard_size, size), options.prefetch,
          options.reduction};
}

ParameterStore make_store(const EngineOptions& options, at::Device device, int64_t rank, int64_t size) {
  const int64_t count = sharding_options(options, size).shard_count;
  return ParameterStore(decoder_layout(options.model, options.lora), device, options.dtype,
                        options.optim.has_value(), options.seed, {rank % count, count}, options.offload);
}

std::unique_ptr<Engine> create_engine(const EngineOptions& options, std::shared_ptr<Communicator> comm) {
  if (!comm) comm = make_local_communicator();
  return std::make_unique<RankEngine>(options, std::move(comm));
}

RankEngine::RankEngine(const EngineOptions& options, std::shared_ptr<Communicator> comm)
    : options_(checked(options)),
      device_(options.device),
      store_(make_store(options, device_, comm->rank(), comm->size())),
      sharding_(store_, comm, sharding_options(options, comm->size())),
      sequence_(options.ulysses > 1 ? std::make_unique<SequenceGroup>(*comm, options.ulysses, options.model.num_heads)
                                    : nullptr),
      transformer_(options.model, store_, device_, options.dtype, &sharding_, sequence_.get()) {}

std::vector<ParameterInfo> RankEngine::parameters() const {
  std::vector<ParameterInfo> infos;
  for (const Parameter& parameter : store_.all()) infos.push_back(parameter.info);
  return infos;
}

void RankEngine::import_tensors(TensorKind kind, const std::vector<TensorFile>& files) {
  at::NoGradGuard no_grad;
  for (const TensorFile& file : files) {
    check_abort();
    read_tensor_file(
        file, [&](const std::string& name) { return store_.at(name).info.shape; },
        [&](const TensorSlice& slice) {
          return store_.owned_rows(kind, store_.at(slice.param), slice.row, slice.rows);
        },
        [&](const TensorSlice& slice, const at::Tensor& values) {
          if (kind == TensorKind::kParam) store_.mark_imported(slice.param);
          store_.assign(kind, store_.at(slice.param), slice.row, values);
        });
  }
  if (kind != TensorKind::kParam) return;
  weights_changed();
  if (prepared_) store_.refresh_compute();
}

at::Tensor RankEngine::merged(size_t group) {
  at::Tensor whole = flat(TensorKind::kParam, group);
  const std::optional<size_t> adapters = store_.adapters_of(group);
  if (!adapters) return whole;
  if (whole.is_same(store_.owned(TensorKind::kParam, group))) whole = whole.clone();
  store_.merge(group, whole, flat(TensorKind::kParam, *adapters));
  return whole;
}

at::Tensor RankEngine::flat(TensorKind kind, size_t group) {
  if (kind == TensorKind::kMerged) return merged(group);
  return sharding_.gather(kind, group);
}

at::Tensor RankEngine::get_tensor(TensorKind kind, const std::string& param) {
  prepare();
  const Parameter& parameter = store_.at(param);
  return ParameterStore::view(parameter, flat(kind, parameter.group))
      .to(at::kCPU, at::kFloat)
      .contiguous()
      .clone();
}

StateBytes RankEngine::state_bytes() const {
  return store_.bytes();
}

std::vector<int64_t> RankEngine::agree(const std::vector<int64_t>& counts) {
  kept_.reset();
  ++agreements_;
  return sharding_.agree(counts);
}

RankEngine::Beginning::Beginning(RankEngine& engine, size_t entries)
    : engine_(engine), entries_(entries), agreements_(engine.agreements_) {}

RankEngine::Beginning::~Beginning() {
  if (engine_.agreements_ != agreements_) return;
  try {
    engine_.sharding_.agree(std::vector<int64_t>(entries_, 0), /*refuses=*/true);
  } catch (const std::exception&) {
    // The others are lost as well; the error that is on its way is the one to be heard of.
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

LogProbResult RankEngine::compute_log_prob(const TokenBatch& batch, double temperature, bool entropy,
                                            bool sum_pi_squared, bool disable_adapters) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, 1);
  require_head(HeadKind::kLm, "compute_log_prob");
  check_temperature(temperature);
  require(!disable_adapters || options_.lora, ErrorCode::kInvalidArgument,
          "[engine] there are no adapters to disable: the engine was created without lora");
  prepare();
  const BatchLayout layout = check_layout(batch, options_.model.vocab_size, options_.model.max_positions);
  const auto result = [&](bool wanted) {
    return wanted ? at::zeros({layout.num_response_tokens()}) : at::Tensor();
  };
  LogProbResult all{result(true), result(entropy), result(sum_pi_squared)};
  const AdaptersOff off(transformer_, disable_adapters);
  for_each_micro(batch, layout, [&](const PackedTokens& packed) {
    const int64_t count = packed.targets.size(0);
    const at::Tensor hidden = transformer_.forward(packed, nullptr, false);
    const ops::LogProbRows out =
        head_rows({temperature, options_.model.final_softcap}, packed, hidden, entropy, sum_pi_squared);
    const auto scatter = [&](const at::Tensor& target, const at::Tensor& source) {
      if (target.defined()) target.index_copy_(0, packed.response_index, source.narrow(0, 0, count).cpu());
    };
    scatter(all.log_probs, out.log_probs);
    scatter(all.entropy, out.entropy);
    scatter(all.sum_pi_squared, out.sum_pi_squared);
  });
  all.log_probs = combined(all.log_probs, "log-probs");
  all.entropy = combined(all.entropy, "entropy");
  all.sum_pi_squared = combined(all.sum_pi_squared, "sums of squares");
  return all;
}

ops::LogProbRows RankEngine::head_rows(const ops::LogProbSpec& spec, const PackedTokens& packed,
                                        const at::Tensor& hidden, bool entropy, bool sum_pi_squared) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device_);
  const auto rows = [&](bool wanted) { return wanted ? at::empty({hidden.size(0)}, options) : at::Tensor(); };
  const ops::LogProbRows out{rows(true), rows(true), rows(entropy), rows(sum_pi_squared)};
  ops::linear_log_prob_forward(spec, hidden, transformer_.head_weight(),
                               upload(pad_rows(packed.targets, hidden.size(0)), device_), out);
  return out;
}

PackedTokens RankEngine::gather_rows(const TokenBatch& batch, const BatchLayout& layout,
                                      const MicroBatch& micro) const {
  // On a CPU tiles of rows make a row's bits its own.
  const bool fixed = !device_.is_cpu();
  return gather(batch, layout, micro,
                padded_rows(micro, kRowTile * options_.ulysses, options_.max_tokens, fixed));
}

PackedTokens RankEngine::own_part(const PackedTokens& whole) const {
  return sequence_ ? own_rows(whole, sequence_->rank(), sequence_->size()) : whole;
}

at::Tensor RankEngine::combined(const at::Tensor& own, const char* what) const {
  return sequence_ && own.defined() ? sequence_->combine(own, {"forward", what}) : own;
}

void RankEngine::for_each_micro(const TokenBatch& batch, const BatchLayout& layout,
                                 const std::function<void(const PackedTokens& packed)>& body) {
  const std::vector<MicroBatch> micros = pack(layout, 0, layout.size(), options_.max_tokens);
  const int64_t count = static_cast<int64_t>(micros.size());
  const int64_t rounds = agree({count})[0];
  for (int64_t i = 0; i < rounds; ++i) {
    check_abort();
    if (i < count) {
      body(own_part(gather_rows(batch, layout, micros[static_cast<size_t>(i)])));
      transformer_.end_inference();
    } else {
      transformer_.idle_pass(false);
    }
  }
  sharding_.release_all();
}

at::Tensor RankEngine::compute_values(const TokenBatch& batch) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, 1);
  require_head(HeadKind::kValue, "compute_values");
  prepare();
  const BatchLayout layout = check_layout(batch, options_.model.vocab_size, options_.model.max_positions);
  const at::Tensor values = at::zeros({layout.num_response_tokens()});
  for_each_micro(batch, layout, [&](const PackedTokens& packed) {
    const int64_t count = packed.targets.size(0);
    const at::Tensor hidden = transformer_.forward(packed, nullptr, false);
    const at::Tensor rows = value_head_forward(hidden, transformer_.head_weight(), transformer_.head_bias());
    values.index_copy_(0, packed.response_index, rows.narrow(0, 0, count).cpu());
  });
  return combined(values, "values");
}

GenerateResult RankEngine::generate(const PromptBatch& prompts, const SamplingOptions& options) {
  at::NoGradGuard no_grad;
  const Beginning beginning(*this, 0);
  require_head(HeadKind::kLm, "generate");
  prepare();
  agree({});
  sharding_.acquire_all("generate");
  GenerateResult result = troupe::generate(transformer_, prompts, options, [this] { check_abort(); });
  sharding_.release_all();
  return result;
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
  sharding_.abort(reason);
  if (sequence_) sequence_->abort(reason);
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

void RankEngine::prepare() {
  if (prepared_) return;
  store_.initialize_missing();
  prepared_ = true;
}

}  // namespace troupe
