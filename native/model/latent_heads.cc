// Products with the parts of each head.
#include "model/latent_heads.h"

#include <ATen/ATen.h>
#include <omp.h>

#include <utility>

#include "base/parallel.h"

namespace troupe {

namespace {

// body(head): over all threads, or on this one inside of a region.
template <typename Body>
void for_each_head(const at::Device& device, int64_t heads, Body&& body) {
  if (omp_in_parallel() != 0) {
    for (int64_t head = 0; head < heads; ++head) body(head);
  } else {
    parallel_items(device, heads, std::forward<Body>(body));
  }
}

// Rows of a matrix as one of its own, with what adapters add to them.
Linear rows_of(const Linear& linear, int64_t begin, int64_t count) {
  Linear rows;
  rows.weight = linear.weight.narrow(0, begin, count);
  rows.adapters_enabled = linear.adapters_enabled;
  if (!linear.adapters_enabled) return rows;
  for (Adapter adapter : linear.adapters) {
    adapter.b = adapter.b.narrow(0, begin - adapter.row, count);
    adapter.row = 0;
    adapter.rows = count;
    rows.adapters.push_back(std::move(adapter));
  }
  return rows;
}

}  // namespace

LatentHeads::LatentHeads(const Linear& expand, const LatentConfig& latent, int64_t heads)
    : latent_(latent), heads_(heads), expand_(expand) {
  if (!ops::packs(expand.weight)) return;
  const int64_t still = latent.still_dim, value = latent.value_dim;
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t begin = head * (still + value);
    Linear keys = rows_of(expand, begin, still), values = rows_of(expand, begin + still, value);
    Linear::Packed packed_keys = keys.pack_backward(), packed_values = values.pack_forward();
    keys_.push_back({std::move(keys), std::move(packed_keys)});
    values_.push_back({std::move(values), std::move(packed_values)});
  }
}

at::Tensor LatentHeads::rows_of_heads(const at::Tensor& matrix, int64_t begin, int64_t count) const {
  return matrix.unflatten(0, {heads_, matrix.size(0) / heads_}).narrow(1, begin, count);
}

void LatentHeads::absorb(const at::Tensor& queries, const at::Tensor& to) const {
  if (!keys_.empty()) {
    return for_each_head(to.device(), heads_, [&](int64_t head) {
      const Part& part = keys_[static_cast<size_t>(head)];
      part.linear.backward_input(queries.select(1, head), to.select(1, head), part.packed);
    });
  }
  const at::Tensor by_head = queries.transpose(0, 1);  // [Q, n, S]
  const auto times = [&](const at::Tensor& matrix) {
    return at::bmm(by_head, rows_of_heads(matrix, 0, latent_.still_dim));
  };
  at::Tensor all = times(expand_.weight);
  if (expand_.adapters_enabled) {
    for (const Adapter& adapter : expand_.adapters)
      all.add_(at::matmul(times(adapter.b).mul_(adapter.scale), adapter.a));
  }
  to.copy_(all.transpose(0, 1));
}

at::Tensor LatentHeads::values(const at::Tensor& attention) const {
  const int64_t rows = attention.size(0);
  const at::Tensor sums =
      attention.view({rows, heads_, latent_.row_dim()}).narrow(2, latent_.rotary_dim, latent_.key_rank);
  const at::Tensor to = at::empty({rows, heads_, latent_.value_dim}, attention.options());
  if (!values_.empty()) {
    for_each_head(to.device(), heads_, [&](int64_t head) {
      const Part& part = values_[static_cast<size_t>(head)];
      part.linear.forward(sums.select(1, head), to.select(1, head), part.packed);
    });
  } else {
    for_each_row_tile(rows, kDecodeRowTile, attention.device(), [&](int64_t begin, int64_t end) {
      values_of(sums.narrow(0, begin, end - begin), to.narrow(0, begin, end - begin));
    });
  }
  return to.view({rows, heads_ * latent_.value_dim});
}

void LatentHeads::values_of(const at::Tensor& sums, const at::Tensor& to) const {
  const at::Tensor by_head = sums.transpose(0, 1);  // [Q, n, key_rank]
  const auto back = [&](const at::Tensor& numbers, const at::Tensor& matrix) {
    return at::bmm(numbers, rows_of_heads(matrix, latent_.still_dim, latent_.value_dim).transpose(1, 2));
  };
  at::Tensor all = back(by_head, expand_.weight);
  if (expand_.adapters_enabled) {
    for (const Adapter& adapter : expand_.adapters)
      all.add_(back(at::matmul(by_head, adapter.a.t()).mul_(adapter.scale), adapter.b));
  }
  to.copy_(all.transpose(0, 1));
}

}  // namespace troupe
