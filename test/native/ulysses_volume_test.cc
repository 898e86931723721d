#include <numeric>
#include <random>

#include "base/error.h"
#include "base/parallel.h"
#include "engine/simulation.h"
#include "long_training.h"

// What ranks that share micro-batches send each other, and what happens when one of them does not.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kFloat = 4;

// What the all-to-alls of a micro-batch of `rows` rows send, in bytes of one rank.
int64_t exchanged(const EngineOptions& options, int64_t rows, bool training) {
  const ModelConfig& model = options.model;
  const int64_t ranks = options.ulysses;
  const int64_t padded = round_up(rows, ranks * kRowTile);
  const int64_t kv_heads = std::lcm(model.num_kv_heads, ranks);
  const int64_t columns = (2 * model.num_heads + 2 * kv_heads) * model.head_dim;  // qkv, and the output
  const int64_t passes = training ? (options.gradient_checkpointing ? 3 : 2) : 1;
  return passes * model.num_layers * padded / ranks * columns * kFloat / ranks * (ranks - 1);
}

// An all-reduce: up to 4096 elements everything goes to everybody.
int64_t reduced(int64_t elements, int64_t ranks) {
  const int64_t share = round_up(elements, ranks) / ranks;
  return kFloat * (ranks - 1) * (elements <= 4096 ? elements : 2 * share);
}

}  // namespace

TEST(bytes_sent_are_the_theoretical_volume) {
  for (const bool checkpointing : {false, true}) {
    for (const int64_t size : {2, 3}) {
      EngineOptions options = long_options("qwen3", HeadKind::kLm);
      options.max_tokens = kAtOnce;
      options.sharding = parse_sharding_strategy("no_shard");
      options.gradient_checkpointing = checkpointing;
      Task task;
      task.updates = 1;
      const std::vector<int64_t> owners = round_robin(1);
      // Without sequence groups the same ranks send this: gradients, counts, norms.
      const std::vector<Outcome> without = work_together(options, size, owners, task);
      options.ulysses = size;
      const std::vector<Outcome> with = work_together(options, size, owners, task);
      int64_t bytes = 0;
      const LongBatch batch = long_batch(0, owners);
      for (int64_t m = 0; m < 2; ++m) {
        int64_t rows = 0, responses = 0;
        for (int64_t i = 4 * m; i < 4 * m + 4; ++i) {
          rows += own_rows_of(i);
          responses += response_of(i);
        }
        bytes += exchanged(options, rows, true) + 2 * reduced(responses, size);  // log-probs, entropy
      }
      for (const Outcome& outcome : with) CHECK(outcome.bytes_sent == without[0].bytes_sent + bytes);
    }
  }
}

TEST(what_is_simulated_is_what_ranks_send) {
  for (const std::string variant : {"qwen3", "mamba2", "lfm2"}) {
    for (const auto& [head, sharding] :
         {std::pair{HeadKind::kLm, "full_shard"}, {HeadKind::kValue, "no_shard"}}) {
      EngineOptions options = long_options(variant, head);
      options.max_tokens = 2 * kAtOnce;
      options.model.num_kv_heads = 1;
      options.model.max_positions = 4096;  // the simulation has one sequence of as many rows
      options.sharding = parse_sharding_strategy(sharding);
      options.gradient_checkpointing = head == HeadKind::kLm;
      options.ulysses = 2;
      on_ranks(4, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
        const auto engine = create_engine(options, comm);
        // All sequences in one mini-batch; the other group has as many rows.
        LongBatch batch = long_batch(0, std::vector<int64_t>(kLongSequences, 0));
        batch.mini.offsets = {0, kLongSequences};
        batch.mini.global_tokens = {2 * batch.mask.sum().item<double>()};
        batch.mini.global_sequences = {2.0 * kLongSequences};
        Task task;
        task.updates = 1;
        const Outcome outcome = work(*engine, head, batch, task);
        int64_t rows = 0;
        for (int64_t i = 0; i < kLongSequences; ++i) rows += own_rows_of(i);
        const Simulation simulation =
            simulate_update(options, rank, 4, {1, rows + 1, batch.a.numel()}, false);
        int64_t bytes = 0, exchanges = 0;
        for (const SimulatedCollective& c : simulation.collectives) {
          bytes += c.bytes;
          if (c.name == "all_to_all" && c.subject == "layers.0 attention") exchanges += c.count;
        }
        CHECK(outcome.bytes_sent == bytes);
        CHECK(exchanges == (options.gradient_checkpointing ? 6 : 4));
      });
    }
  }
}

namespace {

// Before every collective something happens: a pause of random length, or, at the one that is named, the end
// of this rank (Dead is thrown; its connections close as those of a process that ends).
struct Dead {};
struct Disturbance {
  bool delays = false;
  std::string fatal;  // part of a description in the log

  void meet(const CollectiveLog& log, std::mt19937& random) const {
    if (delays)
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::uniform_int_distribution<>(0, 2000)(random)));
    if (!fatal.empty() && log.describe(log.begun()).find(fatal) != std::string::npos) throw Dead{};
  }
};

class Disturbed final : public Communicator {
 public:
  Disturbed(std::unique_ptr<Communicator> inner, Disturbance disturbance, unsigned seed)
      : Communicator(inner->rank(), inner->size()),
        inner_(std::move(inner)),
        disturbance_(std::move(disturbance)),
        seed_(seed),
        random_(seed) {}

  std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) override {
    return std::make_unique<Disturbed>(inner_->split(name, ranks), disturbance_, seed_ + 100);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 protected:
  std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    disturbance_.meet(log(), random_);
    Pending pending = inner_->all_gather_async(output, input, {});
    return [pending]() mutable { pending.wait(); };
  }
  std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    disturbance_.meet(log(), random_);
    Pending pending = inner_->all_to_all_async(output, input, {});
    return [pending]() mutable { pending.wait(); };
  }
  void move_broadcast(const at::Tensor& tensor, int64_t root) override {
    disturbance_.meet(log(), random_);
    inner_->broadcast(tensor, root, {});
  }
  void move_send(const at::Tensor&, const at::Tensor& tensor, int64_t dst) override {
    disturbance_.meet(log(), random_);
    inner_->send(tensor, dst, {});
  }
  void move_recv(const at::Tensor&, const at::Tensor& tensor, int64_t src) override {
    disturbance_.meet(log(), random_);
    inner_->recv(tensor, src, {});
  }

 private:
  std::unique_ptr<Communicator> inner_;
  Disturbance disturbance_;
  unsigned seed_;
  std::mt19937 random_;
};

}  // namespace

TEST(delays_before_collectives_gathers_ahead_and_state_on_the_host_change_nothing) {
  EngineOptions options = long_options("qwen3", HeadKind::kLm);
  options.ulysses = 2;
  Task task;
  task.updates = 2;
  const std::vector<int64_t> owners = round_robin(2);
  const std::vector<Outcome> prompt = work_together(options, 4, owners, task);
  std::vector<Outcome> late(4);
  options.prefetch = true;
  options.offload = {true, true, true};
  on_ranks(4, [&](int64_t rank, std::unique_ptr<Communicator> direct) {
    const auto engine = create_engine(
        options,
        std::make_shared<Disturbed>(std::move(direct), Disturbance{true, ""}, static_cast<unsigned>(rank)));
    late[static_cast<size_t>(rank)] = work(*engine, HeadKind::kLm, long_batch(rank / 2, owners), task);
  });
  for (size_t rank = 0; rank < 4; ++rank) {
    CHECK(late[rank].before.log_probs.equal(prompt[rank].before.log_probs));
    CHECK(late[rank].metrics == prompt[rank].metrics);
    for (size_t i = 0; i < prompt[rank].weights.size(); ++i)
      CHECK(late[rank].weights[i].equal(prompt[rank].weights[i]));
  }
}

TEST(a_rank_that_is_lost_while_attention_exchanges_is_named) {
  for (const std::string phase : {"forward", "backward"}) {
    EngineOptions options = long_options("qwen3", HeadKind::kLm);
    options.ulysses = 2;
    options.sharding = parse_sharding_strategy("no_shard");
    options.gradient_checkpointing = phase == "backward";
    std::vector<std::string> errors(4);
    on_ranks(4, [&](int64_t rank, std::unique_ptr<Communicator> direct) {
      try {
        std::shared_ptr<Communicator> comm;
        if (rank == 3) {
          const Disturbance end{false, "layers.1 attention (" + phase + ")"};
          comm = std::make_shared<Disturbed>(std::move(direct), end, unsigned{0});
        } else {
          comm = std::move(direct);
        }
        const auto engine = create_engine(options, comm);
        work(*engine, HeadKind::kLm, long_batch(rank / 2, round_robin(2)), {});
      } catch (const Dead&) {
        errors[static_cast<size_t>(rank)] = "dead";
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
    CHECK(errors[3] == "dead");
    // Its neighbour is in the same collective; the other group waits for both at the end of the mini-batch.
    CHECK(errors[2].find("[comm] rank 2: all_to_all #") == 0);
    CHECK(errors[2].find(" of layers.1 attention (" + phase + ")") != std::string::npos);
    CHECK(errors[2].find("No sign of rank 3: dead, stopped, or busy") != std::string::npos);
    for (const size_t rank : {size_t{0}, size_t{1}}) CHECK(errors[rank].find("[comm] rank ") == 0);
  }
}

TEST(sizes_that_make_no_sense_are_refused) {
  const auto message = [](int64_t size, int64_t ulysses, int64_t heads) {
    EngineOptions options = long_options("qwen3", HeadKind::kLm);
    options.model.num_heads = heads;
    options.ulysses = ulysses;
    std::vector<std::string> errors(static_cast<size_t>(size), "(nothing thrown)");
    on_ranks(size, [&](int64_t rank, std::shared_ptr<Communicator> comm) {
      comm->barrier({"test", "joined"});  // or else one is gone before another has come
      try {
        create_engine(options, comm);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
    for (const std::string& error : errors) CHECK(error == errors[0]);
    return errors[0];
  };
  CHECK(message(2, 3, 6) == "[ulysses] expected a number of ranks per sequence that divides 2 ranks, got 3");
  CHECK(message(1, 2, 6) == "[ulysses] expected a number of ranks per sequence that divides 1 rank, got 2");
  CHECK(message(4, 4, 6) ==
        "[ulysses] expected a number of ranks per sequence that divides the 6 attention heads of the model, "
        "got 4");
  CHECK(message(2, 0, 6) == "[engine] expected a number of ranks per sequence (ulysses) >= 1, got 0");
}

TEST_MAIN()
