#include "tensor_training.h"

// Ranks that share the experts of a mixture have the numbers of one process.

using namespace troupe;
using namespace troupe::test;

namespace {

EngineOptions mixture(int64_t ep, int64_t tp = 1, HeadKind head = HeadKind::kLm) {
  EngineOptions options = tensor_options("qwen3_moe", head, tp, tp > 1);
  options.parallel.ep = ep;
  options.model.moe_layers.back() = true;
  options.model.moe->shared_intermediate_size = 21;
  return options;
}

Task updates(int64_t count) {
  Task task;
  task.updates = count;
  return task;
}

}  // namespace

TEST(ten_updates_equal_one_process) {
  for (const bool checkpointing : {false, true}) {
    EngineOptions options = mixture(2);
    options.gradient_checkpointing = checkpointing;
    options.max_tokens = checkpointing ? kAccumulating : kAtOnce;
    Task task = updates(10);
    task.policy.entropy_coeff = 0.01;
    compare(options, 2, task);
  }
  compare(mixture(2, 2), 2, updates(10));  // with tensor and sequence parallelism
  compare(mixture(2), 4, updates(10));     // two ranks have the same experts
  compare(mixture(4), 4, updates(5));      // one expert each
  compare(mixture(2, 1, HeadKind::kValue), 2, updates(5));
}

TEST(a_rank_without_sequences_computes_its_experts_for_the_others) {
  for (const bool checkpointing : {false, true}) {
    EngineOptions options = mixture(2);
    options.gradient_checkpointing = checkpointing;
    compare(options, std::vector<int64_t>(kLongSequences, 0), 2, updates(3));
    compare(options, std::vector<int64_t>{0, 0, 0, 0, 0, 1, 0, 0}, 4, updates(3));
  }
}

TEST(with_every_sharding) {
  for (const std::string sharding : {"shard_grad_op", "no_shard"}) {
    EngineOptions options = mixture(2);
    options.sharding = parse_sharding_strategy(sharding);
    compare(options, 4, updates(3));
  }
  EngineOptions options = mixture(2);
  options.prefetch = true;
  options.reduction = parse_reduction("mini_batch");
  options.offload = {true, true, true};
  compare(options, 4, updates(3));
  options = mixture(2);
  options.lora = attention_adapters(options.model);
  options.optim->lr = 1e-3;
  compare(options, 2, updates(3), {1e-5, 1e-4});
}

TEST(the_first_forward_of_an_update_has_the_bits_of_compute_log_prob) {
  check_first_forward(mixture(2), 1);
}

TEST(all_ranks_generate_the_same) {
  check_generation(mixture(2, 2), 4, [](const Engine&, const GenerateResult&) {});
}

// Of a mini-batch with one micro-batch of 128 rows on each of two ranks.
TEST(bytes_and_memory_are_those_of_the_formulas) {
  for (const bool checkpointing : {false, true}) {
    EngineOptions options = mixture(2);
    options.gradient_checkpointing = checkpointing;
    int64_t of_one = 0, held_by_one = 0;
    for (const bool shared : {false, true}) {
      EngineOptions own = options;
      if (!shared) own.parallel.ep = 1;
      own.sharding = parse_sharding_strategy("shard_grad_op");
      const TokenBatch tokens{at::arange(100, at::kInt).remainder(kVocabulary),
                              at::tensor({0, 100}, at::kInt), at::tensor({40}, at::kInt)};
      std::vector<int64_t> bytes(2), parameters(2);
      const ModelConfig& model = own.model;
      int64_t layers = 0;
      for (int64_t layer = 0; layer < model.num_layers; ++layer) layers += model.is_moe_layer(layer) ? 1 : 0;
      test::on_ranks(2, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
        const auto engine = create_engine(own, comm);
        const int64_t before = engine->bytes_sent();
        engine->update_policy(
            {tokens, at::ones({60}, at::kByte), at::full({60}, -3.9), at::ones({60}), {}, {}, {}},
            {{0, 1}, {120}, {2}, 1}, {}, 1);
        bytes[static_cast<size_t>(rank)] = engine->bytes_sent() - before;
        parameters[static_cast<size_t>(rank)] = engine->state_bytes().parameters;
      });
      if (!shared) {
        of_one = bytes[0];
        held_by_one = parameters[0];
        continue;
      }
      const int64_t T = 128, H = model.hidden_size, N = 2, b = 4;
      const int64_t of_expert = 3 * model.moe->intermediate_size * H,
                    all = layers * model.moe->num_experts * of_expert;
      const int64_t passes = checkpointing ? 7 : 5;
      // Rows there and back, numbers of rows, squares of a gradient norm of experts alone and of more groups;
      // and no experts among what is gathered and reduced.
      const int64_t groups = 2 + model.num_layers, more = layers * N;
      const int64_t expected = passes * layers * b * T * H * (N - 1) + 8 * (N - 1) +
                               8 * (N - 1) * (more + groups + more) - (4 + 4) * all * (N - 1) / N;
      CHECK_CLOSE(bytes[0] - of_one, expected, 0);
      // Half of the experts whole is as much as half of each.
      CHECK(parameters[0] == held_by_one && parameters[1] == held_by_one);
    }
  }
}

TEST(models_that_do_not_divide_are_refused_with_the_numbers) {
  const auto expect = [](const EngineOptions& options, int64_t size, const char* message) {
    // One that ended while others connect would look to them like a rank that died.
    std::vector<std::shared_ptr<Communicator>> kept(static_cast<size_t>(size));
    test::on_ranks(size, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
      kept[static_cast<size_t>(rank)] = comm;
      CHECK_THROWS(create_engine(options, comm), message);
    });
  };
  expect(mixture(3), 3, "expected ep to divide the 4 experts of the model, got ep 3");
  EngineOptions dense = tensor_options("qwen3", HeadKind::kLm, 1, false);
  dense.parallel.ep = 2;
  expect(dense, 2, "expected ep to divide the 0 experts of the model, got ep 2");
  expect(mixture(2), 3, "expected ep to divide dp x cp");
}

TEST_MAIN()
