#include "core/local_engine.h"

#include "checkpoint/tensor_file.h"
#include "core/error.h"
#include "core/parallel.h"
#include "kernels/linear_log_prob.h"
#include "model/parameters.h"
#include "model/value_head.h"
#include "rollout/generator.h"

namespace troupe {

namespace {

at::Device parse_device(const std::string& name) {
  require(name == "cpu" || name == "cuda", ErrorCode::kInvalidArgument,
          "[engine] expected device cpu or cuda, got ", name);
  require(name == "cpu" || at::hasCUDA(), ErrorCode::kInvalidArgument,
          "[engine] device cuda was asked for, but this LibTorch sees no GPU; `troupe doctor` says why");
  return at::Device(name);
}

at::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  fail(ErrorCode::kInvalidArgument, "[engine] expected dtype float32 or bfloat16, got ", name);
}

const EngineOptions& checked(const EngineOptions& options) {
  validate(options.model);
  require(options.max_tokens > 0, ErrorCode::kInvalidArgument,
          "[engine] expected a micro-batch capacity (maxTokensPerMicroBatch) > 0, got ", options.max_tokens);
  if (options.num_threads > 0) at::set_num_threads(static_cast<int>(options.num_threads));
  return options;
}

}  // namespace

std::unique_ptr<Engine> create_engine(const EngineOptions& options) {
  return std::make_unique<LocalEngine>(options);
}

LocalEngine::LocalEngine(const EngineOptions& options)
    : options_(checked(options)),
      device_(parse_device(options.device)),
      store_(options.model, device_, parse_dtype(options.dtype), options.optim.has_value(), options.seed),
      transformer_(options.model, store_, device_, parse_dtype(options.dtype)) {}

std::vector<ParameterInfo> LocalEngine::parameters() const {
  std::vector<ParameterInfo> infos;
  for (const Parameter& parameter : store_.all()) infos.push_back(parameter.info);
  return infos;
}

void LocalEngine::import_tensors(TensorKind kind, const std::vector<TensorFile>& files) {
  at::NoGradGuard no_grad;
  for (const TensorFile& file : files) {
    check_abort();
    read_tensor_file(file, [&](const std::string& name) {
      if (kind == TensorKind::kParam) store_.mark_imported(name);
      return store_.tensor(kind, store_.at(name));
    });
  }
  if (kind == TensorKind::kParam && prepared_) store_.refresh_compute();
}

void LocalEngine::export_tensors(TensorKind kind, const std::vector<TensorFile>& files) const {
  at::NoGradGuard no_grad;
  const_cast<LocalEngine*>(this)->prepare();
  for (const TensorFile& file : files) {
    check_abort();
    write_tensor_file(file, [&](const std::string& name) { return store_.tensor(kind, store_.at(name)); });
  }
}

at::Tensor LocalEngine::get_tensor(TensorKind kind, const std::string& param) const {
  const_cast<LocalEngine*>(this)->prepare();
  return store_.tensor(kind, store_.at(param)).to(at::kCPU, at::kFloat).contiguous().clone();
}

LogProbResult LocalEngine::compute_log_prob(const TokenBatch& batch, double temperature, bool entropy,
                                            bool sum_pi_squared) {
  at::NoGradGuard no_grad;
  require_head(HeadKind::kLm, "compute_log_prob");
  check_temperature(temperature);
  prepare();
  const BatchLayout layout = check_layout(batch, options_.model.vocab_size, options_.model.max_positions);
  const auto result = [&](bool wanted) {
    return wanted ? at::zeros({layout.num_response_tokens()}) : at::Tensor();
  };
  const LogProbResult all{result(true), result(entropy), result(sum_pi_squared)};
  for (const MicroBatch& micro : pack(layout, 0, layout.size(), options_.max_tokens)) {
    check_abort();
    const PackedTokens packed = gather(batch, layout, micro, kRowTile);
    const int64_t count = packed.targets.size(0);
    const at::Tensor hidden = transformer_.forward(packed, nullptr, false);
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device_);
    const auto rows = [&](bool wanted) {
      return wanted ? at::empty({hidden.size(0)}, options) : at::Tensor();
    };
    const ops::LogProbRows out{rows(true), rows(true), rows(entropy), rows(sum_pi_squared)};
    ops::linear_log_prob_forward({temperature, options_.model.final_softcap}, hidden,
                                 transformer_.head_weight(),
                                 pad_rows(packed.targets, hidden.size(0)).to(device_), out);
    const auto scatter = [&](const at::Tensor& target, const at::Tensor& source) {
      if (target.defined()) target.index_copy_(0, packed.response_index, source.narrow(0, 0, count).cpu());
    };
    scatter(all.log_probs, out.log_probs);
    scatter(all.entropy, out.entropy);
    scatter(all.sum_pi_squared, out.sum_pi_squared);
  }
  return all;
}

at::Tensor LocalEngine::compute_values(const TokenBatch& batch) {
  at::NoGradGuard no_grad;
  require_head(HeadKind::kValue, "compute_values");
  prepare();
  const BatchLayout layout = check_layout(batch, options_.model.vocab_size, options_.model.max_positions);
  const at::Tensor values = at::zeros({layout.num_response_tokens()});
  for (const MicroBatch& micro : pack(layout, 0, layout.size(), options_.max_tokens)) {
    check_abort();
    const PackedTokens packed = gather(batch, layout, micro, kRowTile);
    const int64_t count = packed.targets.size(0);
    const at::Tensor hidden = transformer_.forward(packed, nullptr, false);
    const at::Tensor rows = value_head_forward(hidden, transformer_.head_weight(), transformer_.head_bias());
    values.index_copy_(0, packed.response_index, rows.narrow(0, 0, count).cpu());
  }
  return values;
}

GenerateResult LocalEngine::generate(const PromptBatch& prompts, const SamplingOptions& options) {
  at::NoGradGuard no_grad;
  require_head(HeadKind::kLm, "generate");
  prepare();
  return troupe::generate(transformer_, prompts, options, [this] { check_abort(); });
}

void LocalEngine::set_steps(int64_t optimizer_steps, int64_t schedule_steps) {
  optimizer_steps_ = optimizer_steps;
  schedule_steps_ = schedule_steps;
}

double LocalEngine::learning_rate() const {
  require(options_.optim.has_value(), ErrorCode::kInvalidArgument,
          "[engine] an inference-only engine (optim: null) has no learning rate");
  return troupe::learning_rate(*options_.optim, schedule_steps_);
}

void LocalEngine::abort(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(abort_mutex_);
  if (!aborted_) abort_reason_ = reason;
  aborted_ = true;
}

void LocalEngine::check_abort() const {
  if (!aborted_) return;
  const std::lock_guard<std::mutex> lock(abort_mutex_);
  fail(ErrorCode::kAborted, "[engine] aborted: ", abort_reason_);
}

void LocalEngine::require_head(HeadKind head, const char* verb) const {
  const char* expected = head == HeadKind::kLm ? "a causal LM" : "a value model";
  const char* actual = head == HeadKind::kLm ? "a value model" : "a causal LM";
  require(options_.model.head == head, ErrorCode::kInvalidArgument, "[engine] ", verb, " needs ", expected,
          ", and this engine holds ", actual);
}

void LocalEngine::check_temperature(double temperature) {
  require(temperature > 0 && std::isfinite(temperature), ErrorCode::kInvalidArgument,
          "[engine] expected a finite temperature > 0, got ", temperature);
}

void LocalEngine::prepare() {
  if (prepared_) return;
  store_.initialize_missing();
  prepared_ = true;
}

}  // namespace troupe
