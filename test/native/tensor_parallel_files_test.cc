#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>

#include "tensor_training.h"

// Checkpoints across layouts, weights in buckets and generation of engines whose matrices ranks share.

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr int64_t kFloat = 4;

std::string scratch(const std::string& name) {
  return "/tmp/troupe_tensor_parallel_" + std::to_string(::getpid()) + "_" + name;
}

// Removed at the end of a test.
struct Files {
  std::vector<std::string> paths;
  ~Files() {
    for (const std::string& path : paths) ::unlink(path.c_str());
  }
};

// All parameters in one file: matrices in two parts of rows, the second transposed. Buffers have no moments.
TensorFile file_of(const std::vector<ParameterInfo>& parameters, const std::string& path,
                   TensorKind kind = TensorKind::kParam) {
  TensorFile file{path, "head", 4, {}};
  for (const ParameterInfo& info : parameters) {
    if (kind != TensorKind::kParam && info.name.ends_with("correction_bias")) continue;
    const int64_t width = info.shape.size() == 1 ? 1 : info.shape[1];
    const int64_t first = info.shape.size() == 1 ? info.shape[0] : (info.shape[0] + 2) / 3;
    for (const auto& [row, rows] : {std::pair<int64_t, int64_t>{0, first}, {first, info.shape[0] - first}}) {
      if (rows == 0) continue;
      file.tensors.push_back({info.name, row, rows, row > 0, info.name, file.size, "F32"});
      file.size += rows * width * kFloat;
    }
  }
  return file;
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

constexpr std::array kKinds = {TensorKind::kParam, TensorKind::kExpAvg, TensorKind::kExpAvgSq};

struct Saved {
  std::vector<std::string> paths;  // by kind
  double next_loss = 0;            // of the update after it
  double next_norm = 0;
};

// Reads `from` where there is one, updates, saves under `name`, updates once more.
Saved life(const EngineOptions& options, int64_t size, const Saved* from, const std::string& name,
           Files& files) {
  Saved saved;
  for (size_t kind = 0; kind < kKinds.size(); ++kind)
    saved.paths.push_back(scratch(name + std::to_string(kind)));
  files.paths.insert(files.paths.end(), saved.paths.begin(), saved.paths.end());
  const int64_t groups = size / options.parallel.tp;
  std::vector<double> losses(static_cast<size_t>(size));
  const auto body = [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(options, comm);
    const LongBatch batch = long_batch(rank / options.parallel.tp, round_robin(groups));
    const auto update = [&] {
      return engine->update_policy({batch.tokens, batch.mask, batch.a, batch.b, {}, {}, {}}, batch.mini, {},
                                   1);
    };
    for (size_t kind = 0; from != nullptr && kind < kKinds.size(); ++kind) {
      engine->import_tensors(kKinds[kind], {file_of(engine->parameters(), from->paths[kind], kKinds[kind])});
    }
    if (from != nullptr) engine->set_steps(2, 1);
    if (from == nullptr) update();
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      engine->export_tensors(kKinds[kind], {file_of(engine->parameters(), saved.paths[kind], kKinds[kind])});
    }
    const Metrics metrics = update().front();
    losses[static_cast<size_t>(rank)] = metrics.count("loss") > 0 ? metrics.at("loss") : 0;
    if (rank == 0) saved.next_norm = metrics.at("grad_norm");
  };
  if (size == 1) {
    body(0, nullptr);
  } else {
    test::on_ranks(size, body);
  }
  for (int64_t group = 0; group < groups; ++group) {
    saved.next_loss += losses[static_cast<size_t>(group * options.parallel.tp)];
  }
  return saved;
}

// Saved on one layout, read on the other: the same bytes again, and the same next update.
void check_moves(const EngineOptions& from, int64_t from_size, const EngineOptions& to, int64_t to_size,
                 const std::string& name) {
  Files files;
  const Saved first = life(from, from_size, nullptr, name + "_first", files);
  const Saved second = life(to, to_size, &first, name + "_second", files);
  for (size_t kind = 0; kind < kKinds.size(); ++kind) {
    CHECK(bytes_of(first.paths[kind]).size() > 4);
    CHECK(bytes_of(first.paths[kind]) == bytes_of(second.paths[kind]));
  }
  CHECK_CLOSE(second.next_loss, first.next_loss, 1e-6);
  CHECK_CLOSE(second.next_norm / first.next_norm, 1, 1e-5);
}

}  // namespace

TEST(a_checkpoint_moves_between_layouts) {
  for (const std::string variant : {"qwen3_moe", "gpt2", "olmo3", "glm4"}) {
    const EngineOptions tp2 = tensor_options(variant, HeadKind::kLm, 2, true);
    const EngineOptions tp4 = tensor_options(variant, HeadKind::kLm, 4, false);
    EngineOptions fsdp = alone(tp2);
    check_moves(tp2, 2, alone(tp2), 1, variant + "_alone");
    check_moves(alone(tp4), 1, tp4, 4, variant + "_tp4");
    check_moves(tp2, 4, fsdp, 2, variant + "_fsdp");
    check_moves(fsdp, 2, tp2, 4, variant + "_back");
  }
}

TEST(a_checkpoint_moves_to_ranks_that_share_experts_and_back) {
  for (const std::string variant : {"qwen3_moe", "glm4_moe", "deepseek_v3", "gpt_oss"}) {
    EngineOptions tp2 = tensor_options(variant, HeadKind::kLm, 2, true), ep2 = alone(tp2), both = tp2;
    ep2.parallel.ep = 2;
    both.parallel.ep = 2;
    check_moves(tp2, 2, ep2, 2, variant + "_experts");
    check_moves(ep2, 4, alone(tp2), 1, variant + "_experts_back");
    check_moves(alone(tp2), 2, both, 4, variant + "_experts_tp2");
  }
}

TEST(parameters_and_adapters_start_from_the_same_values) {
  for (const bool lora : {false, true}) {
    EngineOptions options = tensor_options("qwen3", HeadKind::kLm, 4, true);
    if (lora) options.lora = attention_adapters(options.model);
    const auto whole = create_engine(alone(options));
    // An engine serves one thread, so all that the ranks compare with is read before they start.
    std::vector<std::pair<std::string, at::Tensor>> expected;
    for (const ParameterInfo& info : whole->parameters())
      expected.emplace_back(info.name, whole->get_tensor(TensorKind::kParam, info.name));
    test::on_ranks(4, [&](int64_t, const std::shared_ptr<Communicator>& comm) {
      const auto engine = create_engine(options, comm);
      for (const auto& [name, values] : expected)
        CHECK(engine->get_tensor(TensorKind::kParam, name).equal(values));
    });
  }
}

TEST(weights_in_buckets_are_those_of_one_process) {
  EngineOptions options = tensor_options("qwen3", HeadKind::kLm, 2, true);
  options.lora = attention_adapters(options.model);
  // q rows, then v rows that lie on both ranks, then columns of a row-parallel matrix, transposed.
  const WeightBucket bucket{"bfloat16",
                            {{"layers.0.attn.qkv.weight", 0, 32, false, "q", 5, 20},
                             {"layers.0.attn.qkv.weight", 40, 8, false, "v", 0, 8},
                             {"layers.1.attn.out.weight", 3, 9, true, "out", 2, 30},
                             {"embed.weight", 0, 50, false, "embed", 20, 20}}};
  const auto whole = create_engine(alone(options));
  const auto exported = [&](Engine& engine, TensorKind kind) {
    return engine.export_weights(kind, bucket, std::nullopt, false).bytes;
  };
  const at::Tensor expected = exported(*whole, TensorKind::kMerged);
  test::on_ranks(4, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(options, comm);
    const at::Tensor own = exported(*engine, TensorKind::kMerged);
    CHECK(own.defined() == (rank == 0));
    if (own.defined()) CHECK(own.equal(expected));
  });
  EngineOptions other = options;
  other.lora.reset();
  other.seed = 77;
  test::on_ranks(2, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(other, comm);
    engine->import_weights(bucket, rank == 0 ? expected : at::Tensor());
    const at::Tensor own = exported(*engine, TensorKind::kParam);
    if (own.defined()) CHECK(own.equal(expected));
  });
}

TEST(buckets_of_experts_that_other_ranks_have) {
  EngineOptions options = tensor_options("qwen3_moe", HeadKind::kLm, 2, true);
  options.parallel.ep = 2;
  std::string layer;
  for (int64_t i = 0; i < options.model.num_layers; ++i) {
    if (options.model.is_moe_layer(i)) layer = "layers." + std::to_string(i) + ".moe.experts.";
  }
  const WeightBucket bucket{"float32",
                            {{layer + "0.in.weight", 0, 4, false, "first", 0, 4},
                             {layer + "3.in.weight", 0, 36, false, "in", 5, 20},
                             {layer + "3.out.weight", 3, 9, true, "out", 2, 10}}};
  const at::Tensor expected =
      create_engine(alone(options))->export_weights(TensorKind::kParam, bucket, std::nullopt, false).bytes;
  options.pipeline.stages = 2;
  test::on_ranks(8, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(options, comm);
    const at::Tensor own = engine->export_weights(TensorKind::kParam, bucket, std::nullopt, false).bytes;
    CHECK(own.defined() == (rank == 0));
    if (own.defined()) CHECK(own.equal(expected));
  });
}

TEST(all_ranks_of_a_group_generate_the_same) {
  for (const std::string variant : {"qwen3", "gpt2", "gemma2", "qwen3_moe"}) {
    const EngineOptions options = tensor_options(variant, HeadKind::kLm, 4, true);
    check_generation(options, 4, [](Engine& engine, const GenerateResult& own) {
      // What was sampled has the log-probs that the model gives.
      const PromptBatch prompts = two_prompts();
      std::vector<at::Tensor> tokens;
      std::vector<int32_t> offsets{0}, lengths;
      for (int64_t i = 0; i < 6; ++i) {
        const int64_t begin = i < 3 ? 0 : 3, count = i < 3 ? 3 : 4;
        tokens.push_back(prompts.tokens.narrow(0, begin, count));
        tokens.push_back(own.tokens.narrow(0, i * kSampled, kSampled));
        offsets.push_back(offsets.back() + static_cast<int32_t>(count + kSampled));
        lengths.push_back(static_cast<int32_t>(count));
      }
      const TokenBatch batch{at::cat(tokens), at::tensor(offsets, at::kInt), at::tensor(lengths, at::kInt)};
      const at::Tensor log_probs = engine.compute_log_prob(batch, 1, false, false).log_probs;
      CHECK((log_probs - own.log_probs).abs().max().item<double>() < 1e-4);
    });
  }
}

TEST_MAIN()
