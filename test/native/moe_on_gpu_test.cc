#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/parallel.h"
#include "base/simulated.h"
#include "check.h"
#include "engine/meta_kernels.h"
#include "host_reads.h"
#include "model/decoder_layout.h"
#include "model/moe.h"
#include "moe_shape.h"
#include "parameters/parameter_store.h"

// What an MLP of experts asks of a GPU, on a simulated one.

using namespace troupe;
using namespace troupe::test;

// On a GPU an operation is a launch or two: their number grows neither with the rows nor with the experts.
TEST(a_gpu_gets_one_product_for_a_matrix_of_all_experts) {
  at::NoGradGuard no_grad;
  install_meta_kernels();
  const auto launches = [&](int64_t tokens, int64_t experts) {
    const Shape shape{tokens, experts, 2, 16, true};
    ParameterStore store(decoder_layout(config_of(shape)), at::kMeta, at::kBFloat16, /*training=*/true, 1);
    const MoeMlp moe(store, config_of(shape), 0);
    const SimulateGpu machine(true);
    const at::Tensor x = at::empty({tokens, kHidden}, at::device(at::kMeta).dtype(at::kBFloat16));
    return operations([&] {
      MoeSaved saved;
      moe.forward(x, at::empty_like(x), kRowTile, &saved);
      moe.backward(x, x, saved, at::empty_like(x));
    });
  };
  CHECK(launches(64, 4) > 0);
  CHECK(launches(4096, 4) == launches(64, 4));
  CHECK(launches(64, 64) == launches(64, 4));
}

// Of ranks that share experts each is taken to have an even part of the tokens' choices; one more row stands
// for all that others have.
TEST(a_rank_that_shares_experts_has_its_part_of_the_rows) {
  at::NoGradGuard no_grad;
  install_meta_kernels();
  const auto rows = [](int64_t tokens, int64_t experts, int64_t top_k, int64_t ranks) {
    const ModelConfig config = config_of({tokens, experts, top_k, 16, true});
    DecoderPart part;
    part.ep = ranks;
    part.ep_rank = ranks - 1;
    ParameterStore store(decoder_layout(config, {}, part), at::kMeta, at::kBFloat16, /*training=*/true, 1);
    const MoeMlp moe(store, config, 0, part);
    const SimulateGpu machine(true);
    const at::Tensor x = at::empty({tokens, kHidden}, at::device(at::kMeta).dtype(at::kBFloat16));
    MoeSaved saved;
    moe.forward(x, at::empty_like(x), kRowTile, &saved);
    moe.backward(x, x, saved, at::empty_like(x));
    return saved.inner.size(0);
  };
  CHECK(rows(12, 6, 3, 1) == 36);
  CHECK(rows(12, 6, 3, 2) == 18 + 1);
  CHECK(rows(12, 6, 3, 3) == 12 + 1);
  CHECK(rows(3, 6, 3, 2) == 5 + 1);  // four and a half
}

TEST_MAIN()
