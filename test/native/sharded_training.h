#pragma once

#include <ATen/ATen.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "toy_training.h"

// The small models of toy_training.h, trained by ranks that are threads of this process.
namespace troupe::test {

// Where and how a model is spread: `shard_size` ranks share a copy, 0: all.
struct Spread {
  int64_t size = 1;
  std::string sharding = "full_shard";
  int64_t shard_size = 0;
  bool delays = false;     // before every collective, of random length, another one on each rank
  bool gradients = false;  // part of the outcome

  int64_t parts() const { return sharding == "no_shard" ? 1 : shard_size == 0 ? size : shard_size; }
};

// A communicator that is late for every collective.
class Delayed final : public Communicator {
 public:
  Delayed(std::unique_ptr<Communicator> inner, unsigned seed)
      : Communicator(inner->rank(), inner->size()), inner_(std::move(inner)), seed_(seed), random_(seed) {}

  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) override {
    return std::make_unique<Delayed>(inner_->split(name, ranks), seed_ + 100);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    wait();
    Pending pending = inner_->all_gather_async(output, input, {});
    return [pending]() mutable { pending.wait(); };
  }
  std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    wait();
    Pending pending = inner_->all_to_all_async(output, input, {});
    return [pending]() mutable { pending.wait(); };
  }
  void move_broadcast(const at::Tensor& tensor, int64_t root) override {
    wait();
    inner_->broadcast(tensor, root, {});
  }
  void move_send(const at::Tensor&, const at::Tensor& tensor, int64_t dst) override {
    wait();
    inner_->send(tensor, dst, {});
  }
  void move_recv(const at::Tensor&, const at::Tensor& tensor, int64_t src) override {
    wait();
    inner_->recv(tensor, src, {});
  }

 private:
  void wait() {
    std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<>(0, 3000)(random_)));
  }

  std::unique_ptr<Communicator> inner_;
  unsigned seed_;
  std::mt19937 random_;
};

struct Outcome {
  at::Tensor before;               // log-probs or values of this rank's sequences before any update
  std::vector<double> grad_norms;  // of every step
  at::Tensor weights;              // all of them, flat
  at::Tensor gradients;            // of the last mini-batch, where asked for
  double loss = 0;                 // this rank's part of the last mini-batch's
  StateBytes bytes;
  int64_t bytes_sent = 0;  // by the updates
};

inline Outcome train(Engine& engine, HeadKind head, const Share& share, int64_t updates,
                     bool gradients = false) {
  Outcome outcome;
  outcome.before = head == HeadKind::kLm ? engine.compute_log_prob(share.tokens, 1, false, false).log_probs
                                         : engine.compute_values(share.tokens);
  const int64_t bytes_sent = engine.bytes_sent();
  for (int64_t update = 0; update < updates; ++update) {
    MetricsList metrics;
    if (head == HeadKind::kLm) {
      PolicyLossOptions loss;
      loss.entropy_coeff = 0.01;
      metrics =
          engine.update_policy({share.tokens, share.mask, share.a, share.b, {}, {}, {}}, share.mini, loss, 1);
    } else {
      ValueLossOptions loss;
      loss.clip_range = 100;  // no prediction is so far from the old value that it has no gradient
      metrics = engine.update_critic({share.tokens, share.mask, share.a, share.b}, share.mini, loss);
    }
    for (const Metrics& step : metrics) outcome.grad_norms.push_back(step.at("grad_norm"));
    const auto loss = metrics.back().find("loss");
    outcome.loss = loss == metrics.back().end() ? 0 : loss->second;
  }
  outcome.bytes_sent = engine.bytes_sent() - bytes_sent;
  const auto all = [&](TensorKind kind) {
    std::vector<at::Tensor> tensors;
    for (const ParameterInfo& info : engine.parameters())
      tensors.push_back(engine.get_tensor(kind, info.name).view({-1}));
    return at::cat(tensors);
  };
  outcome.weights = all(TensorKind::kParam);
  if (gradients) outcome.gradients = all(TensorKind::kGrad);
  outcome.bytes = engine.state_bytes();
  return outcome;
}

// By ranks that have the share that `share` says.
inline std::vector<Outcome> train_shares(EngineOptions options,
                                         const std::function<Share(int64_t rank)>& share,
                                         const Spread& spread, int64_t updates) {
  const int64_t size = spread.size;
  options.sharding = parse_sharding_strategy(spread.sharding);
  options.shard_size = spread.shard_size;
  const auto rendezvous = Rendezvous::open();
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto direct = make_communicator({"gloo", rank, size, "127.0.0.1", rendezvous->port(), "secret",
                                         std::chrono::milliseconds(60'000)});
        std::shared_ptr<Communicator> comm;
        if (spread.delays) {
          comm = std::make_shared<Delayed>(std::move(direct), static_cast<unsigned>(rank));
        } else {
          comm = std::move(direct);
        }
        const auto engine = create_engine(options, comm);
        outcomes[static_cast<size_t>(rank)] =
            train(*engine, options.model.head, share(rank), updates, spread.gradients);
      } catch (const std::exception& error) {
        test::report(false, __FILE__, __LINE__, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline std::vector<Outcome> train_sharded(const EngineOptions& options, const std::vector<int64_t>& owners,
                                          const Spread& spread, int64_t updates) {
  return train_shares(
      options, [&](int64_t rank) { return share_of(rank, owners); }, spread, updates);
}

inline double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

inline std::vector<int64_t> round_robin(int64_t size) {
  std::vector<int64_t> owners;
  for (int64_t i = 0; i < kSequences; ++i) owners.push_back(i % size);
  return owners;
}

}  // namespace troupe::test
