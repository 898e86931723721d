#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model_config.h"

// The verbs of the core. Shapes: B sequences, L_i tokens each, of which the last R_i are the
// response; "token" arrays are [sum L], "response" arrays are [sum R], concatenated, never padded.
// Every tensor that crosses this interface is contiguous and on the CPU.
namespace troupe {

struct AdamWOptions {
  double lr = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double grad_clip = 1.0;             // global L2 norm
  std::string schedule = "constant";  // constant | cosine
  int64_t warmup_steps = 0;
  int64_t total_steps = -1;  // needed by cosine
  double min_lr_ratio = 0;
};

// A place for a low-rank adapter: rows [row, row + rows) of the weight `param` of a linear layer. Our weights
// hold several of Hugging Face's, so one may have several sites. The adapter's parameters are
// `<name>.lora_a` [r, in] and `<name>.lora_b` [rows, r].
struct AdapterSite {
  std::string name;  // layers.{i}. and what follows
  std::string param;
  int64_t row = 0;
  int64_t rows = 0;
};

// Low-rank adaptation (model/adapter.h). Only the adapters and the head of a value model are trained; all
// other parameters are frozen and have neither gradients nor moments.
struct LoraOptions {
  int64_t rank = 0;
  double scale = 1;  // alpha / rank
  std::vector<AdapterSite> sites;
};

class Communicator;

// Parts of an engine's state.
struct StateKinds {
  bool parameters = false;  // masters, and in bfloat16 the copy to compute with
  bool gradients = false;
  bool moments = false;
};

struct EngineOptions {
  ModelConfig model;
  std::string device = "cpu";     // cpu | cuda
  std::string dtype = "float32";  // compute dtype: float32 | bfloat16; masters are float32 always
  int64_t max_tokens = 0;         // packing capacity C, tokens per micro-batch
  bool gradient_checkpointing = false;
  std::optional<AdamWOptions> optim;  // none: inference only, no gradient or optimiser memory
  std::optional<LoraOptions> lora;    // none: every parameter is trained
  uint64_t seed = 0;                  // initial values of parameters no checkpoint provides
  int64_t num_threads = 0;            // 0: leave LibTorch's choice
  // How the model is spread over the ranks of a communicator: full_shard | shard_grad_op | no_shard
  // (fsdp/sharding.h). Nothing changes in a group of one.
  std::string sharding = "full_shard";
  int64_t shard_size = 0;  // ranks that share one copy of the state; 0: all
  // Neighbouring ranks that share the micro-batches of every verb but generate (ulysses/sequence_group.h):
  // they are called with the same data, and all of them return the result of the whole.
  int64_t ulysses = 1;
  // Gather the next group of parameters while one is at work.
  bool prefetch = false;
  // When the gradients of the ranks are summed: micro_batch | mini_batch (fsdp/sharding.h).
  std::string reduction = "micro_batch";
  StateKinds offload;  // what begins on the host: see Engine::offload
};

struct TokenBatch {
  at::Tensor tokens;       // [sum L] int32
  at::Tensor seq_offsets;  // [B+1] int32
  at::Tensor prompt_lens;  // [B] int32; R_i = L_i - prompt_lens_i
  int64_t size() const { return prompt_lens.defined() ? prompt_lens.size(0) : 0; }
};

struct LogProbResult {
  at::Tensor log_probs;       // [sum R] float32
  at::Tensor entropy;         // [sum R] float32, undefined unless asked for
  at::Tensor sum_pi_squared;  // [sum R] float32, undefined unless asked for
};

// How the per-token losses of a mini-batch become one number, always over *global* counts: the
// caller passes the counts of the whole mini-batch over all ranks, so that results depend neither
// on micro-batches nor on ranks (losses and gradients are summed).
struct MiniBatches {
  // Mini-batch m is sequences [offsets[m], offsets[m+1]) of the local batch.
  std::vector<int64_t> offsets;          // [M+1]
  std::vector<double> global_tokens;     // [M] sum of the response mask (loss mask)
  std::vector<double> global_sequences;  // [M] number of sequences
  int64_t epochs = 1;
};

struct PolicyLossOptions {
  std::string mode = "vanilla";
  double clip_ratio_low = 0.2;
  double clip_ratio_high = 0.2;
  double clip_ratio_c = 3.0;
  std::string aggregation = "token-mean";
  double scale_factor = 0;  // seq-mean-token-sum-norm divides by it; the caller resolves it
  double entropy_coeff = 0;
  bool use_kl_loss = false;
  double kl_loss_coef = 0.001;
  std::string kl_loss_type = "low_var_kl";
  std::map<std::string, double> extra;  // tau_pos, kl_cov_ratio, dro_beta, ...
};

// A loss that the caller computed at these log-probs, for the mode "linear".
struct GivenLoss {
  at::Tensor values;       // [sum R] float32: per-token loss
  at::Tensor by_log_prob;  // [sum R] float32: its derivative by the token's log-prob
  at::Tensor by_entropy;   // [sum R] float32: by the token's entropy, or undefined
};

struct PolicyBatch {
  TokenBatch tokens;
  at::Tensor response_mask;       // [sum R] uint8
  at::Tensor old_log_probs;       // [sum R] float32
  at::Tensor advantages;          // [sum R] float32
  at::Tensor ref_log_probs;       // [sum R] float32 or undefined
  at::Tensor rollout_is_weights;  // [sum R] float32 or undefined
  at::Tensor rollout_log_probs;   // [sum R] float32 or undefined
  GivenLoss given_loss;           // undefined but in the mode "linear"
  // [B] uint8, or undefined: all. 0: the caller knows that the loss of this sequence has no gradient, so that
  // its log-probs and entropies are computed for the metrics, and nothing is propagated backwards.
  at::Tensor has_gradient;
};

struct ValueBatch {
  TokenBatch tokens;
  at::Tensor response_mask;  // [sum R] uint8
  at::Tensor values;         // [sum R] float32
  at::Tensor returns;        // [sum R] float32
};

struct ValueLossOptions {
  double clip_range = 0.5;
  std::string aggregation = "token-mean";
  double scale_factor = 0;
};

// Supervised fine-tuning: the cross-entropy of the response tokens where the mask is 1.
struct SftBatch {
  TokenBatch tokens;
  at::Tensor loss_mask;  // [sum R] uint8
};

// Metric name (verl's, without the role prefix) -> value, one map per mini-batch in order.
using Metrics = std::map<std::string, double>;
using MetricsList = std::vector<Metrics>;

struct SamplingOptions {
  int64_t max_new_tokens = 0;
  double temperature = 1;  // 0 = greedy
  int64_t top_k = 0;       // 0 = off
  double top_p = 1;        // 1 = off
  std::vector<int64_t> stop_token_ids;
};

struct PromptBatch {
  at::Tensor tokens;            // [sum P] int32
  at::Tensor offsets;           // [B+1] int32
  int64_t n = 1;                // samples per prompt
  std::vector<uint64_t> seeds;  // [B*n], one random stream per sample, independent of the batch
};

struct GenerateResult {  // B*n samples, grouped by prompt
  at::Tensor tokens;     // [sum R] int32, the stop token included when one was sampled
  at::Tensor offsets;    // [B*n+1] int32
  at::Tensor log_probs;  // [sum R] float32: of the sampled token under the model at the sampling
                         // temperature, before top-k / top-p (temperature 0: of temperature 1)
};

struct ParameterInfo {
  std::string name;  // Troupe's own name, see model/parameters.h
  std::vector<int64_t> shape;
};

// kMerged, for export alone: parameters of the base model with what the adapters add to them,
// W + scale B A in float32.
enum class TensorKind { kParam, kGrad, kExpAvg, kExpAvgSq, kMerged };

// Rows [row, row + rows) of a parameter, as they lie in a file (a Hugging Face tensor may be one of
// several that Troupe holds fused, or transposed: GPT-2's Conv1D).
struct TensorSlice {
  std::string param;
  int64_t row = 0;
  int64_t rows = 0;        // of the parameter; for 1-D parameters elements
  bool transpose = false;  // the file holds the slice transposed
  std::string label;       // the name in the file, for messages
  int64_t offset = 0;      // absolute byte offset in the file
  std::string dtype;       // F32 | F16 | BF16 (safetensors names)
};

struct TensorFile {
  std::string path;
  std::string header;  // writing: the bytes before the first tensor (length prefix and JSON)
  int64_t size = 0;    // whole size in bytes
  std::vector<TensorSlice> tensors;
};

// Rows [first, first + count) of a Hugging Face tensor, which is rows [row, row + rows) of a parameter,
// transposed or not.
struct WeightChunk {
  std::string param;
  int64_t row = 0;
  int64_t rows = 0;
  bool transpose = false;
  std::string label;  // the tensor's name, for messages
  int64_t first = 0;
  int64_t count = 0;
};

// Weights on their way to or from another program: chunks one after the other, without gaps.
struct WeightBucket {
  std::string dtype;  // float32 | bfloat16
  std::vector<WeightChunk> chunks;
};

struct ExportedWeights {
  at::Tensor bytes;  // uint8, on rank 0; undefined on the others
  // Another number whenever the weights have changed: all buckets of an export must have the same.
  int64_t version = 0;
};

struct HeldBytes {
  int64_t parameters = 0;  // masters and, in bfloat16, the copy to compute with
  int64_t gradients = 0;
  int64_t moments = 0;
};

// Bytes that this rank holds for good, on its device and (offloaded) on the host.
struct StateBytes : HeldBytes {
  HeldBytes host;
};

// The engine of one rank. In a group of several, every rank makes the same calls in the same order, each
// with its own share of the data (perhaps none), except where a verb says otherwise: a call is a series of
// collectives.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::vector<ParameterInfo> parameters() const = 0;
  // Reads what this rank holds of every slice; a NaN or infinity in it is kNonFinite naming the tensor.
  virtual void import_tensors(TensorKind kind, const std::vector<TensorFile>& files) = 0;
  // Creates each file (fails if it exists), writes header and slices, fsyncs. Rank 0 writes; the other
  // ranks pass no files and take part in gathering what it does not hold. With adapters what is trained is
  // exported, and as kMerged the parameters that the model has without them.
  virtual void export_tensors(TensorKind kind, const std::vector<TensorFile>& files) const = 0;
  // One bucket of an export (kParam or kMerged). Every rank passes the same bucket and gathers one group at
  // a time; rank 0 gets the bytes. `version`: of the export's first bucket, none for that one;
  // kInvalidArgument when the weights have changed since. `more`: another bucket follows, which may begin in
  // the group that this one ends in; it is kept until then, or until another verb begins.
  virtual ExportedWeights export_weights(TensorKind kind, const WeightBucket& bucket,
                                         std::optional<int64_t> version, bool more) = 0;
  // Sets parameters from the bytes of a bucket, which rank 0 has and sends to the others. A NaN or infinity
  // is kNonFinite naming the tensor; nothing of the bucket has been stored then.
  virtual void import_weights(const WeightBucket& bucket, const at::Tensor& bytes) = 0;
  // A copy of one whole parameter (or its gradient, or a moment) as float32, for inspection and tests.
  virtual at::Tensor get_tensor(TensorKind kind, const std::string& param) const = 0;
  virtual StateBytes state_bytes() const = 0;
  // Bytes that this rank has sent in collectives: its group's, which engines share, and its own.
  virtual int64_t bytes_sent() const = 0;

  // Moves parts of the state to the host (pinned memory beside a CUDA device), or back to the device. What is
  // on the host comes to the device group by group, for the time of its use: every verb works, with the same
  // results. On a CPU device both are the same memory. kInvalidArgument for parts that the engine does not
  // have (gradients and moments without optim).
  virtual void offload(const StateKinds& kinds) = 0;
  virtual void onload(const StateKinds& kinds) = 0;

  // disable_adapters: of the base model, the reference policy of an engine with adapters.
  virtual LogProbResult compute_log_prob(const TokenBatch& batch, double temperature, bool entropy,
                                         bool sum_pi_squared, bool disable_adapters = false) = 0;
  virtual MetricsList update_policy(const PolicyBatch& batch, const MiniBatches& mini,
                                    const PolicyLossOptions& loss, double temperature) = 0;
  virtual at::Tensor compute_values(const TokenBatch& batch) = 0;  // [sum R] float32
  virtual MetricsList update_critic(const ValueBatch& batch, const MiniBatches& mini,
                                    const ValueLossOptions& loss) = 0;
  virtual MetricsList update_sft(const SftBatch& batch, const MiniBatches& mini) = 0;
  virtual GenerateResult generate(const PromptBatch& prompts, const SamplingOptions& options) = 0;

  // Optimiser steps taken (skipped ones not counted): AdamW's bias correction depends on it.
  virtual int64_t optimizer_steps() const = 0;
  // Update calls made: the position in the LR schedule, which moves once per call, as in verl.
  virtual int64_t schedule_steps() const = 0;
  virtual void set_steps(int64_t optimizer_steps, int64_t schedule_steps) = 0;
  // Learning rate of the next update call.
  virtual double learning_rate() const = 0;

  // Thread-safe, the only verb that may be called from another thread: ends the running call with
  // kAborted at its next micro-batch or decoding step, and every later one.
  virtual void abort(const std::string& reason) = 0;
};

// Throws kInvalidModel / kInvalidArgument. Parameters start from `seed`; import_tensors replaces them.
// comm: of the ranks that share the model; null is a group of one.
std::unique_ptr<Engine> create_engine(const EngineOptions& options,
                                      std::shared_ptr<Communicator> comm = nullptr);

}  // namespace troupe
