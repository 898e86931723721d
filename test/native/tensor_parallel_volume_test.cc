#include "tensor_training.h"

// Bytes that a rank sends along tp, against the formulas of docs/distributed.md.

using namespace troupe;
using namespace troupe::test;

namespace {

// One update of a mini-batch of one micro-batch: a sequence of 40 + 60 tokens.
int64_t bytes_of_update(const EngineOptions& options) {
  const TokenBatch tokens{at::arange(100, at::kInt).remainder(kVocabulary), at::tensor({0, 100}, at::kInt),
                          at::tensor({40}, at::kInt)};
  const PolicyBatch batch{tokens, at::ones({60}, at::kByte), at::full({60}, -3.9), at::ones({60}), {}, {},
                          {}};
  int64_t bytes = 0;
  test::on_ranks(2, [&](int64_t rank, const std::shared_ptr<Communicator>& comm) {
    const auto engine = create_engine(options, comm);
    const int64_t before = engine->bytes_sent();
    engine->update_policy(batch, {{0, 1}, {60}, {1}, 1}, {}, 1);
    if (rank == 0) bytes = engine->bytes_sent() - before;
  });
  return bytes;
}

}  // namespace

TEST(bytes_of_an_update_are_those_of_the_formulas) {
  for (const bool sequence_parallel : {false, true}) {
    for (const bool checkpointing : {false, true}) {
      EngineOptions options = tensor_options("llama", HeadKind::kLm, 2, sequence_parallel);
      options.gradient_checkpointing = checkpointing;
      const int64_t L = options.model.num_layers, H = options.model.hidden_size, N = 2, b = 4;
      const int64_t T = sequence_parallel ? 256 : 128;  // rows of 99, in whole tiles on every rank
      const int64_t predictions = 128;                  // of 60
      int64_t passes = sequence_parallel ? 3 + 10 * L : 2 + 8 * L;
      if (checkpointing) passes += sequence_parallel ? 3 * L : 2 * L;
      const int64_t rows = passes * b * T * H * (N - 1) / N;
      const int64_t head = 40 * predictions * (N - 1) + 2 * 4 * predictions * H * (N - 1) / N;
      const int64_t copies =
          sequence_parallel ? 2 * 4 * (2 * L * H) * (N - 1) / N : 0;  // norms of the blocks
      const int64_t counts = 3 * 8 * (N - 1), norm = (L + 2) * 8 * (N - 1);
      CHECK_CLOSE(bytes_of_update(options), rows + head + copies + counts + norm, 0);
    }
  }
}

TEST_MAIN()
