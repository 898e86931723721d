#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "toy_training.h"

// A batch whose sequences lie on several ranks of a sequence group, and what is done with it.
namespace troupe::test {

// Sequences of a batch that are long enough to lie on several ranks: two prompts with three responses each
// and two prompts of their own. A micro-batch of 520 rows takes four of them, one of 260 two.
constexpr int64_t kLongSequences = 8;
constexpr int64_t kAccumulating = 260, kAtOnce = 520;

struct LongBatch {
  TokenBatch tokens;
  at::Tensor mask, a, b;  // [sum R]; some tokens do not count
  MiniBatches mini;       // two
};

inline int64_t prompt_of(int64_t i) {
  return i % 4 == 3 ? 11 : 40;
}
inline int64_t response_of(int64_t i) {
  return 60 + (i * 17) % 41;
}
// Rows of sequence i in a micro-batch that has all that share its prompt.
inline int64_t own_rows_of(int64_t i) {
  return response_of(i) - 1 + (i % 4 == 0 || i % 4 == 3 ? prompt_of(i) : 0);
}

// The sequences of data-parallel group `group`: owners[i] is the group of sequence i.
inline LongBatch long_batch(int64_t group, const std::vector<int64_t>& owners) {
  LongBatch batch;
  std::vector<at::Tensor> tokens{at::empty({0}, at::kInt)}, a{at::empty({0})}, b{at::empty({0})},
      mask{at::empty({0}, at::kByte)};
  std::vector<int32_t> offsets{0}, prompts;
  batch.mini.offsets = {0};
  batch.mini.global_tokens = {0, 0};
  batch.mini.global_sequences = {kLongSequences / 2.0, kLongSequences / 2.0};
  for (int64_t i = 0; i < kLongSequences; ++i) {
    const size_t m = i < kLongSequences / 2 ? 0 : 1;
    const int64_t prompt = prompt_of(i);  // the first three of a mini-batch share theirs
    const int64_t response = response_of(i);
    const at::Tensor step = at::arange(response, at::kFloat).add(static_cast<double>(i) * 1.7);
    const at::Tensor counts = at::arange(response).remainder(5 + i).ne(3).to(at::kByte);
    batch.mini.global_tokens[m] += counts.sum().item<double>();
    if (owners[static_cast<size_t>(i)] == group) {
      const int64_t which = i % 4 == 3 ? i : i / 4;
      tokens.push_back(at::arange(prompt, at::kInt).mul(5 + which).add(which).remainder(kVocabulary));
      tokens.push_back(at::arange(response, at::kInt).mul(7 + i).add(3 * i).remainder(kVocabulary));
      a.push_back(step.sin().mul(0.3).sub(3.9));
      b.push_back(step.mul(1.3).cos());
      mask.push_back(counts);
      offsets.push_back(offsets.back() + static_cast<int32_t>(prompt + response));
      prompts.push_back(static_cast<int32_t>(prompt));
    }
    if (i + 1 == kLongSequences / 2 || i + 1 == kLongSequences)
      batch.mini.offsets.push_back(static_cast<int64_t>(prompts.size()));
  }
  batch.tokens = {at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(prompts, at::kInt)};
  batch.mask = at::cat(mask);
  batch.a = at::cat(a);
  batch.b = at::cat(b);
  return batch;
}

inline EngineOptions long_options(const std::string& variant, HeadKind head) {
  EngineOptions options = options_of(variant, head);
  options.max_tokens = kAccumulating;
  ModelConfig& model = options.model;
  model.max_positions = 256;
  give_heads(model, 6, 2);
  if (!model.latent) model.head_dim = 4;
  for (std::vector<double>* turns : {&model.rope_inv_freq, &model.second_rope_inv_freq})
    if (!turns->empty()) turns->resize(model.rope_pairs ? 1 : 2);  // of glm4 a half turns
  if (variant == "qwen3") {
    model.qk_norm = true;
    model.sliding_windows = {0, 30};
  } else if (variant != "gemma3" && variant != "olmo3" && !model.second_heads) {
    model.attention_scale = 5;  // scores that differ without q/k norm, too
  }
  return options;
}

inline LoraOptions attention_adapters(const ModelConfig& model) {
  LoraOptions lora{4, 2, {}};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".attn.";
    const auto add = [&](const std::string& site, const std::string& matrix, int64_t row, int64_t rows) {
      lora.sites.push_back({prefix + site, prefix + matrix + ".weight", row, rows});
    };
    if (model.latent) {
      const LatentConfig& latent = *model.latent;
      if (latent.query_rank > 0) add("q_a.q", "q_a", 0, latent.query_rank);
      add("q.q", "q", 0, model.num_heads * (latent.still_dim + latent.rotary_dim));
      add("kv_a.kv", "kv_a", 0, latent.key_rank + latent.rotary_dim);
      add("kv_b.kv", "kv_b", 0, model.num_heads * (latent.still_dim + latent.value_dim));
    } else {
      add("qkv.q", "qkv", 0, model.q_size());
      add("qkv.v", "qkv", model.q_size() + model.kv_size(), model.kv_size());
    }
    add("out.o", "out", 0, model.hidden_size);
  }
  return lora;
}

// What is done with a batch, besides what the engine is.
struct Task {
  int64_t updates = 10;
  int64_t epochs = 1;
  bool supervised = false;
  PolicyLossOptions policy = {};
  Aggregation value_aggregation = Aggregation::kTokenMean;
  double router_z_loss_coef = 0;  // of whichever loss
};

struct Outcome {
  LogProbResult before;          // log-probs or (as log_probs) values before any update
  std::vector<Metrics> metrics;  // of every step
  std::vector<at::Tensor> weights, gradients;
  int64_t bytes_sent = 0;  // by the updates
};

inline Outcome work(Engine& engine, HeadKind head, const LongBatch& batch, const Task& task) {
  Outcome outcome;
  if (head == HeadKind::kLm) {
    outcome.before = engine.compute_log_prob(batch.tokens, 0.9, true, true);
  } else {
    outcome.before.log_probs = engine.compute_values(batch.tokens);
  }
  MiniBatches mini = batch.mini;
  mini.epochs = task.epochs;
  const int64_t sent = engine.bytes_sent();
  for (int64_t update = 0; update < task.updates; ++update) {
    MetricsList metrics;
    if (task.supervised) {
      metrics = engine.update_sft({batch.tokens, batch.mask}, mini, {task.router_z_loss_coef});
    } else if (head == HeadKind::kLm) {
      PolicyLossOptions loss = task.policy;
      loss.router_z_loss_coef = task.router_z_loss_coef;
      metrics =
          engine.update_policy({batch.tokens, batch.mask, batch.a, batch.b, {}, {}, {}}, mini, loss, 0.9);
    } else {
      ValueLossOptions loss;
      loss.clip_range = 100;  // no prediction is so far from the old value that it has no gradient
      loss.aggregation = task.value_aggregation;
      loss.router_z_loss_coef = task.router_z_loss_coef;
      metrics = engine.update_critic({batch.tokens, batch.mask, batch.a, batch.b}, mini, loss);
    }
    outcome.metrics.insert(outcome.metrics.end(), metrics.begin(), metrics.end());
  }
  outcome.bytes_sent = engine.bytes_sent() - sent;
  for (const ParameterInfo& info : engine.parameters()) {
    outcome.weights.push_back(engine.get_tensor(TensorKind::kParam, info.name));
    const bool adapter = info.name.find("lora") != std::string::npos;
    if (adapter || (head == HeadKind::kValue && info.name == "head.weight"))
      outcome.gradients.push_back(engine.get_tensor(TensorKind::kGrad, info.name));
  }
  return outcome;
}

// body(rank, communicator) in a thread per rank.
template <typename Body>
void on_ranks(int64_t size, Body&& body) {
  const auto rendezvous = Rendezvous::open();
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, make_communicator({"gloo", rank, size, "127.0.0.1", rendezvous->port(), "secret",
                                      std::chrono::milliseconds(60'000)}));
      } catch (const std::exception& error) {
        test::report(false, __FILE__, __LINE__, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Ranks that are called with the same data, and which of them `rank` of `size` belongs to.
inline int64_t ranks_per_group(const EngineOptions& options) {
  return options.ulysses * options.parallel.cp * options.parallel.tp * options.pipeline.stages;
}
inline int64_t group_of(const EngineOptions& options, int64_t rank, int64_t size) {
  const int64_t stages = options.pipeline.stages;
  return rank % (size / stages) / (ranks_per_group(options) / stages);
}

inline std::vector<Outcome> work_together(const EngineOptions& options, int64_t size,
                                          const std::vector<int64_t>& owners, const Task& task) {
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  on_ranks(size, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(options, comm);
    outcomes[static_cast<size_t>(rank)] =
        work(*engine, options.model.head, long_batch(group_of(options, rank, size), owners), task);
  });
  return outcomes;
}

inline std::vector<int64_t> round_robin(int64_t groups) {
  std::vector<int64_t> owners;
  for (int64_t i = 0; i < kLongSequences; ++i) owners.push_back(i % groups);
  return owners;
}

}  // namespace troupe::test
