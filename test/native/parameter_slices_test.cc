#include <ATen/ATen.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "model/decoder_layout.h"
#include "model/decoder_part.h"
#include "parameters/parameter_store.h"
#include "small_model.h"

// What of a parameter lies in the slice that a rank holds: rows that are assigned, and which ones a rank asks
// for.

using namespace troupe;
using namespace troupe::test;

namespace {

// The slices of all ranks that share these matrices, and `count` ranks that share each flat buffer.
std::vector<ParameterStore> stores(const std::string& variant, int64_t tp, int64_t count, bool muon = false) {
  std::vector<ParameterStore> all;
  for (int64_t tp_rank = 0; tp_rank < tp; ++tp_rank) {
    for (int64_t rank = 0; rank < count; ++rank) {
      const DecoderPart part{.tp = tp, .tp_rank = tp_rank};
      all.emplace_back(decoder_layout(small(variant), std::nullopt, part), at::kCPU, at::kFloat,
                       /*training=*/true, /*seed=*/7, ShardSlice{rank, count}, StateKinds{},
                       ShardSlice{rank, count}, at::kFloat, muon);
    }
  }
  return all;
}

constexpr TensorKind kParam = TensorKind::kParam;

// Whether anything of these rows is kept.
bool holds(ParameterStore& store, const Parameter& parameter, int64_t row, int64_t rows) {
  const int64_t width = parameter.placement.width();
  store.assign(kParam, parameter, row, at::ones({rows, width}));
  const at::Tensor own = store.owned(kParam, parameter.group);
  const bool any = own.ne(0).any().item<bool>();
  own.zero_();
  return any;
}

}  // namespace

TEST(rows_that_are_asked_for_are_those_from_the_first_to_the_last_that_is_held) {
  for (const auto& [variant, tp, count] : std::vector<std::tuple<std::string, int64_t, int64_t>>{
           {"qwen3", 1, 3}, {"qwen3", 2, 1}, {"qwen3", 4, 2}, {"gpt2", 2, 3}, {"qwen3_moe", 1, 5}}) {
    for (ParameterStore& store : stores(variant, tp, count)) {
      int64_t none = 0, some = 0;
      for (const Parameter& parameter : store.all()) {
        if (!store.groups()[parameter.group].here) continue;
        const int64_t all = parameter.placement.shape[0];
        std::vector<bool> held;
        for (int64_t row = 0; row < all; ++row) held.push_back(holds(store, parameter, row, 1));
        for (const auto& [row, rows] :
             std::vector<std::pair<int64_t, int64_t>>{{0, all}, {all / 3, all - all / 3}, {all / 2, 1}}) {
          RowRange expected{row, row};
          for (int64_t r = row + rows; r-- > row;) {
            if (!held[static_cast<size_t>(r)]) continue;
            if (expected.begin == expected.end) expected.end = r + 1;
            expected.begin = r;
          }
          const RowRange asked = store.owned_rows(kParam, parameter, row, rows);
          if (expected.begin == expected.end) {
            CHECK(asked.begin == asked.end);
          } else {
            CHECK(asked.begin == expected.begin && asked.end == expected.end);
          }
          none += expected.begin == expected.end ? 1 : 0;
          some += expected.end - expected.begin > 0 && expected.end - expected.begin < rows ? 1 : 0;
        }
      }
      CHECK((none > 0 && some > 0) || tp * count == 1);
    }
  }
}

// Of Muon's second moments, which lie without those of its matrices between them.
TEST(what_is_assigned_of_second_moments_is_where_the_slice_has_it) {
  for (const int64_t count : {1, 2, 3, 7}) {
    std::vector<ParameterStore> ranks = stores("qwen2", 1, count, /*muon=*/true);
    double value = 0;
    int64_t refused = 0;
    for (const Parameter& parameter : ranks[0].all()) {
      const at::Tensor values = at::full(parameter.placement.shape, ++value)
                                    .view({parameter.placement.shape[0], parameter.placement.width()});
      at::Tensor whole;
      for (ParameterStore& store : ranks) {
        const Parameter& own = store.at(parameter.info.name);
        if (!own.matrices.empty()) {
          CHECK_THROWS(store.assign(TensorKind::kExpAvgSq, own, 0, values), "Muon keeps no second moments");
          ++refused;
          continue;
        }
        store.assign(TensorKind::kExpAvgSq, own, 0, values);
        const at::Tensor slice = store.slice_of(TensorKind::kExpAvgSq, own.group);
        whole = whole.defined() ? at::cat({whole, slice}) : slice;
      }
      if (!whole.defined()) continue;
      // There, and nowhere else.
      const int64_t size = parameter.info.size();
      CHECK(whole.narrow(0, parameter.start, size).eq(value).all().item<bool>());
      CHECK(whole.eq(value).sum().item<int64_t>() == size);
    }
    CHECK(refused > 0);
  }
}

TEST_MAIN()
