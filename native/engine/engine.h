// The interface of the core: an engine's options, its verbs and their data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "batch/token_batch.h"
#include "checkpoint/tensor_slice.h"
#include "fsdp/sharding_options.h"
#include "losses/loss_options.h"
#include "megatron/parallel_dims.h"
#include "megatron/schedule.h"
#include "model/decoder_layout.h"
#include "model/model_config.h"
#include "model/stage_range.h"
#include "optim/muon.h"
#include "parameters/parameter_layout.h"
#include "parameters/state_kinds.h"
#include "rollout/request.h"

// The verbs of the core. Shapes: B sequences, L_i tokens each, of which the last R_i are the
// response; "token" arrays are [sum L], "response" arrays are [sum R], concatenated, never padded.
// Every tensor that crosses this interface is contiguous and on the CPU.
namespace troupe {

class Communicator;

// cpu | cuda; kInvalidArgument for other names, and for cuda where there is no GPU.
at::Device parse_device(const std::string& name);
// float32 | bfloat16; kInvalidArgument for other names.
at::ScalarType parse_dtype(const std::string& name);

struct EngineOptions {
  ModelConfig model;
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // to compute in: float32 or bfloat16
  // Of what is trained, and of its moments: float32, or bfloat16 where that is computed in, rounded
  // stochastically by every update. With adapters what is trained is float32.
  at::ScalarType master_dtype = at::kFloat;
  int64_t max_tokens = 0;  // packing capacity C, tokens per micro-batch
  bool gradient_checkpointing = false;
  // What is kept of recomputed blocks waits on the host, from their forward to their backward.
  bool activation_offload = false;
  std::optional<OptimizerOptions> optim;  // none: inference only, no masters, gradients or optimiser memory
  std::optional<LoraOptions> lora;        // none: every parameter is trained
  // Of a model that trains layers that predict further tokens (ModelConfig::prediction): every update does.
  PredictionOptions prediction;
  uint64_t seed = 0;        // initial values of parameters no checkpoint provides
  int64_t num_threads = 0;  // 0: leave LibTorch's choice
  // How the ranks of a communicator lie on axes, but for pp, which is pipeline.stages; dp_shard -1: data
  // parallelism takes the rest. Ranks of one tensor-parallel group (and of one along cp) are called with the
  // same data, and all of them return the result. Ranks that share experts (ep) have data of their own, but
  // for the rollout, which they do together.
  ParallelDims parallel;
  // Of a tensor-parallel group: what is computed row by row between matrices is computed on 1/tp of the rows.
  bool sequence_parallel = false;
  // How the model is sharded over the ranks of a communicator. Nothing changes in a group of one.
  ShardingStrategy sharding = ShardingStrategy::kFullShard;
  int64_t shard_size = 0;  // ranks of data parallelism that share one copy of the state; 0: all
  // Neighbouring ranks that share the micro-batches of every verb but the rollout (ulysses/sequence_group.h):
  // they are called with the same data, and all of them return the result of the whole. So do those of
  // parallel.cp, each with the rows of batch/row_parts.h.
  int64_t ulysses = 1;
  // Ranks along the pipeline, which takes world / stages apart; those of one pipeline are called with the
  // same data, and all of them return the result of the whole.
  PipelineOptions pipeline;
  PipelineOrder pipeline_order = PipelineOrder::k1F1B;  // of updates
  // Gather the next group of parameters while one is at work.
  bool prefetch = false;
  GradientReduction reduction = GradientReduction::kMicroBatch;
  at::ScalarType reduce_dtype = at::kFloat;  // of sharded gradients on their way: ShardingOptions
  // Sum the gradients of a block while the one before it computes its own (with kMicroBatch). None: where the
  // device has streams, so not on a CPU, whose cores the sum would take from it.
  std::optional<bool> overlap_reduction;
  StateKinds offload;  // what begins on the host: see Engine::offload
};

struct LogProbResult {
  at::Tensor log_probs;       // [sum R] float32
  at::Tensor entropy;         // [sum R] float32, undefined unless asked for
  at::Tensor sum_pi_squared;  // [sum R] float32, undefined unless asked for
  // [sum L * row_bytes] uint8 (batch/routed_experts.h), undefined unless asked for: what
  // TokenBatch::routed_experts takes; zeros at positions that are not computed
  at::Tensor routed_experts;
  // The likeliest tokens of each position, the likeliest first: [sum R, top_k] float32 and int32, undefined
  // unless asked for.
  at::Tensor top_log_probs, top_ids;
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

struct PolicyBatch {
  TokenBatch tokens;
  at::Tensor response_mask;       // [sum R] uint8
  at::Tensor old_log_probs;       // [sum R] float32
  at::Tensor advantages;          // [sum R] float32
  at::Tensor ref_log_probs;       // [sum R] float32 or undefined
  at::Tensor rollout_is_weights;  // [sum R] float32 or undefined
  GivenLoss given_loss;           // undefined but in the mode "linear"
  // With PolicyLossOptions::distillation: the teacher's log-probs of the tokens, [sum R, 1] float32, or those
  // of its likeliest ones, [sum R, top_k], with their ids, int32.
  at::Tensor teacher_log_probs, teacher_ids;
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

// Supervised fine-tuning: the cross-entropy of the response tokens where the mask is 1.
struct SftBatch {
  TokenBatch tokens;
  at::Tensor loss_mask;  // [sum R] uint8
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

// The engine of one rank. In a group of several, every rank makes the same calls in the same order, each
// with its own share of the data (perhaps none), except where a verb says otherwise: a call is a series of
// collectives.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::vector<ParameterInfo> parameters() const = 0;
  // Reads what this rank holds of every slice; a NaN or infinity in it is kNonFinite naming the tensor. Where
  // it fails when it has changed some of them, verbs that use weights or state are kInvalidModel until
  // tensors of this kind have been imported. Of no file: what import_weights() has brought is all of them.
  // kInvalidArgument for kMerged.
  virtual void import_tensors(TensorKind kind, const std::vector<TensorFile>& files) = 0;
  // Rank 0 creates each file (fails if it exists) and writes its header; every rank passes the same files and
  // writes what it holds of their slices. On an error of any rank rank 0 removes them; ranks without one of
  // their own return. With adapters what is trained is exported, and as kMerged the parameters that the model
  // has without them.
  virtual void export_tensors(TensorKind kind, const std::vector<TensorFile>& files) = 0;
  // One bucket of an export (kParam or kMerged). Every rank passes the same bucket and gathers one group at
  // a time; rank 0 gets the bytes. `version`: of the export's first bucket, none for that one;
  // kInvalidArgument when the weights have changed since. `more`: another bucket follows, which may begin in
  // the group that this one ends in; it is kept until then, or until another verb begins.
  virtual ExportedWeights export_weights(TensorKind kind, const WeightBucket& bucket,
                                         std::optional<int64_t> version, bool more) = 0;
  // Sets parameters from the bytes of a bucket, which rank 0 has and sends to the others. A NaN or infinity
  // is kNonFinite naming the tensor; nothing of the bucket has been stored then. Parameters that a load has
  // left half changed are taken as usable again when the import_tensors() of no file behind the last bucket
  // says that all have come.
  virtual void import_weights(const WeightBucket& bucket, const at::Tensor& bytes) = 0;
  // A copy of one whole parameter (or its gradient, or a moment) as float32, for inspection and tests.
  virtual at::Tensor get_tensor(TensorKind kind, const std::string& param) = 0;
  virtual StateBytes state_bytes() const = 0;
  // Bytes that this rank has sent in collectives: its group's, which engines share, and its own.
  virtual int64_t bytes_sent() const = 0;

  // Moves parts of the state to the host (pinned memory beside a CUDA device), or back to the device. What is
  // on the host comes to the device group by group, for the time of its use: every verb works, with the same
  // results. On a CPU device both are the same memory. kInvalidArgument for parts that the engine does not
  // have (gradients and moments without optim).
  virtual void offload(const StateKinds& kinds) = 0;
  virtual void onload(const StateKinds& kinds) = 0;

  // disable_adapters: of the base model, the reference policy of an engine with adapters. top_k: how many of
  // the likeliest tokens of each position are wanted.
  virtual LogProbResult compute_log_prob(const TokenBatch& batch, double temperature, bool entropy,
                                         bool sum_pi_squared, bool disable_adapters = false,
                                         bool record_experts = false, int64_t top_k = 0) = 0;
  virtual MetricsList update_policy(const PolicyBatch& batch, const MiniBatches& mini,
                                    const PolicyLossOptions& loss, double temperature) = 0;
  virtual at::Tensor compute_values(const TokenBatch& batch) = 0;  // [sum R] float32
  virtual MetricsList update_critic(const ValueBatch& batch, const MiniBatches& mini,
                                    const ValueLossOptions& loss) = 0;
  virtual MetricsList update_sft(const SftBatch& batch, const MiniBatches& mini,
                                 const SftLossOptions& loss) = 0;

  // A rollout on the weights of this engine: requests come and go between other verbs. Once per engine;
  // returns what its cache holds. Every rank at the same time; rollout_turn and park_rollout: every rank of
  // those that generate together.
  virtual RolloutStats open_rollout(const RolloutOptions& options) = 0;
  // Every rank at the same time: brings the weights into the form that steps need, where it stays until
  // another verb begins. `version`: of the weights, which tokens carry from now on. What is running goes on
  // with them.
  virtual void begin_rollout(int64_t version) = 0;
  // Takes what is submitted and aborted, then makes steps until the time is over or nothing is left to do. A
  // request that is refused is an output with an error.
  virtual RolloutTurn rollout_turn(RolloutCommands commands) = 0;
  // Gives back the form of the weights and, when nothing is running, the memory of keys and values. preempt:
  // what is running gives its part back, too, and is computed again later.
  virtual void park_rollout(bool preempt) = 0;

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
